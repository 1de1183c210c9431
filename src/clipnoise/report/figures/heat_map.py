"""Two swept hyper-parameters against each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clipnoise.report import records, statistics
from clipnoise.report.figures import canvas, places
from clipnoise.report.figures.sweeps import COLUMNS, line_names, swept
from clipnoise.report.formats import DASH, Metric

FRAME: Mapping[str, Any] = {"marker": "s", "markersize": 4, "markerfacecolor": "none"}


def draw(runs: pd.DataFrame, over: tuple[str, str], metric: Metric) -> Figure:
    """Draw one subplot per dataset, model, method, budget and setting of anything else.

    Args:
        runs: of a panel.
        over: the hyper-parameters from left to right and from top to bottom.
        metric: what is drawn.
    """
    across, down = over
    rows = swept(runs, across)
    rows = rows.assign(x=rows["value"])
    rows = swept(rows, down)
    rows = rows.assign(y=rows["value"], value=rows["x"] + " " + rows["value"])
    done = canvas.completed(rows, metric)
    if done.empty:
        return canvas.blank("no completed run")
    rows = rows.assign(line=line_names(rows))
    titled = canvas.groups(rows, "dataset", "model", "method", "line")
    figure, subplots = canvas.grid(titled, COLUMNS, height=2.4)
    ends = {
        task: (subset[metric.column].min(), subset[metric.column].max())
        for task, subset in records.split(done, "dataset", "model")
    }
    for ax, here in subplots:
        task = (str(here["dataset"].iloc[0]), str(here["model"].iloc[0]))
        _draw(ax, here, metric, ends.get(task, (0.0, 1.0)))
        ax.set(xlabel=across, ylabel=down)
    figure.suptitle(metric.heading, fontsize=9)
    return figure


def _draw(ax: Axes, runs: pd.DataFrame, metric: Metric, ends: tuple[float, float]) -> None:
    """Draw the means of the cells of one subplot in shades between two ends."""
    columns, rows = (places.in_order(list(dict.fromkeys(runs[name]))) for name in ("x", "y"))
    samples = [
        [statistics.sample(records.where(runs, x=x, y=y), metric) for x in columns] for y in rows
    ]
    means = metric.factor * np.array([[one.mean for one in line] for line in samples])
    words = np.array([[_said(one, metric) for one in line] for line in samples])
    low, high = (metric.factor * end for end in ends)
    canvas.cells(ax, means, words, low, high if high > low else low + 1)
    ax.set_xticks(range(len(columns)), [places.tick(text) for text in columns])
    ax.set_yticks(range(len(rows)), [places.tick(text) for text in rows])
    complete = np.array([[one.complete for one in line] for line in samples])
    able = np.where(complete, metric.sign * means, -np.inf)
    if complete.any():
        row, column = np.unravel_index(np.argmax(able), able.shape)
        colour = "white" if means[row, column] - low > 0.55 * (high - low) else canvas.INK
        ax.plot([column - 0.38], [row - 0.32], color=colour, **FRAME)


def _said(sample: statistics.Sample, metric: Metric) -> str:
    """Return what stands in a cell: the mean, and below it how many runs completed, if not all."""
    if not sample.planned:
        return ""
    mean = metric.show(sample.mean) if sample.n else DASH
    return f"{mean}\n{sample.runs} runs" if sample.runs else mean
