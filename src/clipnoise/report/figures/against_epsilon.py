"""Accuracy against ε: mean ± standard deviation per method, non-private references as lines."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from clipnoise.report.figures import canvas
from clipnoise.report.formats import Metric, significant
from clipnoise.report.statistics import sample

DODGE = 0.03  # width of the fan of error bars at one ε, as a share of the axis in decades


def draw(runs: pd.DataFrame, curves: pd.DataFrame, metric: Metric) -> Figure:
    """Draw one panel per dataset and model.

    Args:
        runs: the panel's rows of runs.csv.
        curves: not used.
        metric: what the vertical axis shows.
    """
    every = canvas.series(runs)
    found = canvas.groups(runs)
    columns = min(2, len(found))
    rows = -(-len(found) // columns)
    figure, axes = canvas.sheet(rows, columns, height=2.4)
    for ax in axes.flat[len(found) :]:
        ax.set_axis_off()
    for ax, ((dataset, model), own) in zip(axes.flat, found, strict=False):
        ax.set_title(f"{dataset}, {model}")
        _panel(ax, own, every, metric)
    canvas.legend(figure, every)
    return figure


def _panel(ax: Axes, runs: pd.DataFrame, every: list[canvas.Series], metric: Metric) -> None:
    runs = runs.assign(at=runs["epsilon"].fillna(runs["epsilon_achieved"]))
    ax.set(xscale="log", xlabel="Privacy budget ε", ylabel=metric.heading)
    private = [one for one in every if one.private]
    for rank, one in enumerate(private):
        _line(ax, one.of(runs), one, _dodge(rank, len(private)), metric)
    for one in every:
        if not one.private:
            _reference(ax, one.of(runs), one, metric)
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


def _dodge(rank: int, methods: int) -> float:
    """Return the factor that sets a method's error bars beside those of the others."""
    return float(10 ** (DODGE * (rank - (methods - 1) / 2)))


def _line(ax: Axes, runs: pd.DataFrame, one: canvas.Series, shift: float, metric: Metric) -> None:
    points = [(float(str(at)) * shift, sample(own, metric)) for at, own in runs.groupby("at")]
    canvas.line_with_deviations(ax, points, one.style, metric)


def _reference(ax: Axes, runs: pd.DataFrame, one: canvas.Series, metric: Metric) -> None:
    values = sample(runs, metric)
    if not values.n:
        return
    mean, deviation = values.mean * metric.factor, values.deviation * metric.factor
    ax.axhline(mean, color=one.style.colour, linestyle=one.style.line, zorder=1)
    if values.n > 1:
        band = (mean - deviation, mean + deviation)
        ax.axhspan(*band, color=one.style.colour, alpha=0.12, linewidth=0, zorder=0)
