"""The pilot of a task of the league says at which ε something can be learned."""

from __future__ import annotations

from pathlib import Path

import pytest

from clipnoise.data.base import dataset_class
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


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    dataset_class("digits")().prepare(folder)
    return folder


@pytest.fixture
def task(tmp_path: Path) -> Study:
    (tmp_path / "digits.yaml").write_text(TASK)
    return load_study(tmp_path / "digits.yaml")


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


def test_standard_errors_are_those_of_a_share() -> None:
    assert MajorityClass(examples=400, splits=4, accuracy=0.5).errors_above(0.55) == pytest.approx(
        2
    )
    assert MajorityClass(examples=400, splits=4, accuracy=0.5).errors_above(0.45) == pytest.approx(
        -2
    )
