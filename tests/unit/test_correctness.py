"""A run that is asked to says of each test example whether it is predicted right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from clipnoise.data.base import dataset_class
from clipnoise.errors import UserError
from clipnoise.run.correctness import packed, unpacked
from clipnoise.run.job import repeat, run_job
from clipnoise.run.results import read_run, run_folder
from clipnoise.run.spec import from_mapping, to_mapping
from clipnoise.studies.collect import collect
from clipnoise.studies.study import Study, load_study


def study(folder: Path, **training: Any) -> Study:
    panel = {
        "datasets": ["digits"],
        "models": ["logistic"],
        "seeds": [1],
        "methods": [{"id": "sgd", "tune": {"grid": {"learning_rate": [0.1]}, "seeds": [11]}}],
        "training": {"expected_batch_size": 100, "steps": 6, "evaluations": 2, **training},
    }
    path = folder / "studies" / "mine.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump({"title": "t", "panels": {"p": panel}, "report": []}))
    return load_study(path)


@pytest.mark.parametrize("examples", [0, 1, 8, 360, 361])
def test_bits_are_read_as_they_were_packed_and_of_no_other_number_of_examples(
    examples: int,
) -> None:
    right = np.random.default_rng(examples).random(examples) < 0.5
    assert np.array_equal(unpacked(packed(right), examples), right)
    with pytest.raises(ValueError, match="the bits are not those of"):
        unpacked(packed(right), examples + 8)
    with pytest.raises(ValueError, match="the bits are not those of 8 examples"):
        unpacked(packed(np.ones(9, bool)), 8)
    with pytest.raises(ValueError, match="the bits are not those of 7 examples"):
        unpacked(packed(np.ones(8, bool)), 7)


def test_the_bits_of_a_run_are_kept_collected_and_repeated(tmp_path: Path) -> None:
    mine, cache, results = study(tmp_path, correctness=True), tmp_path / "c", tmp_path / "r"
    dataset_class("digits")().prepare(cache)
    places: dict[str, Any] = {"cache": cache, "weights": cache, "device": "cpu"}
    (tuned,) = (run.spec for run in mine.runs)
    spec = from_mapping({**to_mapping(tuned), "tuning": None})
    summary = run_job(spec, None, results=results, **places)
    right = unpacked(summary["correct"], 360)
    assert right.mean() == pytest.approx(summary["final"]["test_accuracy"])
    assert 0.1 < right.mean() < 1
    assert repeat(spec, results=results, **places) == {}
    files = read_run(run_folder(results, spec))
    assert files is not None
    assert files.summary["correct"] == summary["correct"]


def test_bits_are_a_column_of_the_collected_runs(tmp_path: Path) -> None:
    folder = tmp_path / "studies"
    folder.mkdir()
    path = folder / "mine.yaml"
    methods = [{"id": "sgd", "learning_rate": 0.1}]
    training = {"expected_batch_size": 100, "steps": 2, "evaluations": 1, "correctness": True}
    panel = {"datasets": ["digits"], "models": ["logistic"], "seeds": [1], "methods": methods}
    panel["training"] = training
    path.write_text(yaml.safe_dump({"title": "t", "panels": {"p": panel}, "report": []}))
    mine, cache, results = load_study(path), tmp_path / "c", tmp_path / "r"
    dataset_class("digits")().prepare(cache)
    (run,) = mine.runs
    summary = run_job(run.spec, None, results=results, cache=cache, weights=cache, device="cpu")
    (row,) = collect(mine, results)[0].to_pylist()
    assert row["correct"] == summary["correct"]


def test_what_a_run_keeps_is_not_kept_of_the_runs_of_its_search(tmp_path: Path) -> None:
    kept, plain = study(tmp_path, correctness=True), study(tmp_path)
    assert [run.spec.training.correctness for run in kept.runs] == [True]
    assert not any(spec.training.correctness for spec in kept.tuning_runs)
    assert {spec.hash for spec in kept.tuning_runs} == {spec.hash for spec in plain.tuning_runs}
    assert "correctness" not in to_mapping(plain.runs[0].spec)["training"]
    assert kept.runs[0].spec.hash != plain.runs[0].spec.hash


def test_nothing_but_classification_has_right_predictions() -> None:
    values = {
        "dataset": "synthetic-sparse",
        "model": "logistic",
        "method": {"id": "sgd", "learning_rate": 0.5},
        "training": {"expected_batch_size": 25, "steps": 4, "correctness": True},
        "seed": 1,
    }
    with pytest.raises(UserError, match=r"training\.correctness: is for classification; "):
        from_mapping(values)
