"""Methods one below the other: the mean ± standard deviation of each, and its seeds."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from clipnoise.report.figures import canvas
from clipnoise.report.formats import Metric
from clipnoise.report.statistics import sample


def dots(ax: Axes, runs: pd.DataFrame, every: Sequence[canvas.Series], metric: Metric) -> None:
    """Draw the mean ± standard deviation of each series on a row of its own, seeds below it."""
    for height, series in enumerate(every):
        _dot(ax, series.of(runs), series, height, metric)
    canvas.label_rows(ax, every)
    ax.set_xlabel(metric.heading)
    ax.spines["left"].set_visible(False)
    ax.margins(x=0.08)
    canvas.chance_line(ax, runs, metric, "x")
    if canvas.completed(runs, metric).empty:
        ax.set_xticks([])
        canvas.say(ax, "no completed run")


def _dot(ax: Axes, runs: pd.DataFrame, series: canvas.Series, height: int, metric: Metric) -> None:
    values = sample(runs, metric)
    if values.runs:
        canvas.beside(ax, height, f"{values.runs} runs", color=canvas.PALE)
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
