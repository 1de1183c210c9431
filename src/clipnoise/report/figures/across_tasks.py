"""Figures across tasks: interquartile means, profiles, ranks, closed gaps and changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from clipnoise.report.baseline import BASELINE, baseline_of, changes, gaps, scored
from clipnoise.report.figures import canvas
from clipnoise.report.figures.styles import Style
from clipnoise.report.formats import Metric, budget, count, decimal
from clipnoise.report.records import is_private, private_or_all, split, where
from clipnoise.report.statistics import (
    Ranking,
    Scores,
    bootstrap,
    interquartile_interval,
    profile,
    ranking,
)

COLUMNS = 3
TASK = ("dataset", "model")
LOWEST_GAP = -100.0  # %: as far below DP-SGD as training without privacy is above it
SHARE = Metric("", "Closed gap", "%", 100.0, 1, higher_is_better=True)
THRESHOLDS = 101
MANY, LEADERS = 10, 3  # of more lines than these, only the best of each subplot are named
TAIL = 0.05  # of the scores that lie to the left of a profile: one bad method would squeeze it


def draw_means(data: canvas.FigureData) -> Figure:
    """Draw the interquartile mean over the runs of all tasks with its interval, per budget."""
    every, titled = _subplots(data.runs)
    figure, subplots = _rows_of(every, titled)
    for ax, runs in subplots:
        for height, series in enumerate(every):
            _mean(ax, height, series, _scores(series.of(runs), data.metric), data.metric)
        heading = data.metric.heading
        ax.set_xlabel(f"IQM of {heading[0].lower()}{heading[1:]}")
        canvas.label_rows(ax, every)
    return figure


def _rows_of(
    every: list[canvas.Series], titled: list[tuple[str, pd.DataFrame]]
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """Return a figure whose subplots have a row for each series."""
    return canvas.grid(titled, COLUMNS, height=0.9 + 0.22 * len(every), sharey=True)


def _mean(
    ax: Axes,
    height: int,
    series: canvas.Series,
    scores: Scores,
    metric: Metric,
    lowest: float = -np.inf,
) -> None:
    """Draw a mean and its interval; one below the lowest value is written at the edge, too."""
    if not scores:
        return
    found = interquartile_interval(scores)
    value, low, high = (metric.sign * end for end in (found.mean, found.low, found.high))
    if not np.isfinite(value):
        place = ax.get_yaxis_transform()
        ax.text(0.5, height, "over a quarter diverged", transform=place, ha="center", va="center")
        return
    ends = [end for end in (low, high) if np.isfinite(end)]
    span = [metric.factor * end for end in (ends if len(ends) == 2 else [value, *ends])]
    look = series.style
    ax.plot(span, [height] * len(span), color=look.colour, linewidth=2.2)
    x = metric.factor * value
    canvas.dot(ax, x, height, look)
    if x < lowest:
        ax.annotate(
            f"◂ {decimal(x, 0)}", (lowest, height), (3, 0), textcoords="offset points",
            color=look.colour, fontsize=7, va="center",
        )  # fmt: skip


def draw_gaps(data: canvas.FigureData) -> Figure:
    """Draw the interquartile mean of the closed share of the privacy gap, per budget."""
    every, budgets = _subplots(data.runs)
    found = [gaps(data.runs, str(rows["budget"].iloc[0]), data.metric) for _, rows in budgets]
    titled = []
    for (title, rows), one in zip(budgets, found, strict=True):
        counted = f"{one.tasks - len(one.left_out)} of {count(one.tasks, 'task')}"
        titled.append((f"{title.partition(',')[0]}, {counted}", rows))
    figure, subplots = _rows_of(every, titled)
    for (ax, _), one in zip(subplots, found, strict=True):
        ax.axvline(0, color=canvas.PALE, linewidth=0.8)
        for height, series in enumerate(every):
            _mean(ax, height, series, one.shares.get(series.key, []), SHARE, LOWEST_GAP)
        if not one.shares:
            canvas.say(ax, "no gap to divide by")
        ax.set_xlim(left=max(ax.get_xlim()[0], LOWEST_GAP))
        ax.set_xlabel("Closed gap (%)")
        canvas.label_rows(ax, every)
    return figure


def draw_best_of(data: canvas.FigureData) -> Figure:
    """Draw what a search of k configurations finds, on average over tasks, per budget."""
    every, titled = _subplots(data.runs)
    figure, subplots = canvas.grid(titled, COLUMNS, height=3.2)
    metric = data.metric
    found = [{one: metric.factor * _best_of(one.of(runs)) for one in every} for _, runs in subplots]
    ranks = [{one: metric.sign * y[-1] for one, y in lines.items() if len(y)} for lines in found]
    named = _named(every, ranks)
    for (ax, _), lines in zip(subplots, found, strict=True):
        for series, y in lines.items():
            look = {**series.style.options, "markersize": 4} if series in named else canvas.THIN
            ax.plot(range(1, len(y) + 1), y, zorder=2 + (series in named), **look)
        if len(named) < len(every):
            _focus(ax, lines, named)
        ax.set_xlabel("Configurations tried")
    subplots[0][0].set_ylabel(metric.heading)
    _legend(figure, every, named, "that are highest at the right end")
    return figure


def _focus(
    ax: Axes, lines: Mapping[canvas.Series, NDArray[np.float64]], named: list[canvas.Series]
) -> None:
    """Give the height of the axes to the named lines, and name those that lie below."""
    values = np.concatenate([lines[one] for one in named])
    if not np.isfinite(values).any():
        return
    low, high = np.nanmin(values), np.nanmax(values)
    low -= 0.2 * (high - low)
    below = [one.title for one, y in lines.items() if len(y) and np.nanmax(y) < low]
    ax.set_ylim(low, high + 0.05 * (high - low))
    canvas.remark(ax, f"below: {', '.join(below)}" if below else "")


def _named(
    every: list[canvas.Series], ranks: list[dict[canvas.Series, float]]
) -> list[canvas.Series]:
    """Return the series to draw in colour: all, or the baseline and the best of many.

    `ranks` has for each subplot the value of each series; a greater one is better.
    """
    if len(every) <= MANY:
        return every
    base = baseline_of(one.key for one in every)
    best = [
        sorted(values, key=lambda one: np.nan_to_num(-values[one], nan=np.inf))[:LEADERS]
        for values in ranks
    ]
    chosen = {one for ones in best for one in ones}
    return [one for one in every if one in chosen or one.key == base]


def _legend(
    figure: Figure, every: list[canvas.Series], named: list[canvas.Series], best: str
) -> None:
    """Put a legend below a figure that says which series are named, if not all are."""
    behind = len(every) - len(named)
    title = f"Named: {BASELINE}, and in each subplot the {LEADERS} {best}" if behind else ""
    canvas.legend(figure, named, title, behind)


def _best_of(runs: pd.DataFrame) -> NDArray[np.float64]:
    """Return the mean over tasks for each number of configurations; NaN where one is unknown."""
    chosen = runs[runs["choice"] != ""].drop_duplicates(["dataset", "model"])
    found = [json.loads(text)["best_of"] for text in chosen["choice"]]
    shortest = min((len(one) for one in found), default=0)
    table = np.array([one[:shortest] for one in found], dtype=np.float64)
    return np.asarray(table.mean(axis=0)) if shortest else np.empty(0)


def draw_changes(data: canvas.FigureData) -> Figure:
    """Draw by how much each method changes from one panel to another: a tick for each task."""
    every = canvas.series(data.runs[is_private(data.runs)])
    found = changes(data.runs, data.reference, data.metric)
    figure, ((ax, _),) = _rows_of(every, [("", data.runs)])
    ax.axvline(0, color=canvas.PALE, linewidth=0.8)
    for height, series in enumerate(every):
        values = [one for one in found.get(series.key, {}).values() if not np.isnan(one)]
        finite = [data.metric.factor * value for value in values if np.isfinite(value)]
        ax.plot(finite, [height] * len(finite), "|", color=canvas.PALE, markersize=7)
        if finite and len(finite) == len(values):
            canvas.dot(ax, float(np.mean(finite)), height, series.style)
        elif values:
            canvas.beside(ax, height, f"diverged on {len(values) - len(finite)} of {len(values)}")
    ax.set_xlabel(f"Change in {data.metric.change}")
    canvas.label_rows(ax, every)
    return figure


def draw_profiles(data: canvas.FigureData) -> Figure:
    """Draw the share of runs, over all tasks, that reach each score τ, with its interval."""
    every, titled = _subplots(data.runs)
    metric = data.metric
    figure, subplots = canvas.grid(titled, COLUMNS, height=2.6, sharey=True)
    levels = [_baseline(runs, metric) for _, runs in subplots]
    found = [
        {one: scores for one in every if (scores := _scores(one.of(runs), metric, base))}
        for (_, runs), base in zip(subplots, levels, strict=True)
    ]
    at = [_thresholds(lines, base) for lines, base in zip(found, levels, strict=True)]
    areas = [
        {one: float(profile(places)(np.concatenate(tasks)).mean()) for one, tasks in lines.items()}
        for lines, places in zip(found, at, strict=True)
    ]
    named = _named(every, areas)
    for (ax, _), base, lines, places in zip(subplots, levels, found, at, strict=True):
        if not len(places):
            ax.set_title("")
            canvas.say(ax, "no completed run")
            continue
        for series, tasks in lines.items():
            _profile(ax, series, tasks, places, metric, behind=series not in named)
        unit = ("points" if metric.unit else metric.name.lower()) if base else metric.unit
        ax.set_xlabel(f"τ ({unit} over {BASELINE})" if base else f"τ ({unit})" if unit else "τ")
        ax.set_ylim(-0.02, 1.02)
    sign = "≥" if metric.higher_is_better else "≤"
    subplots[0][0].set_ylabel(f"Share of runs: {metric.name.lower()} {sign} τ")
    _legend(figure, every, named, "with the largest area under their profiles")
    return figure


def _thresholds(
    found: Mapping[canvas.Series, Scores], levels: Mapping[Any, float]
) -> NDArray[np.float64]:
    """Return where to evaluate the profiles of a subplot; nowhere if no run completed."""
    values = np.concatenate([np.empty(0), *(task for tasks in found.values() for task in tasks)])
    finite: NDArray[np.float64] = values[np.isfinite(values)]
    if not len(finite):
        return finite
    lowest = float(np.quantile(finite, TAIL)) if levels else finite.min()
    return np.linspace(lowest, finite.max(), THRESHOLDS)


def _profile(
    ax: Axes,
    series: canvas.Series,
    scores: Scores,
    at: NDArray[np.float64],
    metric: Metric,
    behind: bool,
) -> None:
    share = profile(at)
    x = at * metric.factor * metric.sign
    y = share(np.concatenate(scores))
    if behind:
        ax.plot(x, y, zorder=1, **canvas.THIN)
        return
    low, high = bootstrap(scores, share, resamples=500)
    ax.fill_between(x, low, high, color=series.style.colour, alpha=0.10, linewidth=0)
    ax.plot(x, y, markevery=20, markersize=4, **series.style.options)


def draw_differences(data: canvas.FigureData) -> Figure:
    """Draw the critical-difference diagram: average ranks over datasets, bars over cliques.

    Budgets and models of one dataset are not independent, so a method has one score per dataset:
    its mean over them and over seeds.
    """
    private = data.runs[is_private(data.runs)]
    every = canvas.series(private_or_all(data.runs))
    datasets = list(private["dataset"].drop_duplicates())
    scores = {
        series.title: [_level(series.of(private), dataset, data.metric) for dataset in datasets]
        for series in every
    }
    whole = {title: levels for title, levels in scores.items() if not np.isnan(levels).any()}
    if len(whole) < 2:
        return canvas.blank("fewer than two methods have runs on every dataset")
    figure, axes = canvas.sheet(1, 1, height=1.1 + 0.2 * len(whole))
    _diagram(axes[0, 0], ranking(whole), {series.title: series.style for series in every})
    return figure


def _diagram(ax: Axes, result: Ranking, styles: dict[str, Style]) -> None:
    last = len(result.ranks)
    for height, (name, rank) in enumerate(result.ranks.items()):
        look = styles[name]
        ax.plot([rank, last + 0.4], [height, height], color="#DDDDDD", linewidth=0.6, zorder=1)
        canvas.dot(ax, rank, height, look, zorder=3)
        ax.text(last + 0.5, height, name, va="center", fontsize=8)
    heights = {name: height for height, name in enumerate(result.ranks)}
    for members in result.cliques:
        x = min(result.ranks[name] for name in members) - 0.25
        span = [heights[members[0]] - 0.3, heights[members[-1]] + 0.3]
        ax.plot([x, x], span, color=canvas.INK, linewidth=2.5, solid_capstyle="butt")
    ax.set(xlim=(0.4, last + 0.4), ylim=(last - 0.4, -0.8), xlabel="Average rank (1 is best)")
    title = f"{count(result.datasets, 'dataset')}, {last} methods"
    if result.datasets < result.needed:
        title += f": no difference can be significant below {result.needed} datasets"
    ax.set_title(title, loc="left")
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)


def _subplots(runs: pd.DataFrame) -> tuple[list[canvas.Series], list[tuple[str, pd.DataFrame]]]:
    """Return the private series, and the private runs of each budget with a title."""
    private = private_or_all(runs)
    subplots = [
        (f"{budget(text)}, {count(len(canvas.groups(rows, *TASK)), 'task')}", rows)
        for (text,), rows in split(private, "budget")
    ]
    return canvas.series(private), subplots


def _scores(
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


def _baseline(runs: pd.DataFrame, metric: Metric) -> dict[Any, float]:
    """Return the mean score of DP-SGD on each of several tasks; none if it has none on one.

    Levels differ more between tasks than between methods: a profile of accuracies would show steps,
    one for each task, and nothing else.
    """
    base = baseline_of(zip(runs["method"], runs["label"], strict=True))
    if base is None:
        return {}
    found = {}
    for task, rows in split(runs, *TASK):
        values = list(scored(where(rows, label=base[1]), metric).values())
        found[task] = float(np.mean(values)) if values else float("nan")
    return found if len(found) > 1 and np.isfinite(list(found.values())).all() else {}


def _level(runs: pd.DataFrame, dataset: str, metric: Metric) -> float:
    """Return the mean score on a dataset over models, budgets and seeds; NaN if any has no run."""
    tasks = split(where(runs, dataset=dataset), "model", "budget")
    scores_by_task = [_scores(rows, metric) for _, rows in tasks]
    if not scores_by_task or not all(scores_by_task):
        return float("nan")
    return float(np.mean([np.concatenate(scores).mean() for scores in scores_by_task]))
