"""The figure of trade-off curves: which lines it has, and that they are bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reporting_data import drawn, run_row, write_table
from scipy.special import ndtr, ndtri

from clipnoise.privacy.participation import Participation
from clipnoise.privacy.profile import privacy_profile
from clipnoise.report.records import read_runs
from clipnoise.studies.columns import RUN_COLUMNS


def figure_of(folder: Path, *rows: dict[str, Any]) -> Any:
    made = [run_row(**row, seed=number) for number, row in enumerate(rows)]
    return drawn("trade-off", read_runs(write_table(folder / "runs.parquet", RUN_COLUMNS, made)))


def titles(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_each_budget_is_a_line_whose_gaussian_is_exact(tmp_path: Path) -> None:
    budgets = ("eps=1", "eps=8", "eps=1", "non-private")
    figure = figure_of(tmp_path, *({"budget": budget} for budget in budgets))
    assert titles(figure) == ["ε = 1, μ = 0.2", "ε = 8, μ = 1.6"]
    *curves, guess = figure.axes[0].get_lines()
    for mu, line in zip((0.2, 1.6), curves, strict=True):
        false, true = map(np.asarray, line.get_data())
        assert true == pytest.approx(ndtr(ndtri(false) + mu), rel=1e-6)
    assert np.array_equal(*guess.get_data())
    assert figure.axes[0].get_xscale() == "log"


def test_methods_are_named_where_one_budget_is_several_mechanisms(tmp_path: Path) -> None:
    sampled = privacy_profile(Participation(sampling_rate=0.1, steps=50), "rdp", 2.0)
    other = {"method": "dp-adam", "profile": sampled, "claim": "nominal", "adjacency": "zero-out"}
    same = {"method": "dp-pmlf", "profile": sampled}
    figure = figure_of(tmp_path, {"method": "dp-sgd"}, other, same)
    first, second, third = titles(figure)
    assert first == "ε = 1, dp-sgd, μ = 0.2"
    assert second.startswith("ε = 1, dp-pmlf, μ = ")
    assert third.startswith("ε = 1, nominal, zero-out adjacency, μ = ")


def test_lines_differ_in_grey_too(tmp_path: Path) -> None:
    figure = figure_of(tmp_path, *({"budget": f"eps={number}"} for number in range(1, 6)))
    lines = figure.axes[0].get_lines()[:-1]
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 5


def test_without_a_profile_the_figure_says_so(tmp_path: Path) -> None:
    figure = figure_of(tmp_path, {"budget": "non-private"}, {"profile": None})
    assert figure.axes[0].texts[0].get_text() == "no private run with a privacy profile"
