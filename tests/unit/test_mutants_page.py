"""The pieces that are mutated: their files and tests exist, and the page has what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PIECES = yaml.safe_load((ROOT / "benchmarks" / "mutants.yaml").read_text())
MEASURED = json.loads((RESULTS / "mutants.json").read_text())


@pytest.mark.parametrize("piece", PIECES)
def test_the_files_and_tests_of_a_piece_exist(piece: str) -> None:
    named = PIECES[piece]["files"] + PIECES[piece]["tests"]
    assert [name for name in named if not list(ROOT.glob(name.partition("::")[0]))] == []


def test_the_page_has_a_row_for_every_piece_with_what_was_counted() -> None:
    def row(name: str, one: dict[str, Any] | None) -> tuple[str, str]:
        return name, "not measured yet" if one is None else str(one["made"])

    page = (RESULTS / "mutants.md").read_text()
    rows = re.findall(r"^\| ([a-z-]+) \| (\d+|not measured yet) \|", page, re.MULTILINE)
    assert rows == [row(name, one) for name, one in MEASURED.items()]
    assert list(MEASURED) == list(PIECES)


@pytest.mark.parametrize("piece", PIECES)
def test_mutants_called_equivalent_are_of_functions_that_are_there(piece: str) -> None:
    starts = [name.removesuffix("*") for name in PIECES[piece]["files"]]
    every = {path.relative_to(ROOT): path for path in (ROOT / "src").rglob("*.py")}
    files = [path for name, path in every.items() if str(name).startswith(tuple(starts))]
    text = " ".join(line.strip() for path in files for line in path.open())
    for one in PIECES[piece].get("equivalent", ()):
        assert f"def {one['function'].rpartition('.')[2]}(" in text
        assert one["why"]
