"""Studies of a mechanism: what is compared differs in the mechanism alone, at equal ε."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clipnoise.run.spec import to_mapping
from clipnoise.studies.study import load_study

STUDIES = Path(__file__).parents[2] / "workflow/studies"


def without(spec: Mapping[str, Any], *names: str) -> str:
    """Return a run without some of its section on privacy, and without the key of its search."""
    privacy = {name: value for name, value in spec["privacy"].items() if name not in names}
    tuning = {name: value for name, value in spec["tuning"].items() if name != "key"}
    return str({**spec, "privacy": privacy, "tuning": tuning})


@pytest.mark.parametrize(
    ("study", "changed", "options"),
    [
        ("samplers", ("sampler", "accountant"), 3),
        ("drawn-turns", ("noise", "sampler", "accountant"), 12),
        ("banded-turns", ("noise", "sampler", "accountant"), 8),
        ("scheduled-noise", ("noise",), 6),
    ],
)
def test_the_runs_that_are_compared_differ_in_their_mechanism_alone(
    study: str, changed: tuple[str, ...], options: int
) -> None:
    loaded = load_study(STUDIES / f"{study}.yaml")
    groups: dict[str, set[str]] = {}
    for run in loaded.runs:
        groups.setdefault(without(to_mapping(run.spec), *changed), set()).add(run.spec.hash)
    assert {len(hashes) for hashes in groups.values()} == {options}
    assert {run.spec.privacy.epsilon for run in loaded.runs if run.spec.privacy} == {1, 8}
    assert "changes" in {item.kind for item in loaded.report}


def test_noise_alone_differs_under_the_same_draw_of_turns() -> None:
    runs = [to_mapping(run.spec) for run in load_study(STUDIES / "drawn-turns.yaml").runs]
    drawn = [run for run in runs if run["privacy"]["sampler"] == "balls-in-bins"]
    groups: dict[str, set[str]] = {}
    for run in drawn:
        groups.setdefault(without(run, "noise"), set()).add(run["privacy"]["noise"]["kind"])
    assert {len(kinds) for kinds in groups.values()} == {6}
