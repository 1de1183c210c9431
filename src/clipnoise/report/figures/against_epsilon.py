"""Accuracy against ε: mean ± standard deviation per method, non-private references as lines."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from clipnoise.report.figures import canvas
from clipnoise.report.formats import Metric, significant
from clipnoise.report.statistics import sample

DODGE = 0.03  # decades between the error bars of neighbouring methods at the same ε


def draw(data: canvas.FigureData) -> Figure:
    """Draw one subplot per dataset and model."""
    every = canvas.series(data.runs)
    figure, subplots = canvas.grid(canvas.tasks(data.runs), 2, height=2.4)
    for ax, runs in subplots:
        _subplot(ax, runs, every, data.metric)
    canvas.legend(figure, every)
    return figure


def _subplot(ax: Axes, runs: pd.DataFrame, every: list[canvas.Series], metric: Metric) -> None:
    runs = runs.assign(at=runs["epsilon"].fillna(runs["epsilon_achieved"]))
    ax.set(xscale="log", xlabel="Privacy budget ε", ylabel=metric.heading)
    private = [series for series in every if series.private]
    for rank, series in enumerate(private):
        shift = 10 ** (DODGE * (rank - (len(private) - 1) / 2))
        points = [
            (float(str(at)) * shift, sample(subset, metric))
            for at, subset in series.of(runs).groupby("at")
        ]
        canvas.line_with_deviations(ax, points, series.style, metric)
    for series in every:
        if not series.private:
            _reference(ax, series.of(runs), series, metric)
    ticks = sorted(runs["at"].dropna().unique())
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(ticks, [significant(tick) for tick in ticks])
    ax.grid(visible=False, axis="x")
    if ticks:
        ax.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)
    if canvas.completed(runs, metric).empty:
        canvas.say(ax, "no completed run")
    canvas.remark(ax, canvas.incomplete(runs, every, metric))


def _reference(ax: Axes, runs: pd.DataFrame, series: canvas.Series, metric: Metric) -> None:
    values = sample(runs, metric)
    if not values.n:
        return
    mean, deviation = values.mean * metric.factor, values.deviation * metric.factor
    ax.axhline(mean, color=series.style.colour, linestyle=series.style.line, zorder=1)
    if values.n > 1:
        band = (mean - deviation, mean + deviation)
        ax.axhspan(*band, color=series.style.colour, alpha=0.12, linewidth=0, zorder=0)
