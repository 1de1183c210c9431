"""The benchmark of speed measures every way of the suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "speed.py"


@pytest.mark.long
def test_every_mechanism_of_the_factored_engine_is_measured(tmp_path: Path) -> None:
    """A way that fails is a row without a time, so a mistake of the benchmark's would not show."""
    words = ["--output", tmp_path, "--only", "digits", "--repetitions", 1, "--batch", 8]
    words += ["--threads", 1]
    subprocess.run([sys.executable, SCRIPT, *map(str, words)], check=True, timeout=300)
    measured = pd.read_csv(tmp_path / "speed.csv")
    table = measured[measured["network"] == "logistic, digits"]
    ours = table[table["engine"] == "factored"].set_index("query")
    missing = ours.index[ours["seconds"].isna()]
    assert list(missing) == ["whole step, dropout 0.1"]  # a linear model has no dropout
    assert (table["deviation"].dropna() < 1e-4).all()
    page = (tmp_path / "speed.md").read_text()
    section = page.partition("## Cost of each mechanism")[2].partition("\n## ")[0]
    row = section.partition("| logistic, digits |")[2].partition("\n")[0]
    assert "—" not in row
    assert row.count("|") == 10
    assert "cnn-small, digits" in page
    assert "cnn-small, digits" not in section  # only three networks have these rows
    bare = table[table["engine"] == "factored, without norms"]
    assert bare["seconds"].notna().tolist() == [True] * 3
