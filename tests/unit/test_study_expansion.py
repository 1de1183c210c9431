"""What the shipped studies expand to is recorded, so that a change of it is deliberate.

After such a change, `python tests/unit/test_study_expansion.py [STUDY ...]` records the new
digests, of all studies if none is named.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from clipnoise.kinds import Kinds
from clipnoise.run.spec import RunSpec
from clipnoise.studies.study import Study, load_study, names_below

WORKFLOW = Path(__file__).parents[2] / "workflow"
RECORD = Path(__file__).with_name("study_expansion.json")
SCALES = ("paper", "small", "smoke")
STUDIES = names_below(WORKFLOW / "studies")
RECORDED: dict[str, dict[str, str]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
LARGEST = "league"  # its tasks have no scales, as digits-league and others have none


def load(name: str, scale: str) -> Study:
    rules = None if scale == "paper" else WORKFLOW / "scales" / f"{scale}.yaml"
    return load_study(WORKFLOW / "studies" / f"{name}.yaml", rules)


def contents(value: Any) -> Any:
    """Return plain data without values that are the default: a new option changes no digest."""
    if not is_dataclass(value):
        return [contents(one) for one in value] if isinstance(value, list | tuple) else value
    found: dict[str, Any] = {"id": value.id} if hasattr(value, "id") else {}
    if isinstance(value, Kinds):
        found = {} if value.id == value.default else {"kind": value.id}
    for one in fields(value):
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if getattr(value, one.name) != default:
            found[one.name] = contents(getattr(value, one.name))
    return found


def content(spec: RunSpec) -> dict[str, Any]:
    """Return what a run does; the key of a search depends on hashes, and its runs are compared."""
    values: dict[str, Any] = contents(spec)
    values.get("tuning", {}).pop("key", None)
    return values


def digest(study: Study) -> str:
    """Return a digest of the runs, searches and report items of a study."""
    runs = [(r.panel, r.label, r.dataset, r.model, content(r.spec)) for r in study.runs]
    searches = [
        (search.metric, [[content(spec) for spec in one] for one in search.configurations])
        for search in study.searches.values()
    ]
    report = [
        (one.kind, one.panel, getattr(one, "over", ""), getattr(one, "metric", None))
        for one in study.report
    ]
    unordered = [
        sorted(json.dumps(one, sort_keys=True) for one in all_) for all_ in (runs, searches)
    ]
    text = json.dumps([*unordered, report])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_every_study_is_recorded() -> None:
    assert list(RECORDED) == STUDIES


@pytest.mark.quick(scale=["smoke"])
@pytest.mark.parametrize(
    ("name", "scale"),
    [
        (name, scale)
        for name in STUDIES
        for scale in SCALES
        if scale == "paper" or name.split("/")[0] != LARGEST
    ],
)
def test_a_study_expands_to_the_runs_that_are_recorded(name: str, scale: str) -> None:
    study = load(name, scale)
    assert study.runs
    assert digest(study) == RECORDED[name][scale]


def test_a_study_without_scales_is_the_same_at_every_scale() -> None:
    for name in (f"{LARGEST}/digits", "digits-league", "quickstart"):
        assert "scales: none" in (WORKFLOW / "studies" / f"{name}.yaml").read_text()
        assert len(set(RECORDED[name].values())) == 1


def record(name: str) -> dict[str, str]:
    """Return what is recorded of a study: its digest at each scale."""
    if name.split("/")[0] == LARGEST:
        return dict.fromkeys(SCALES, digest(load(name, "paper")))
    return {scale: digest(load(name, scale)) for scale in SCALES}


if __name__ == "__main__":
    found = RECORDED | {name: record(name) for name in sys.argv[1:] or STUDIES}
    lines = [f" {json.dumps(name)}: {json.dumps(found[name])}" for name in STUDIES]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
