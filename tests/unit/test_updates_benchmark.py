"""The benchmark of what methods take beside gradients has a row for each of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from clipnoise.methods.base import methods

ROOT = Path(__file__).parents[2]
PAGE = "updates.md"


def measured(page: Path) -> set[str]:
    return set(re.findall(r"^\| ([a-z0-9-]+) \| [\d,]+ \|", page.read_text(), re.MULTILINE))


def test_every_method_has_been_measured() -> None:
    assert measured(ROOT / "benchmarks" / "results" / PAGE) == set(methods())


@pytest.mark.long
def test_the_benchmark_measures_methods_that_are_asked_for(tmp_path: Path) -> None:
    asked = ["dp-sgd", "dp-prototypes", "dp-fedavg"]
    words = [sys.executable, ROOT / "benchmarks" / "updates.py", "--steps", "1", "--only", *asked]
    subprocess.run([*map(str, words), "--output", tmp_path], check=True, timeout=300)
    assert measured(tmp_path / PAGE) == set(asked)
