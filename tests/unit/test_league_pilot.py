"""The pilot of a task of the league says at which ε something can be learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from clipnoise.data.base import Splits
from clipnoise.run import setup
from clipnoise.run.spec import RunSpec
from clipnoise.studies.pilot import MajorityClass, majority, piloted
from clipnoise.studies.study import Study, load_study

TASK = """
title: "League: digits"
defaults:
  datasets: [digits]
  models: [logistic]
  epsilons: [8, 0.01]
  privacy: {delta: 1.0e-5}
  training: {expected_batch_size: 130, steps: 20, evaluations: 1}
panels:
  screen:
    seeds: [1]
    methods: [dp-adam, dp-sgd, sgd]
    tuning: {trials: 2, seeds: [101]}
    hyperparameters:
      sgd: {tune: {ranges: {learning_rate: [0.1, 1]}}}
      "dp-sgd, dp-adam": {clip_norm: 1, tune: {ranges: {learning_rate: [1, 3]}}}
report: [{kind: table}]
"""


@pytest.fixture
def task(tmp_path: Path) -> Study:
    (tmp_path / "digits.yaml").write_text(TASK)
    return load_study(tmp_path / "digits.yaml")


TUNED = {"clip_norm": 1, "tune": {"ranges": {"learning_rate": [1, 3]}}}
SHORT = {"expected_batch_size": 5, "steps": 1}
TRACKS: list[tuple[str, dict[str, object], list[str]]] = [
    (
        "digits-users",
        {
            "methods": ["dp-fedavg"],
            "hyperparameters": {"dp-fedavg": TUNED},
            "privacy": {"accountant": "rdp"},
        },
        ["fedavg", "dp-fedavg"],
    ),
    (
        "digits",
        {
            "methods": [{"id": "dp-sgd", "label": f"dp-sgd {one}"} for one in ("tree", "banded")],
            "hyperparameters": {"dp-sgd": TUNED},
            "privacy": {"sampler": "cyclic", "accountant": "rdp"},
        },
        ["sgd", "dp-sgd banded"],
    ),
]


@pytest.mark.parametrize(("dataset", "panel", "tried"), TRACKS)
def test_every_track_tries_its_own_baseline(
    dataset: str, panel: dict[str, Any], tried: list[str], tmp_path: Path, cache: Path
) -> None:
    study = yaml.safe_load(TASK)
    free = {"id": tried[0], "tune": {"grid": {"learning_rate": [1]}}}
    panel = {**panel, "datasets": [dataset], "epsilons": [8], "training": SHORT}
    panel["methods"] = [*panel["methods"], free]
    study["panels"]["screen"] |= panel
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(study))
    found = piloted(load_study(tmp_path / "task.yaml"), cache, Path())
    assert [(best.method, best.epsilon) for best in found] == [(tried[0], None), (tried[1], 8.0)]


@pytest.mark.long
def test_a_budget_at_which_nothing_is_learned_stays_beside_the_majority_class(
    task: Study, cache: Path
) -> None:
    beside = majority(task, cache)
    found = {(best.method, best.epsilon): best for best in piloted(task, cache, Path())}
    assert list(found) == [("sgd", None), ("dp-sgd", 0.01), ("dp-sgd", 8.0)]
    errors = {key: beside.errors_above(best.accuracy) for key, best in found.items()}
    assert errors["sgd", None] > errors["dp-sgd", 8.0] > 20
    assert abs(errors["dp-sgd", 0.01]) < 6  # the best of two, of four splits that share examples


def test_a_small_task_is_tried_on_four_splits(task: Study, cache: Path) -> None:
    beside = majority(task, cache)
    assert (beside.splits, beside.examples) == (4, 4 * 137)
    assert beside.accuracy == pytest.approx(0.1, abs=0.04)


def test_a_small_task_with_one_split_is_not_counted_four_times(
    task: Study, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = setup.load_data

    def on_the_same_split(spec: RunSpec, cache: Path) -> Splits:
        return load(replace(spec, dataset=replace(spec.dataset, split_seed=0)), cache)

    monkeypatch.setattr(setup, "load_data", on_the_same_split)
    beside = majority(task, cache)
    assert (beside.splits, beside.examples) == (1, 137)


def test_standard_errors_are_those_of_a_share() -> None:
    assert MajorityClass(examples=400, splits=4, accuracy=0.5).errors_above(0.55) == pytest.approx(
        2
    )
    assert MajorityClass(examples=400, splits=4, accuracy=0.5).errors_above(0.45) == pytest.approx(
        -2
    )
