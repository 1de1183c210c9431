"""Sweep: accuracy over the values of one hyper-parameter, one line per budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from clipnoise.errors import unknown
from clipnoise.report.figures import canvas
from clipnoise.report.formats import Metric, budget, significant
from clipnoise.report.statistics import sample
from clipnoise.report.styles import style

COLUMNS = 2
WIDE = 50  # values that span more than this factor stand on a logarithmic axis
DEFAULT = "as computed"  # what a hyper-parameter without a value is called


Beside = Callable[[Axes, pd.DataFrame, str], None]


def draw(
    runs: pd.DataFrame,
    curves: pd.DataFrame,
    metric: Metric,
    over: str = "",
    beside: Beside | None = None,
) -> Figure:
    """Draw one panel per dataset, model and method, a line per budget.

    Args:
        runs: the panel's rows of runs.csv.
        curves: not used.
        metric: what the vertical axis shows.
        over: the hyper-parameter of the horizontal axis.
        beside: draws one more panel, from the rows whose method has the hyper-parameter.

    Raises:
        UserError: no method of the panel has the hyper-parameter.
    """
    runs = runs.assign(value=[_value(text, over) for text in runs["hyperparameters"]])
    known = {name for text in runs["hyperparameters"] if text for name in json.loads(str(text))}
    if over not in known:
        raise unknown("hyper-parameter", over, known, key="report.over")
    swept = runs[runs["value"] != ""]
    panels = list(swept.groupby(["dataset", "model", "method"], sort=False))
    wanted = len(panels) + (beside is not None)
    columns = min(COLUMNS, wanted)
    figure, axes = canvas.sheet(-(-wanted // columns), columns, height=2.4)
    every = _series(swept)
    for ax in axes.flat[wanted:]:
        ax.set_axis_off()
    if beside is not None:
        beside(axes.flat[len(panels)], swept, over)
    for ax, (key, own) in zip(axes.flat, panels, strict=False):
        ax.set_title(", ".join(map(str, key)))
        _panel(ax, own, every, metric)
        ax.set(xlabel=over, ylabel=metric.heading)
    canvas.legend(figure, every)
    return figure


def _value(text: Any, over: str) -> str:
    """Return the value of a hyper-parameter as JSON; empty where the method has none."""
    values: Mapping[str, Any] = json.loads(text) if text else {}
    return json.dumps(values[over]) if over in values else ""


def _series(runs: pd.DataFrame) -> list[canvas.Series]:
    """Return one series per budget; they differ in their look as variants of a method do."""
    budgets = runs["budget"].drop_duplicates()
    return [
        canvas.Series(str(text), budget(str(text)), True, style(str(runs["method"].iloc[0]), rank))
        for rank, text in enumerate(budgets)
    ]


def _panel(ax: Axes, runs: pd.DataFrame, every: Sequence[canvas.Series], metric: Metric) -> None:
    at_places = places(ax, list(dict.fromkeys(runs["value"])))
    for one in every:
        at = runs[runs["budget"] == one.method]
        found = [(x, sample(at[at["value"] == text], metric)) for text, x in at_places.items()]
        canvas.line_with_deviations(ax, found, one.style, metric)
    ax.grid(visible=False, axis="x")
    if canvas.completed(runs, metric).empty:
        canvas.say(ax, "no completed run")
    canvas.remark(ax, canvas.incomplete(runs, canvas.series(runs), metric))


def places(ax: Axes, texts: list[str]) -> dict[str, float]:
    """Set the horizontal axis and return where each value stands, from left to right.

    Numbers stand where they belong; anything else is evenly spaced in the order of the study.
    """
    values = [json.loads(text) for text in texts]
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values):
        found = {text: float(number) for number, text in enumerate(texts)}
    else:
        found = dict(sorted(zip(texts, numbers, strict=True), key=lambda pair: pair[1]))
        if min(numbers) > 0 and max(numbers) > WIDE * min(numbers):
            ax.set_xscale("log")
    ax.set_xticks(list(found.values()), [_said(json.loads(text)) for text in found])
    ax.xaxis.set_minor_locator(NullLocator())
    return found


def _said(value: Any) -> str:
    if value is None:
        return DEFAULT
    if isinstance(value, list):
        return ", ".join(map(_said, value))
    return significant(float(value)) if isinstance(value, int | float) else str(value)
