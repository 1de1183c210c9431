"""Ablation: one line per variant, mean ± standard deviation with every seed beside it, per ε."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clipnoise.report.figures import canvas
from clipnoise.report.formats import Metric
from clipnoise.report.statistics import sample

COLUMNS = 3


def draw(data: canvas.FigureData) -> Figure:
    """Draw one subplot per dataset, model and budget, the variants down the left side."""
    every = canvas.series(data.runs)
    height = 0.9 + 0.3 * len(every)
    titled = canvas.by_budget(data.runs)
    figure, subplots = canvas.grid(titled, COLUMNS, height=height, sharey=True)
    for ax, runs in subplots:
        dots(ax, runs, every, data.metric)
    return figure


def dots(ax: Axes, runs: pd.DataFrame, every: Sequence[canvas.Series], metric: Metric) -> None:
    """Draw the mean ± standard deviation of each series on a row of its own, seeds below it.

    Args:
        ax: the axes to draw into.
        runs: rows of runs.csv of one dataset, model and budget.
        every: the series, from top to bottom.
        metric: what the horizontal axis shows.
    """
    for height, series in enumerate(every):
        _row(ax, series.of(runs), series, height, metric)
    canvas.label_rows(ax, [series.title for series in every])
    ax.set_xlabel(metric.heading)
    ax.spines["left"].set_visible(False)
    ax.margins(x=0.08)
    if canvas.completed(runs, metric).empty:
        ax.set_xticks([])
        canvas.say(ax, "no completed run")


def _row(ax: Axes, runs: pd.DataFrame, series: canvas.Series, height: int, metric: Metric) -> None:
    values = sample(runs, metric)
    if values.runs:
        ax.text(
            1.01,
            height,
            f"{values.runs} runs",
            transform=ax.get_yaxis_transform(),
            va="center",
            fontsize=7,
            color=canvas.PALE,
        )
    if not values.n:
        return
    seeds = [value * metric.factor for value in values.values.values()]
    mean, deviation = values.mean * metric.factor, values.deviation * metric.factor
    ax.plot(seeds, [height + 0.25] * len(seeds), "|", color=canvas.PALE, markersize=4, zorder=2)
    ax.errorbar(
        [mean],
        [height],
        xerr=[deviation],
        color=series.style.colour,
        marker=series.style.marker,
        markersize=6,
        elinewidth=1.2,
        capsize=3,
        zorder=3,
    )
