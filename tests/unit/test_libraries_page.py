"""The page on DP libraries is printed from its results, and its rows for Opacus go on holding."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from clipnoise.audit.loops.verdict import judge_file

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "libraries"
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "libraries.json").read_text())
DESCRIBED = yaml.safe_load((FOLDER / "libraries.yaml").read_text())
SOON = ("not-poisson",)  # which is refuted; the others take over a minute together


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "judge_libraries.py"))


def test_the_page_is_printed_from_the_results_file(script: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "libraries.md").read_text() == script["page"](DESCRIBED, RESULTS)


def test_every_result_is_of_a_version_that_is_pinned() -> None:
    for name, found in RESULTS.items():
        pinned = dict(each.split("==") for each in DESCRIBED["judged"][name]["requires"])
        assert pinned == {package: found["versions"][package] for package in pinned}


def test_every_result_is_of_a_row_that_is_described() -> None:
    for name, found in RESULTS.items():
        assert found["rows"].keys() <= DESCRIBED["judged"][name]["rows"].keys()


def test_a_row_without_a_result_is_shown_as_not_judged(script: dict[str, Any]) -> None:
    none = {name: {**found, "rows": {}} for name, found in RESULTS.items()}
    rows = sum(len(library["rows"]) for library in DESCRIBED["judged"].values())
    assert script["page"](DESCRIBED, none).count("| not judged |") == rows


def test_a_row_that_is_refuted_shows_what_refuted_it(script: dict[str, Any]) -> None:
    checks = {
        "apart": {"holds": True, "said": "the same"},
        "sampler": {"holds": False, "said": "no batch is empty"},
        "divisor": {"holds": None, "said": "needs steps"},
    }
    words = script["said"]({"verdict": "refuted", "checks": checks})
    assert words == "sampler: no batch is empty; not checked: divisor"


@pytest.mark.quick(variant=SOON)
@pytest.mark.parametrize("variant", RESULTS["Opacus"]["rows"])
def test_the_verdict_on_opacus_still_holds(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARIANT", variant)
    monkeypatch.delitem(sys.modules, "task", raising=False)
    found = judge_file(FOLDER / "with_opacus.py", level="quick")
    row = RESULTS["Opacus"]["rows"][variant]
    assert found.verdict == row["verdict"]
    refuted = {name for name, check in row["checks"].items() if check["holds"] is False}
    assert {each.name for each in found.refuted_by} == refuted
