"""Figures and tables of diagnostics, and their comparison with published numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from reporting_data import draw_figure, drawn, item_data, run_row, write_table

from clipnoise.report.figures.styles import style
from clipnoise.report.published import compare, comparison_block
from clipnoise.report.records import read_runs
from clipnoise.studies.columns import RUN_COLUMNS

PHI = 1e-4
SHOWN = ("histograms", "noise-bias")


def diagnostics(corrected: bool = True) -> dict[str, Any]:
    """Return made-up diagnostics in the shape of a summary's."""
    kinds = ["clipped", "private", *(["corrected"] if corrected else [])]
    keys = ("min", "q1", "median", "q3", "max", "mean")
    return {
        "step": 1500,
        "phi": PHI,
        "statistics": {f"v_{kind}.{key}": 1e-6 for kind in kinds for key in keys}
        | {f"negative_fraction.{key}": 0.47 for key in keys},
        "histograms": {
            "first": {"low": -1, "high": 1, "log10": False, "counts": _counts("m", kinds[:2])},
            "second": {"low": -7, "high": -3, "log10": True, "counts": _counts("v", kinds)},
            "update": {"low": -1, "high": 1, "log10": False, "counts": _counts("update", kinds)},
        },
        "sorted": {f"v_{kind}": [0.0, 1e-7, 1e-6, 1e-5] for kind in kinds},
        "series": {
            "step": [500, 1000, 1500],
            "negative_fraction": [0.5, 0.46, 0.45],
            "clipped_gradient_norm": [0.3, 0.27, None],
        },
    }


def _counts(moment: str, kinds: list[str]) -> dict[str, list[int]]:
    return {f"{moment}_{kind}": [1, 2, 4, 1] for kind in kinds}


def runs(folder: Path, **changes: Any) -> Any:
    said = {"claim": "non-private", "budget": "sigma=0.4", "method": "dp-adambc"}
    rows = [run_row(seed=seed, diagnostics=diagnostics(), **{**said, **changes}) for seed in (1, 2)]
    rows.append(run_row(method="dp-sgd", budget="sigma=0.4"))
    return read_runs(write_table(folder / "runs.parquet", RUN_COLUMNS, rows))


def printed(table: Any) -> Any:
    data: Any = item_data("moments-table", table)
    return data.item.block(data)


def test_statistics_become_columns_and_stay_empty_without_diagnostics(tmp_path: Path) -> None:
    column = runs(tmp_path)["v_corrected.median"]
    assert column.iloc[0] == 1e-6
    assert np.isnan(column.iloc[2])


def test_histograms_stand_in_shares_with_phi_in_the_second_moments(tmp_path: Path) -> None:
    first, second, update = drawn("moments", runs(tmp_path)).axes
    assert (first.get_xlabel(), second.get_xlabel(), update.get_xlabel()) == (
        *("m̂", "v̂", "m̂ / √v̂"),
    )
    (phi,) = second.lines
    assert set(phi.get_xdata()) == {PHI}
    assert second.get_xscale() == "log"
    assert second.patches[0].get_data().edges[0] == pytest.approx(1e-7)
    assert first.patches[0].get_data().values.tolist() == [12.5, 25, 50, 12.5]
    looks = {patch.get_linestyle() for patch in second.patches}
    assert len(looks) >= 3, "told apart without colour"


def test_no_glyph_of_a_figure_is_missing_from_its_fonts(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    table = runs(tmp_path)
    for show in SHOWN:
        draw_figure(item_data("moments", table, show=show))
    assert [str(one.message) for one in recwarn if "Glyph" in str(one.message)] == []


def test_bias_norm_and_sorted_moments_have_the_look_of_the_method(tmp_path: Path) -> None:
    negative, norm, ranked = drawn("moments", runs(tmp_path), show="noise-bias").axes
    assert negative.lines[0].get_ydata().tolist() == [50, 46, 45]
    assert norm.lines[0].get_ydata()[:2].tolist() == [0.3, 0.27]
    curve, phi = ranked.lines
    assert set(phi.get_ydata()) == {PHI}
    for line in (negative.lines[0], norm.lines[0], curve):
        assert to_hex(line.get_color()).upper() == style("dp-adambc").colour


@pytest.mark.long
def test_the_share_of_second_moments_below_phi_is_a_number(tmp_path: Path) -> None:
    """Of 0, 1e-7, 1e-6 and 1e-5, evenly spaced in rank, two thirds are below 1e-6."""
    free = diagnostics() | {"phi": 0.0}
    noisy = diagnostics() | {"phi": 1e-6}
    rows = [
        run_row(method="adam", budget="non-private", diagnostics=free),
        run_row(method="dp-adam", budget="sigma=0.4", diagnostics=noisy),
    ]
    table = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))
    (_, _, ranked) = drawn("moments", table, show="noise-bias").axes
    assert [text.get_text() for text in ranked.texts] == ["67% below Φ", "Φ"]
    notes = printed(table).notes
    assert notes[0].startswith("67% of the second moments of adam are below the Φ of dp-adam")


@pytest.mark.parametrize("show", SHOWN)
def test_a_panel_without_diagnostics_says_so(show: str, tmp_path: Path) -> None:
    rows = [run_row(seed=seed) for seed in (1, 2)]
    table = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))
    assert b"no completed run with diagnostics" in draw_figure(
        item_data("moments", table, show=show)
    )


def test_the_table_of_moments_has_a_row_per_quantity_and_claims_no_privacy(tmp_path: Path) -> None:
    data = printed(runs(tmp_path))
    assert [row[:2] for row in data.rows] == [
        ["dp-adambc, σ = 0.4", "second moment, without noise"],
        ["", "second moment, with noise"],
        ["", "second moment, corrected"],
        ["", "share of coordinates below Φ"],
    ]
    assert data.rows[0][2:] == ["1 × 10⁻⁶"] * 6
    assert data.rows[3][2:] == ["0.47"] * 6
    assert "after step 1,500" in data.notes[0]
    assert "2 runs of 3 planned" in data.notes[0]
    assert "no ε" in data.notes[1]


def test_published_statistics_stand_beside_ours(tmp_path: Path) -> None:
    table = tmp_path / "published.csv"
    table.write_text(
        "dataset,model,method,budget,metric,mean,source\n"
        "digits,logistic,dp-adambc,sigma=0.4,v_corrected.median,3.000e-10,A paper\n"
        "digits,logistic,dp-adambc,sigma=0.4,v_private.max,5.524e-08,A paper\n"
    )
    found = compare(runs(tmp_path), ("comparison",), table)
    data = comparison_block(found)
    (first, _), (_, second) = (row.cells for row in data.grids[0].rows)
    assert (first.text, first.mark) == ("1 × 10⁻⁶ ± 0", "§")
    assert first.published == "3.000 × 10⁻¹⁰"
    assert second.difference == "+9.448 × 10⁻⁷"
    assert any("after step 1,500" in note for note in data.notes)


def test_a_configuration_without_such_a_statistic_is_no_configuration_without_a_published_number(
    tmp_path: Path,
) -> None:
    table = tmp_path / "published.csv"
    table.write_text(
        "dataset,model,method,budget,metric,mean,source\n"
        "digits,logistic,dp-adambc,sigma=0.4,v_corrected.median,3.000e-10,A paper\n"
    )
    found = compare(runs(tmp_path), ("comparison",), table)
    assert found.unpublished == (), "dp-sgd completed and was not watched"
