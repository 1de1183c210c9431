"""Figures across tasks: interquartile means, performance profiles, critical differences."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from clipnoise.report.across import (
    Ranking,
    Scores,
    bootstrap,
    interquartile_mean,
    profile,
    ranking,
)
from clipnoise.report.figures import canvas
from clipnoise.report.formats import Metric, budget, count
from clipnoise.report.records import is_private

COLUMNS = 3
THRESHOLDS = 101


def draw_means(runs: pd.DataFrame, curves: pd.DataFrame, metric: Metric) -> Figure:
    """Draw the interquartile mean over the runs of all tasks with its interval, per budget.

    Args:
        runs: the panel's rows of runs.csv.
        curves: not used.
        metric: what the horizontal axis shows.
    """
    every, panels = _panels(runs)
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    tall = 0.9 + 0.22 * len(every)
    figure, axes = canvas.sheet(rows, columns, height=tall, sharey=True)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for ax, (text, own) in zip(axes.flat, panels, strict=False):
        for height, one in enumerate(every):
            _mean(ax, height, one, _scores(one.of(own), metric), metric)
        ax.set_title(f"{budget(text)}, {count(len(canvas.groups(own)), 'task')}")
        ax.set(xlabel=f"IQM of {metric.heading[0].lower()}{metric.heading[1:]}")
        ax.set_ylim(len(every) - 0.4, -0.6)
        ax.set_yticks(range(len(every)), [one.title for one in every])
        ax.tick_params(axis="y", length=0)
    return figure


def _mean(ax: Axes, height: int, one: canvas.Series, scores: Scores, metric: Metric) -> None:
    if not scores:
        return
    sign = 1 if metric.higher_is_better else -1
    value = sign * float(interquartile_mean(np.concatenate(scores)))
    low, high = (sign * float(end) for end in bootstrap(scores, interquartile_mean))
    if not np.isfinite(value):
        place = ax.get_yaxis_transform()
        ax.text(0.5, height, "over a quarter diverged", transform=place, ha="center", va="center")
        return
    ends = [end for end in (low, high) if np.isfinite(end)]
    span = [metric.factor * end for end in (ends if len(ends) == 2 else [value, *ends])]
    ax.plot(span, [height] * len(span), color=one.style.colour, linewidth=2.2)
    ax.plot(
        [metric.factor * value], [height], one.style.marker, color=one.style.colour, markersize=5
    )


def draw_profiles(runs: pd.DataFrame, curves: pd.DataFrame, metric: Metric) -> Figure:
    """Draw the share of runs, over all tasks, that reach each score, with its interval, per budget.

    Args:
        runs: the panel's rows of runs.csv.
        curves: not used.
        metric: what the horizontal axis shows.
    """
    every, panels = _panels(runs)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = canvas.sheet(rows, columns, height=2.6, sharey=True)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for ax, (text, own) in zip(axes.flat, panels, strict=False):
        found = {one: _scores(one.of(own), metric) for one in every}
        values = [task for scores in found.values() for task in scores]
        finite = [score for task in values for score in task[np.isfinite(task)]]
        if not finite:
            canvas.say(ax, "no completed run")
            continue
        at = np.linspace(min(finite), max(finite), THRESHOLDS)
        for one, scores in found.items():
            if scores:
                _profile(ax, one, scores, at, metric)
        ax.set(
            title=f"{budget(text)}, {count(len(canvas.groups(own)), 'task')}", ylim=(-0.02, 1.02)
        )
        better = "at least" if metric.higher_is_better else "at most"
        ax.set(xlabel=f"{metric.heading}: {better}", ylabel="Share of runs")
    canvas.legend(figure, every)
    return figure


def _profile(
    ax: Axes, one: canvas.Series, scores: Scores, at: NDArray[np.float64], metric: Metric
) -> None:
    share = profile(at)
    low, high = bootstrap(scores, share, resamples=500)
    x = at * metric.factor * (1 if metric.higher_is_better else -1)
    colour, line = one.style.colour, one.style.line
    ax.fill_between(x, low, high, color=colour, alpha=0.10, linewidth=0)
    ax.plot(
        x,
        share(np.concatenate(scores)),
        color=colour,
        linestyle=line,
        marker=one.style.marker,
        markevery=20,
        markersize=4,
    )


def draw_differences(runs: pd.DataFrame, curves: pd.DataFrame, metric: Metric) -> Figure:
    """Draw the critical-difference diagram: average ranks over datasets, bars over cliques.

    Budgets and models of one dataset are not independent, so a method has one score per dataset:
    its mean over them and over seeds.

    Args:
        runs: the panel's rows of runs.csv.
        curves: not used.
        metric: what methods are ranked by.
    """
    every, _ = _panels(runs)
    names = {one.title: one for one in every}
    private = runs[is_private(runs)]
    datasets = list(private["dataset"].drop_duplicates())
    scores = {
        one.title: [_level(one.of(private), dataset, metric) for dataset in datasets]
        for one in every
    }
    whole = {name: found for name, found in scores.items() if not np.isnan(found).any()}
    if len(whole) < 2:
        return canvas.blank("fewer than two methods have runs on every dataset")
    found = ranking(whole)
    figure, axes = canvas.sheet(1, 1, height=1.1 + 0.2 * len(whole))
    _diagram(axes[0, 0], found, {name: names[name] for name in found.ranks})
    return figure


def _diagram(ax: Axes, found: Ranking, series: dict[str, canvas.Series]) -> None:
    last = len(found.ranks)
    for height, (name, rank) in enumerate(found.ranks.items()):
        look = series[name].style
        ax.plot([rank, last + 0.4], [height, height], color="#DDDDDD", linewidth=0.6, zorder=1)
        ax.plot([rank], [height], look.marker, color=look.colour, markersize=5, zorder=3)
        ax.text(last + 0.5, height, name, va="center", fontsize=8)
    heights = {name: height for height, name in enumerate(found.ranks)}
    for members in found.cliques:
        x = min(found.ranks[name] for name in members) - 0.25
        span = [heights[members[0]] - 0.3, heights[members[-1]] + 0.3]
        ax.plot([x, x], span, color=canvas.INK, linewidth=2.5, solid_capstyle="butt")
    few = found.datasets < found.needed
    ax.set(xlim=(0.4, last + 0.4), ylim=(last - 0.4, -0.8), xlabel="Average rank (1 is best)")
    said = f"{count(found.datasets, 'dataset')}, {last} methods"
    if few:
        said += f": no difference can be significant below {found.needed} datasets"
    ax.set_title(said, loc="left")
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)


def _panels(runs: pd.DataFrame) -> tuple[list[canvas.Series], list[tuple[str, pd.DataFrame]]]:
    """Return the private series, and the private runs of each budget."""
    own = runs[is_private(runs)]
    own = own if len(own) else runs
    panels = [(str(text), rows) for text, rows in own.groupby("budget", sort=False)]
    return canvas.series(own), panels


def _scores(runs: pd.DataFrame, metric: Metric) -> list[NDArray[np.float64]]:
    """Return the scores over seeds of each task; a diverged run has −∞, a missing one none."""
    sign = 1 if metric.higher_is_better else -1
    tasks = []
    for _, own in runs.groupby(["dataset", "model"], sort=False):
        ended = own[own["status"].isin(["completed", "diverged"])]
        values = np.where(
            (ended["status"] == "completed") & np.isfinite(ended[metric.column]),
            sign * ended[metric.column],
            -np.inf,
        )
        if len(values):
            tasks.append(values.astype(np.float64))
    return tasks


def _level(runs: pd.DataFrame, dataset: str, metric: Metric) -> float:
    """Return the mean score on a dataset, over models, budgets and seeds; NaN where one lacks."""
    own = runs[runs["dataset"] == dataset]
    found = [_scores(rows, metric) for _, rows in own.groupby(["model", "budget"], sort=False)]
    if not found or not all(found):
        return float("nan")
    return float(np.mean([np.concatenate(scores).mean() for scores in found]))
