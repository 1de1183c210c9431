"""What figures across tasks share: subplots per budget, means with intervals, and scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from clipnoise.report.baseline import scored
from clipnoise.report.figures import canvas
from clipnoise.report.formats import Metric, budget, count
from clipnoise.report.records import private_or_all, split
from clipnoise.report.statistics import Scores, interquartile_interval

COLUMNS = 3
TASK = ("dataset", "model")


def subplots(runs: pd.DataFrame) -> tuple[list[canvas.Series], list[tuple[str, pd.DataFrame]]]:
    """Return the private series, and the private runs of each budget with a title."""
    private = private_or_all(runs)
    subplots = [
        (f"{budget(text)}, {count(len(canvas.groups(rows, *TASK)), 'task')}", rows)
        for (text,), rows in split(private, "budget")
    ]
    return canvas.series(private), subplots


def rows_of(
    every: list[canvas.Series], titled: list[tuple[str, pd.DataFrame]]
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """Return a figure whose subplots have a row for each series."""
    return canvas.grid(titled, COLUMNS, height=0.9 + 0.22 * len(every), sharey=True)


def mean(ax: Axes, height: int, series: canvas.Series, scores: Scores, metric: Metric) -> None:
    """Draw the interquartile mean of scores and its interval; an arrow has no end."""
    if not scores:
        return
    found = interquartile_interval(scores)
    value, low, high = (metric.sign * end for end in (found.mean, found.low, found.high))
    if not np.isfinite(value):
        place = ax.get_yaxis_transform()
        ax.text(0.5, height, "over a quarter diverged", transform=place, ha="center", va="center")
        return
    look, middle = series.style, metric.factor * value
    if np.isnan(low):  # one seed
        canvas.dot(ax, middle, height, look)
        return
    span = [metric.factor * end if np.isfinite(end) else middle for end in (low, high)]
    ax.plot(span, [height] * 2, color=look.colour, linewidth=2.2)
    for end in (low, high):
        if not np.isfinite(end):  # as many runs may have diverged as leave no mean
            ax.annotate(
                "",
                (float(end > 0), height),
                (middle, height),
                xycoords=ax.get_yaxis_transform(),
                textcoords="data",
                arrowprops={"arrowstyle": "->", "color": look.colour, "linewidth": 1.2},
            )
    canvas.dot(ax, middle, height, look)


def partial(scores: Scores, runs: pd.DataFrame) -> str:
    """Return `n/N tasks` for scores on n of the N tasks of some runs; "" for all or none."""
    count = len(canvas.groups(runs, *TASK))
    return f"{len(scores)}/{count} tasks" if 0 < len(scores) < count else ""


def scores(
    runs: pd.DataFrame, metric: Metric, levels: Mapping[Any, float] | None = None
) -> list[NDArray[np.float64]]:
    """Return the scores over seeds of each task, over its level if it has one.

    A diverged run scores −∞; a missing one has no score.
    """
    found = {task: list(scored(rows, metric).values()) for task, rows in split(runs, *TASK)}
    level = levels or {}
    return [
        np.array(values, dtype=np.float64) - level.get(task, 0.0)
        for task, values in found.items()
        if values
    ]
