"""Methods stand beside the best constant prediction; one that does not exceed it is not best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.legend import Legend
from matplotlib.text import Text
from reporting_data import curve_rows, drawn, run_row, write_table

from clipnoise.report.records import read_curves, read_runs
from clipnoise.report.tables import build_table
from clipnoise.report.verdict import verdict_data
from clipnoise.studies.columns import CURVE_COLUMNS, RUN_COLUMNS

CHANCE = {"name": "majority class", "levels": {"test_accuracy": 0.4445, "test_loss": 0.69}}
LEARNED, STUCK = (0.80, 0.81, 0.79, 0.80, 0.78, 0.82), (0.4445,) * 6


def frame(folder: Path, levels: dict[str, tuple[float, ...]], **changes: Any) -> Any:
    rows = [
        run_row(
            method=method,
            seed=seed,
            test_accuracy=value,
            test_examples=1000,
            chance=CHANCE,
            budget="non-private" if method == "sgd" else "eps=1",
            **changes,
        )
        for method, values in levels.items()
        for seed, value in enumerate(values)
    ]
    return read_runs(write_table(folder / "runs.parquet", RUN_COLUMNS, rows))


def test_a_method_at_the_majority_class_is_never_called_best(tmp_path: Path) -> None:
    runs = frame(tmp_path, {"dp-sgd": STUCK, "dp-adam": (0.30, 0.31, 0.29, 0.3, 0.3, 0.3)})
    table = build_table(runs, "comparison")
    assert not any(table.leads(row, place) for row, place, _ in table.cells())
    section = verdict_data(runs, "")
    assert "none: the best is not shown to have learned" in section.table.rows[0]
    assert section.summary == "1 setting cannot be judged."


def test_a_method_that_learns_is_best_and_the_other_is_said_to_have_learned_nothing(
    tmp_path: Path,
) -> None:
    table = build_table(frame(tmp_path, {"dp-sgd": STUCK, "dp-adam": LEARNED}), "comparison")
    assert [row.label for row, place, _ in table.cells() if table.leads(row, place)] == ["dp-adam"]
    (note,) = [one for one in table.notes if one.startswith("Not shown to have learned")]
    assert "dp-sgd" in note
    assert "dp-adam" not in note
    (constant,) = table.block.grids[0].references
    assert (constant.label, constant.cells[0].text) == ("majority class", "44.45")


def test_a_reference_below_a_private_method_is_no_upper_bound(tmp_path: Path) -> None:
    low = frame(tmp_path, {"sgd": (0.6, 0.6, 0.6), "dp-sgd": STUCK, "dp-adam": LEARNED})
    notes = " ".join(build_table(low, "comparison").notes)
    assert "sgd is worse than a private method on digits, logistic: it is no upper bound" in notes
    high = frame(tmp_path, {"sgd": (0.9, 0.9, 0.9), "dp-sgd": STUCK, "dp-adam": LEARNED})
    assert "no upper bound" not in " ".join(build_table(high, "comparison").notes)


def words(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.findobj(Text)]


def test_the_name_of_the_majority_class_covers_no_data(tmp_path: Path) -> None:
    far = frame(tmp_path, {"dp-sgd": (0.9, 0.91, 0.92), "dp-adam": (0.93, 0.94, 0.95)})
    figure = drawn("ablation", far)
    figure.draw_without_rendering()
    (ax,) = figure.axes
    (name,) = ax.findobj(Legend)
    box = name.get_window_extent()
    for line in ax.lines:
        assert not any(box.contains(*point) for point in ax.transData.transform(line.get_xydata()))


def test_a_figure_of_accuracy_has_a_line_at_the_majority_class(tmp_path: Path) -> None:
    runs = frame(tmp_path, {"dp-sgd": STUCK, "dp-adam": LEARNED})
    (*_, ax) = drawn("accuracy-vs-epsilon", runs).axes[:1]
    assert "majority class: 44.45" in words(ax)
    assert any(list(line.get_ydata()) == pytest.approx([44.45, 44.45]) for line in ax.lines)


def test_a_majority_class_far_below_all_methods_leaves_them_the_axis(tmp_path: Path) -> None:
    far = frame(tmp_path, {"dp-sgd": (0.9, 0.91, 0.92), "dp-adam": (0.93, 0.94, 0.95)})
    (*_, ax) = drawn("accuracy-vs-epsilon", far).axes[:1]
    assert "majority class: 44.45" in words(ax)
    assert ax.get_ylim()[0] > 80


def has_level(line: Any) -> bool:
    """Return whether a line is at the level of the majority class, across or upright."""
    return any(
        list(values) == pytest.approx([44.45, 44.45])
        for values in (line.get_ydata(), line.get_xdata())
        if len(values) == 2
    )


@pytest.mark.parametrize("kind", ["sweep", "ablation", "curves"])
def test_every_figure_of_accuracy_has_the_line_if_it_leaves_the_methods_room(
    kind: str, tmp_path: Path
) -> None:
    options = {"over": "beta"} if kind == "sweep" else {}
    near, far = (0.5, 0.45, 0.55), (0.9, 0.91, 0.92)
    for levels, reached in ((near, True), (far, kind == "curves")):  # a curve begins at chance
        runs = frame(tmp_path, {"dp-sgd": levels}, hyperparameters=json.dumps({"beta": 1}))
        rows = curve_rows(runs.astype(object).fillna("").to_dict("records"))
        curves = read_curves(write_table(tmp_path / "curves.parquet", CURVE_COLUMNS, rows))
        (ax, *_) = drawn(kind, runs, curves, **options).axes
        assert "majority class: 44.45" in words(ax)
        assert any(map(has_level, ax.lines)) == reached
        low, high = ax.get_xlim() if kind == "ablation" else ax.get_ylim()
        assert (low < 44.45 < high) == reached
