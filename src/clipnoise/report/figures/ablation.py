"""Ablation: one line per variant, mean ± standard deviation with every seed beside it, per ε."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clipnoise.report.figures import canvas
from clipnoise.report.formats import Metric, budget
from clipnoise.report.statistics import sample

COLUMNS = 3


def draw(runs: pd.DataFrame, curves: pd.DataFrame, metric: Metric) -> Figure:
    """Draw one panel per dataset, model and budget, the variants down the left side.

    Args:
        runs: the panel's rows of runs.csv.
        curves: not used.
        metric: what the horizontal axis shows.
    """
    every = canvas.series(runs)
    panels = [
        (f"{dataset}, {model}, {budget(str(text))}", own)
        for (dataset, model), pair in canvas.groups(runs)
        for text, own in pair.groupby("budget", sort=False)
    ]
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    height = 0.9 + 0.3 * len(every)
    figure, axes = canvas.sheet(rows, columns, height=height, sharey=True)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for ax, (title, own) in zip(axes.flat, panels, strict=False):
        ax.set_title(title)
        dots(ax, own, every, metric)
    return figure


def dots(ax: Axes, runs: pd.DataFrame, every: Sequence[canvas.Series], metric: Metric) -> None:
    """Draw the mean ± standard deviation of each series on a line of its own, seeds below it.

    Args:
        ax: where.
        runs: rows of runs.csv of one dataset, model and budget.
        every: the series, from top to bottom.
        metric: what the horizontal axis shows.
    """
    for height, one in enumerate(every):
        _row(ax, one.of(runs), one, height, metric)
    ax.set(xlabel=metric.heading, ylim=(len(every) - 0.4, -0.6))
    ax.set_yticks(range(len(every)), [one.title for one in every])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.margins(x=0.08)
    if canvas.completed(runs, metric).empty:
        ax.set_xticks([])
        canvas.say(ax, "no completed run")


def _row(ax: Axes, runs: pd.DataFrame, one: canvas.Series, height: int, metric: Metric) -> None:
    values = sample(runs, metric)
    if values.runs:
        place = ax.get_yaxis_transform()
        said: dict[str, Any] = {
            "transform": place,
            "va": "center",
            "fontsize": 7,
            "color": canvas.PALE,
        }
        ax.text(1.01, height, f"{values.runs} runs", **said)
    if not values.n:
        return
    seeds = [value * metric.factor for value in values.values.values()]
    mean, deviation = values.mean * metric.factor, values.deviation * metric.factor
    ax.plot(seeds, [height + 0.25] * len(seeds), "|", color=canvas.PALE, markersize=4, zorder=2)
    ax.errorbar(
        [mean],
        [height],
        xerr=[deviation],
        color=one.style.colour,
        marker=one.style.marker,
        markersize=6,
        elinewidth=1.2,
        capsize=3,
        zorder=3,
    )
