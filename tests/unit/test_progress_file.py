"""A run notes its evaluations in a file while it trains, for whoever looks."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from budgets import budget

from clipnoise.errors import UserError
from clipnoise.files import is_locked, locked
from clipnoise.run import job
from clipnoise.run.outcome import Metrics
from clipnoise.run.progress import PROGRESS, is_training, read_progress
from clipnoise.run.results import read_run, run_folder
from clipnoise.run.spec import RunSpec, from_mapping, to_mapping

STRICT = {"noise_multiplier": 1, "release": "strict", "secure_noise": True}


def spec(privacy: dict[str, Any] | None) -> RunSpec:
    return from_mapping(
        {
            "dataset": "digits",
            "model": "logistic",
            "method": {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 1},
            "privacy": {"noise_multiplier": 1} if privacy is None else privacy,
            "training": {"expected_batch_size": 50, "steps": 4, "evaluations": 2},
            "seed": 1,
        }
    )


def train(
    run: RunSpec,
    cache: Path,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    after: Callable[[Path], None],
) -> Path:
    """Train a run, and call a function with its folder after each evaluation."""
    folder, note = run_folder(results, run), job.note_progress

    def noted(place: Path, metrics: Metrics) -> None:
        note(place, metrics)
        after(folder)

    monkeypatch.setattr(job, "note_progress", noted)
    job.run_job(run, budget(run), results=results, cache=cache, weights=results, device="cpu")
    return folder


@pytest.mark.parametrize("privacy", [None, STRICT], ids=["full", "strict"])
def test_what_is_noted_of_a_run_is_what_its_result_says(
    privacy: dict[str, Any] | None,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A strict release withholds from its progress what it withholds from its result."""
    noted = []

    def look(folder: Path) -> None:
        assert is_training(folder)
        noted.append(read_progress(folder))

    run = spec(privacy)
    folder = train(run, cache, tmp_path, monkeypatch, look)
    files = read_run(folder)
    assert files is not None
    assert [len(one.metrics) for one in noted if one is not None] == [1, 2, 3]
    last = noted[-1]
    assert last is not None
    assert (last.hash, last.started) == (run.hash, files.summary["started"])
    assert last.spec == json.loads(json.dumps(to_mapping(run)))
    for row, text in zip(last.metrics, files.metrics, strict=True):
        for name, value in row.items():
            known = "" if value is None else str(value)
            assert text[name] == known or (known == "" and math.isnan(float(text[name])))
    assert not (folder / PROGRESS).exists()
    assert not is_training(folder)


def test_a_run_that_was_stopped_leaves_its_progress_and_trains_no_more(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(folder: Path) -> None:
        raise KeyboardInterrupt

    run = spec(None)
    with pytest.raises(KeyboardInterrupt):
        train(run, cache, tmp_path, monkeypatch, stop)
    left = read_progress(run_folder(tmp_path, run))
    assert left is not None
    assert len(left.metrics) == 1
    assert not is_training(run_folder(tmp_path, run))


def test_an_evaluation_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    head = {"hash": "a", "spec": {}, "started": "2026-01-05T12:00:00+00:00"}
    text = json.dumps(head) + '\n{"step": 0}\n{"step": 5}\n'
    path = tmp_path / PROGRESS
    for length in range(len(text) + 1):
        path.write_text(text[:length])
        found = read_progress(tmp_path)
        whole = text[:length].count("\n")
        assert (found is None) == (whole == 0)
        assert found is None or len(found.metrics) == whole - 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "content", ["[]\n", "5\n", "{}\n", '{"step": 0}\n', "[" * 9999 + "\n", None]
)
def test_a_damaged_file_is_named(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / PROGRESS
    if content is None:
        os.mkfifo(path)
    else:
        path.write_text(content)
    with pytest.raises(UserError, match=PROGRESS):
        read_progress(tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_whatever_is_in_the_place_of_the_file_a_run_goes_on(
    kind: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = replace(spec(None), seed=2)
    path = run_folder(tmp_path, run) / PROGRESS
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert read_run(train(run, cache, tmp_path, monkeypatch, lambda _: None)) is not None


def test_who_asks_for_a_lock_does_not_take_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    path.touch()  # as a killed holder leaves it
    assert not is_locked(path)
    with locked(path):
        assert is_locked(path)
        assert is_locked(path)
    with locked(path, seconds=0):
        pass
