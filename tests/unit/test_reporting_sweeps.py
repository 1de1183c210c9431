"""Figures over a hyper-parameter, and along the ε that is spent."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from reporting_data import curve_rows, draw_figure, drawn, item_data, run_row, write_table

from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.report.figures.momentum import momentum_reduction
from clipnoise.report.records import read_curves, read_runs
from clipnoise.studies.columns import CURVE_COLUMNS, RUN_COLUMNS
from clipnoise.studies.items import ReportItem

SPENT = {0: 0.0, 40: 0.4, 80: 0.6, 120: 0.8, 160: 0.9, 200: 1.0}


def tables(folder: Path, rows: list[dict[str, Any]]) -> tuple[Any, Any]:
    runs = write_table(folder / "runs.parquet", RUN_COLUMNS, rows)
    points = [
        {**row, "epsilon_spent": "" if row["budget"] == "non-private" else SPENT[row["step"]]}
        for row in curve_rows(rows)
    ]
    curves = write_table(folder / "curves.parquet", CURVE_COLUMNS, points)
    return read_runs(runs), read_curves(curves)


def over(name: str, values: Iterable[Any], budgets: tuple[str, ...] = ("eps=2", "eps=8")) -> Any:
    return [
        run_row(
            method="dp-pmlf",
            label=f"{name} = {value}",
            hyperparameters=json.dumps({"id": "dp-pmlf", name: value}),
            budget=budget,
            seed=seed,
            test_accuracy=0.8 + 0.01 * rank,
        )
        for rank, value in enumerate(values)
        for budget in budgets
        for seed in (1, 2)
    ]


def lines(ax: Any) -> list[tuple[list[float], list[float]]]:
    return [
        (list(bar.lines[0].get_xdata()), list(bar.lines[0].get_ydata())) for bar in ax.containers
    ]


def test_a_sweep_has_one_line_per_budget_over_the_values_in_their_order(tmp_path: Path) -> None:
    points = tables(tmp_path, over("beta", [0.9, 0.1, 0.5]))
    ax = drawn("sweep", *points, over="beta").axes[0]
    found = lines(ax)
    assert len(found) == 2
    for x, y in found:
        assert x == [0.1, 0.5, 0.9]
        assert y == pytest.approx([81, 82, 80])
    assert ax.get_xscale() == "linear"


def both(values: dict[tuple[float, float], float]) -> Any:
    """Return runs of two hyper-parameters that are swept together."""
    return [
        run_row(
            method="dp-sgd",
            label=f"{rate}, {norm}",
            hyperparameters=json.dumps({"id": "dp-sgd", "learning_rate": rate, "clip_norm": norm}),
            seed=seed,
            test_accuracy=accuracy,
        )
        for (rate, norm), accuracy in values.items()
        for seed in (1, 2)
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_a_second_swept_hyper_parameter_has_a_line_for_each_value(
    tmp_path: Path, order: int
) -> None:
    found = {(rate, norm): 0.5 + 0.1 * rate + 0.01 * norm for rate in (1, 2) for norm in (3, 4, 5)}
    rows = both(dict(list(found.items())[::order]))
    figure = drawn("sweep", *tables(tmp_path, rows), over="learning_rate")
    every = {tuple(round(y, 6) for y in ys): xs for xs, ys in lines(figure.axes[0])}
    assert every == {
        tuple(round(100 * found[rate, norm], 6) for rate in (1, 2)): [1, 2] for norm in (3, 4, 5)
    }
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {
        f"ε = 1, clip_norm {norm}" for norm in (3, 4, 5)
    }


def test_a_hyper_parameter_that_follows_from_the_swept_one_makes_no_line_of_its_own(
    tmp_path: Path,
) -> None:
    rows = both({(1, 3): 0.5, (2, 4): 0.6, (3, 5): 0.7})
    ax = drawn("sweep", *tables(tmp_path, rows), over="learning_rate").axes[0]
    assert [x for x, _ in lines(ax)] == [[1, 2, 3]]


def test_two_runs_of_one_seed_that_no_setting_tells_apart_are_refused(tmp_path: Path) -> None:
    rows = [*both({(1, 3): 0.5}), *(row | {"label": "again"} for row in both({(1, 3): 0.6}))]
    with pytest.raises(UserError, match=r"two runs of '1, 3', 'again' have seed 1"):
        drawn("sweep", *tables(tmp_path, rows), over="learning_rate")


def test_values_of_many_sizes_stand_on_a_logarithmic_axis(tmp_path: Path) -> None:
    rows = over("gamma_prime", [1e-12, 1e-10, 1e-8])
    ax = drawn("sweep", *tables(tmp_path, rows), over="gamma_prime").axes[0]
    assert ax.get_xscale() == "log"


def test_values_that_are_no_numbers_are_evenly_spaced_as_in_the_study(tmp_path: Path) -> None:
    points = tables(tmp_path, over("phi", [1e-9, None, [0.5, 0.75]]))
    ax = drawn("sweep", *points, over="phi").axes[0]
    assert lines(ax)[0][0] == [0, 1, 2]
    said = [tick.get_text() for tick in ax.get_xticklabels()]
    assert said == ["1 × 10⁻⁹", "as computed", "0.5, 0.75"]


def test_a_momentum_sweep_also_shows_the_reduction_of_sampling_noise(tmp_path: Path) -> None:
    rows = [
        run_row(
            method="dp-pmlf",
            label=f"k = {k}",
            hyperparameters=json.dumps({"id": "dp-pmlf", "beta": 0.5, "history": k}),
            seed=seed,
        )
        for k in (2, 3, 4)
        for seed in (1, 2)
    ]
    runs, points = tables(tmp_path, rows)
    accuracy, reduction = drawn("sweep", runs, points, over="history", rho=True).axes
    (line,) = reduction.lines
    assert list(line.get_xdata()) == [2, 3, 4]
    assert list(line.get_ydata()) == pytest.approx([momentum_reduction(0.5, k) for k in (2, 3, 4)])
    assert [tick.get_text() for tick in reduction.get_xticklabels()] == ["2", "3", "4"]
    assert (accuracy.get_xlabel(), reduction.get_xlabel()) == ("history", "history k")


def test_a_momentum_sweep_is_over_one_of_two_hyper_parameters_and_needs_both(
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match="over: `rho` needs one of beta, history"):
        parse(ReportItem, {"kind": "sweep", "over": "phi", "rho": True})
    runs, points = tables(tmp_path, over("beta", [0.1, 0.5]))
    with pytest.raises(UserError, match="without a method with beta"):
        draw_figure(item_data("sweep", runs, points, over="beta", rho=True))


def test_a_sweep_figure_marks_incomplete_values(tmp_path: Path) -> None:
    rows = over("beta", [0.1, 0.5])
    rows[0] = run_row(**{**_identity(rows[0]), "status": "diverged"})
    runs, points = tables(tmp_path, rows)
    svg = draw_figure(item_data("sweep", runs, points, over="beta")).decode()
    said = html.unescape(" ".join(re.findall(r"<!-- (.*?) -->", svg)))
    assert "beta = 0.1 at ε = 2: 1/2 runs" in said


def _identity(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("method", "label", "hyperparameters", "budget", "seed")
    return {name: row[name] for name in names}


def test_a_sweep_over_what_no_method_has_names_the_nearest(tmp_path: Path) -> None:
    runs, points = tables(tmp_path, over("beta", [0.1, 0.5]))
    with pytest.raises(UserError, match=r"report\.over.*Did you mean 'beta'"):
        draw_figure(item_data("sweep", runs, points, over="betta"))


def test_over_is_required_for_sweeps_and_refused_otherwise() -> None:
    assert parse(ReportItem, {"kind": "sweep", "over": "beta"})
    with pytest.raises(UserError, match="over: required, but not given"):
        parse(ReportItem, {"kind": "sweep"})
    with pytest.raises(UserError, match="over: unknown key"):
        parse(ReportItem, {"kind": "table", "over": "beta"})


def test_along_epsilon_the_horizontal_axis_is_what_was_spent(tmp_path: Path) -> None:
    rows = [run_row(seed=seed) for seed in (1, 2)]
    rows += [run_row(method="sgd", budget="non-private", seed=seed) for seed in (1, 2)]
    runs, points = tables(tmp_path, rows)
    ax = drawn("curves", runs, points, along="epsilon").axes[0]
    (line,) = (one for one in ax.lines if len(one.get_xdata()))
    assert list(line.get_xdata()) == list(SPENT.values())
    assert ax.get_xlabel() == "Privacy spent ε"


def test_a_heat_map_has_a_cell_for_each_pair_and_marks_the_best_one(tmp_path: Path) -> None:
    pairs = {(rate, norm): 0.5 + rate / 10 + norm / 100 for rate in (3.0, 1.0) for norm in (1, 2)}
    rows = both(pairs)
    rows[-1] |= {"status": "diverged", "test_accuracy": ""}  # of the pair (1, 2)
    figure = drawn("sweep", *tables(tmp_path, rows), over=("learning_rate", "clip_norm"))
    (ax,) = figure.axes
    assert [text.get_text() for text in ax.texts] == ["61.00", "81.00", "62.00\n1/2 runs", "82.00"]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["1", "3"]
    shades = ax.images[0].get_array()
    assert shades.tolist() == [[pytest.approx(61), pytest.approx(81)], [62, 82]]
    (mark,) = ax.lines
    assert (round(mark.get_xdata()[0]), round(mark.get_ydata()[0])) == (1, 1)


def test_a_heat_map_marks_the_lowest_loss_and_separates_what_else_is_swept(tmp_path: Path) -> None:
    rows = both({(rate, norm): 0.5 for rate in (1.0, 3.0) for norm in (1, 2)})
    for row in rows:
        options = json.loads(row["hyperparameters"])
        loss = options["learning_rate"] * options["clip_norm"]
        row |= {"test_loss": loss, "rank_by": "test_loss"}
    others = [
        {**row, "hyperparameters": json.dumps({**json.loads(row["hyperparameters"]), "beta": 1})}
        for row in rows
    ]
    points = tables(tmp_path, [*rows, *others])
    figure = drawn("sweep", *points, over=("learning_rate", "clip_norm"))
    assert len(figure.axes) == 2
    for ax in figure.axes:
        (mark,) = ax.lines
        assert (round(mark.get_xdata()[0]), round(mark.get_ydata()[0])) == (0, 0)


def test_a_heat_map_over_what_no_method_has_is_refused(tmp_path: Path) -> None:
    item = parse(ReportItem, {"kind": "sweep", "over": ["learning_rate", "norm"]})
    with pytest.raises(UserError, match=r"report\.0\.over: unknown hyper-parameter 'norm'"):
        item.check([{"id": "dp-sgd"}], [], "study.yaml", "report.0")
