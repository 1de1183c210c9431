"""Every setting of the digits league trains and claims no more than its method may."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from every_method import FAMILIES

from clipnoise.data.base import dataset_class
from clipnoise.methods.base import methods
from clipnoise.privacy.budget import Budget
from clipnoise.privacy.calibration import Calibration, calibrate
from clipnoise.run.results import privacy_statement
from clipnoise.run.train import train
from clipnoise.studies.study import PlannedRun, load_study

STUDY = load_study(Path(__file__).parents[2] / "workflow" / "studies" / "digits-league.yaml")
FIRST = [
    run
    for run in STUDY.runs
    if run.spec.seed == 1 and (run.spec.privacy is None or run.spec.privacy.epsilon == 8)
]
NOMINAL = {"jme-adam"}  # its sensitivity is for replacing an example


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    for name in {dataset.id for run in FIRST for dataset in run.spec.datasets}:
        dataset_class(name)().prepare(folder)
    return folder


@pytest.fixture(scope="module")
def known() -> dict[Budget, Calibration]:
    return {}


def test_the_league_plans_every_method() -> None:
    assert {run.spec.method.id for run in STUDY.runs} == set(methods())


@pytest.mark.quick(
    run=[run for run in FIRST if run.panel == "league" and run.spec.method.id in FAMILIES]
)
@pytest.mark.parametrize("run", FIRST, ids=lambda run: f"{run.panel}-{run.label}")
def test_a_setting_of_the_league_trains_with_its_claim(
    run: PlannedRun, cache: Path, known: dict[Budget, Calibration]
) -> None:
    short = replace(run.spec.training, epochs=None, steps=3, evaluations=1)
    spec = replace(run.spec, training=short)
    target = spec.budget
    if target is not None and target not in known:
        known[target] = calibrate(target)
    calibration = None if target is None else known[target]
    outcome = train(spec, cache=cache, calibration=calibration)
    assert (outcome.status, outcome.steps_done) == ("completed", 3)
    said = privacy_statement(spec, calibration)
    private = spec.method.private and calibration is not None
    expected = "nominal" if spec.method.id in NOMINAL else "guarantee"
    assert said.claim == (expected if private else "non-private")
    assert (said.epsilon is not None) == private
