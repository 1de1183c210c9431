"""The benchmark of speed measures every way of the suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "speed.py"


def test_every_mechanism_of_the_factored_engine_is_measured(tmp_path: Path) -> None:
    """A way that fails is a row without a time, so a mistake of the benchmark's would not show."""
    words = ["--output", tmp_path, "--only", "logistic, digits", "--repetitions", 1, "--batch", 8]
    words += ["--threads", 1]
    subprocess.run([sys.executable, SCRIPT, *map(str, words)], check=True, timeout=300)
    table = pd.read_csv(tmp_path / "speed.csv")
    ours = table[table["engine"] == "factored"].set_index("query")
    missing = ours.index[ours["seconds"].isna()]
    assert list(missing) == ["whole step, dropout 0.1"]  # a linear model has no dropout
    assert (table["deviation"].dropna() < 1e-4).all()
    page = (tmp_path / "speed.md").read_text()
    row = page.partition("## Cost of each mechanism")[2].partition("| logistic, digits |")[2]
    assert "—" not in row.partition("\n")[0]
    assert row.partition("\n")[0].count("|") == 10
