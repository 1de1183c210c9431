"""The benchmark of processes that take a step together measures one process and two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "ranks.py"
FLOAT32, INPUTS, CLASSES = 4, 64, 10


def measured(folder: Path, *words: str) -> pd.DataFrame:
    """Run the benchmark at its smallest, and return its rows by number of processes."""
    command = [sys.executable, SCRIPT, "--output", folder, "--steps", "1", "--rounds", "1"]
    subprocess.run([*map(str, command), "--batch", "4", *words], check=True, timeout=900)
    return pd.read_csv(folder / "ranks.csv").set_index("processes")


@pytest.mark.long
def test_one_process_and_two_are_measured_on_the_same_network(tmp_path: Path) -> None:
    before = {"network": ["another", "logistic, digits"], "batch": [4, 4], "processes": [1, 2]}
    kept = pd.DataFrame({**before, "wall": 123.4, "ratio": 5.6, "load": 7.8})
    kept.to_csv(tmp_path / "ranks.csv", index=False)
    table = measured(tmp_path, "--only", "logistic, digits")
    assert list(table["network"]) == ["another", "logistic, digits", "logistic, digits"]
    rows = table[table["network"] == "logistic, digits"]
    assert list(rows.index) == [1, 2]
    parameters = (INPUTS + 1) * CLASSES
    assert (rows["trained"] == parameters).all()
    # The other process sends its share and gets the sum and the noise.
    assert list(rows["sent"]) == [0, 3 * FLOAT32 * parameters]
    assert (rows[["wall", "cpu", "peak_mb"]] >= 0).all(axis=None)
    assert rows.loc[1, "ratio"] == 1
    page = (tmp_path / "ranks.md").read_text()
    assert page.count("| logistic, digits |") == 2
    busy = next(line for line in page.splitlines() if line.startswith("| another |"))
    assert "7.8" in busy
    assert "123.4" not in busy
    assert "5.6" not in busy
