"""Every study in the repository plans its runs, at every scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from clipnoise.studies.study import LEAGUE, Study, load_study, names_below

WORKFLOW = Path(__file__).parents[2] / "workflow"
SCALES = ("paper", "small", "smoke")
STUDIES = names_below(WORKFLOW / "studies")


def load(name: str, scale: str) -> Study:
    rules = None if scale == "paper" else WORKFLOW / "scales" / f"{scale}.yaml"
    return load_study(WORKFLOW / "studies" / f"{name}.yaml", rules)


@pytest.mark.quick(scale=["smoke"])
@pytest.mark.parametrize(
    ("name", "scale"),
    [
        (name, scale)
        for name in STUDIES
        for scale in SCALES
        if scale == "paper" or name.split("/")[0] != LEAGUE  # whose tasks have no scales
    ],
)
def test_a_study_plans_the_runs_of_every_panel(name: str, scale: str) -> None:
    study = load(name, scale)
    assert {run.panel for run in study.runs} == {grid.name for grid in study.grids}
    assert set(study.names) == set(study.specs)


@pytest.mark.parametrize("name", [f"{LEAGUE}/digits-users", "digits-league", "quickstart"])
def test_a_study_without_scales_is_the_same_at_every_scale(name: str) -> None:
    assert "scales: none" in (WORKFLOW / "studies" / f"{name}.yaml").read_text()
    hashes = [set(load(name, scale).specs) for scale in SCALES]
    assert hashes[0] == hashes[1] == hashes[2]
