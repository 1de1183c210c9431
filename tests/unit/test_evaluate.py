"""Evaluations of some examples only: which ones, that the last is whole, and what a run says."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from clipnoise.run import job
from clipnoise.run.outcome import Clock
from clipnoise.run.spec import from_mapping, to_mapping
from clipnoise.run.train import Run, some_of, train


def spec(seed: int = 1, **training: Any) -> Any:
    return from_mapping(
        {
            "dataset": "digits",
            "model": "logistic",
            "method": {"id": "sgd", "learning_rate": 0.5},
            "training": {"expected_batch_size": 100, "steps": 4, "evaluations": 2, **training},
            "seed": seed,
        }
    )


def test_only_the_last_evaluation_measures_everything(cache: Path) -> None:
    limited = spec(evaluate={"examples": 50})
    some, every = (train(one, cache=cache, calibration=None).metrics for one in (limited, spec()))
    assert [row.test_accuracy for row in some][:2] != [row.test_accuracy for row in every][:2]
    assert all((50 * row.test_accuracy) % 1 == pytest.approx(0) for row in some[:2])
    last, whole = some[-1], every[-1]
    assert (last.test_accuracy, last.train_loss) == (whole.test_accuracy, whole.train_loss)


def test_the_examples_are_the_same_for_every_seed_and_all_where_there_are_fewer(
    cache: Path,
) -> None:
    first = [
        Run.prepare(spec(seed, evaluate={"examples": 50}), cache, "cpu").splits for seed in (1, 2)
    ]
    chosen = some_of(len(first[0].test), 50)
    assert torch.equal(chosen, some_of(len(first[1].test), 50))
    assert len(chosen.unique()) == 50
    assert some_of(7, 50).tolist() == list(range(7))


def test_a_run_that_measures_everything_keeps_its_hash() -> None:
    assert "evaluate" not in to_mapping(spec())["training"]
    limited = spec(evaluate={"examples": 50})
    assert limited.hash != spec().hash
    assert from_mapping(to_mapping(limited)) == limited


def test_a_run_says_that_evaluations_took_longer_than_its_steps(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    places: dict[str, Any] = {"cache": cache, "weights": cache, "device": "cpu"}
    job.run_job(spec(), None, results=cache / "one", **places)
    assert "evaluations took" not in caplog.text  # neither took long
    monkeypatch.setattr(job, "LONG_EVALUATION", -1.0)
    monkeypatch.setattr(Clock, "cost", lambda self: {"training_seconds": -1.0})
    monkeypatch.setattr(job, "write_run", lambda *arguments: {})
    job.run_job(spec(), None, results=cache / "two", **places)
    assert "evaluate: {examples: 2000}, take less" in caplog.text
