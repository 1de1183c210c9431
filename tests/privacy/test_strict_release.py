"""A strict release writes nothing that depends on private data and that ε does not cover."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from budgets import budget

from clipnoise.data.base import Examples
from clipnoise.errors import UserError
from clipnoise.privacy.claim import NOT_COVERED
from clipnoise.run import train as training
from clipnoise.run.job import is_finished, run_job
from clipnoise.run.results import run_folder
from clipnoise.run.setup import load_data
from clipnoise.run.spec import RunSpec, from_mapping

STRICT = {"release": "strict", "secure_noise": True}


def spec(*, privacy: dict[str, Any] | None = None, **sections: Any) -> RunSpec:
    return from_mapping(
        {
            "dataset": "digits",
            "model": "logistic",
            "method": {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 1},
            "privacy": {"noise_multiplier": 1, **(STRICT if privacy is None else privacy)},
            "training": {"expected_batch_size": 50, "steps": 4, "evaluations": 2},
            "seed": 1,
            **sections,
        }
    )


def train(run: RunSpec, cache: Path, results: Path) -> tuple[dict[str, Any], list[dict[str, str]]]:
    run_job(run, budget(run), results=results, cache=cache, weights=results, device="cpu")
    folder = run_folder(results, run)
    table = csv.DictReader(io.StringIO((folder / "metrics.csv").read_text()))
    return json.loads((folder / "summary.json").read_text()), list(table)


PRIVATE = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy")


def test_a_strict_release_holds_no_private_metric_size_speed_or_digest(
    cache: Path, tmp_path: Path
) -> None:
    run = spec()
    summary, rows = train(run, cache, tmp_path)
    assert all(summary["final"][name] is None for name in PRIVATE)
    assert summary["final"]["test_accuracy"] > 0.1
    assert summary["data"] == {}
    timed = ("processed", "examples_per_second", "training_seconds", "cpu_seconds")
    for name in (*timed, "physical_batch_size", "peak_memory_mb"):
        assert summary[name] is None
    assert len(rows) == 3
    for row in rows:
        for name in (*PRIVATE, "examples_per_second", "peak_memory_mb", "seconds"):
            assert row[name] in ("", "nan")
        assert math.isfinite(float(row["test_loss"]))
    assert summary["privacy"]["release"] == "strict"
    assert summary["privacy"]["does_not_cover"] == NOT_COVERED["strict"]
    assert is_finished(tmp_path, cache, run, budget(run))


def test_a_full_release_holds_them_all_and_says_so(cache: Path, tmp_path: Path) -> None:
    summary, rows = train(spec(privacy={}), cache, tmp_path)
    assert all(math.isfinite(summary["final"][name]) for name in PRIVATE)
    assert all(math.isfinite(float(row["train_loss"])) for row in rows)
    assert summary["data"]
    assert summary["privacy"]["does_not_cover"] == NOT_COVERED["full"]


def test_a_strict_run_never_measures_private_or_validation_examples(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    real = training.evaluate

    def noted(network: Any, task: Any, examples: Examples, *more: Any) -> training.Scores:
        measured.append(len(examples))
        return real(network, task, examples, *more)

    monkeypatch.setattr(training, "evaluate", noted)
    train(spec(), cache, tmp_path)
    assert measured == [360] * 4  # the test set: a constant prediction, and three evaluations


@pytest.mark.parametrize(("privacy", "status"), [(STRICT, "completed"), ({}, "diverged")])
def test_a_loss_that_is_not_finite_stops_no_strict_run(
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    privacy: dict[str, Any],
    status: str,
) -> None:
    def spoilt(run: RunSpec, folder: Path) -> Any:
        splits = load_data(run, folder)
        inputs, targets = splits.train.take(slice(None))
        inputs = inputs.clone()
        inputs[7] = torch.inf
        return replace(splits, train=Examples(inputs, targets))

    monkeypatch.setattr(training, "load_data", spoilt)
    summary, rows = train(spec(privacy=privacy), cache, tmp_path)
    assert summary["status"] == status
    assert len(rows) == (3 if status == "completed" else 1)
    assert ("nan" in str(rows) or "inf" in str(rows)) or status == "completed"


def test_seeded_noise_is_refused_because_the_seed_is_written() -> None:
    with pytest.raises(UserError, match="release: strict needs secure_noise: true"):
        spec(privacy={"release": "strict"})


def test_a_search_on_validation_metrics_is_refused() -> None:
    tuning = {"key": "0" * 12, "parameters": ["learning_rate"], "configurations": 2, "runs": 2}
    with pytest.raises(UserError, match=r"privacy\.release: strict writes no validation metrics"):
        spec(tuning=tuning)


def test_diagnostics_are_refused() -> None:
    steps = {"expected_batch_size": 50, "steps": 4, "diagnostics": True}
    with pytest.raises(UserError, match=r"strict does not go with training\.diagnostics"):
        spec(training=steps)


def test_test_examples_of_protected_users_are_withheld_too() -> None:
    federated = {"id": "dp-fedavg", "learning_rate": 1, "clip_norm": 1}
    few = {"expected_batch_size": 20, "steps": 4}
    stackoverflow = {"id": "stackoverflow", "validation_examples": 0}
    owned = spec(dataset=stackoverflow, method=federated, training=few)
    assert owned.withheld == {"train", "validation", "test"}
    others = spec(dataset="digits-users", method=federated, training=few)
    assert others.withheld == {"train", "validation"}
    assert spec(privacy={}).withheld == set()


def test_a_strict_release_is_part_of_a_run_s_identity() -> None:
    secure = spec(privacy={"secure_noise": True})
    assert spec().hash != secure.hash
    assert spec().budget == secure.budget
