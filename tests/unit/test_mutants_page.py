"""The pieces that are mutated: their files and tests exist, and the page has what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PIECES = yaml.safe_load((ROOT / "benchmarks" / "mutants.yaml").read_text())
MEASURED = json.loads((ROOT / "benchmarks" / "results" / "mutants.json").read_text())


@pytest.mark.parametrize("piece", PIECES)
def test_the_files_and_tests_of_a_piece_exist(piece: str) -> None:
    named = PIECES[piece]["files"] + PIECES[piece]["tests"]
    assert [name for name in named if not list(ROOT.glob(name))] == []


def test_the_page_has_a_row_for_every_piece_that_was_measured() -> None:
    page = (ROOT / "benchmarks" / "results" / "mutants.md").read_text()
    rows = re.findall(r"^\| ([a-z-]+) \| (\d+) \|", page, re.MULTILINE)
    assert rows == [(name, str(one["mutants"])) for name, one in MEASURED.items()]
    assert set(MEASURED) <= set(PIECES)
