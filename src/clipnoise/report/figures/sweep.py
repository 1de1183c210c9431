"""Sweep: accuracy over the values of one hyper-parameter, one line per budget.

A momentum sweep adds a subplot: by how much per-sample momentum reduces sampling noise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from clipnoise.errors import UserError, unknown
from clipnoise.report.figures import canvas
from clipnoise.report.figures.styles import style
from clipnoise.report.formats import Metric, budget, shown, significant
from clipnoise.report.statistics import sample

COLUMNS = 2
WIDE = 50  # values that span more than this factor stand on a logarithmic axis
SYMBOLS = {"beta": "β", "history": "k"}

Beside = Callable[[Axes, pd.DataFrame, str], None]


def draw(data: canvas.FigureData, beside: Beside | None = None) -> Figure:
    """Draw one subplot per dataset, model and method, a line per budget.

    Args:
        data: `over` names the hyper-parameter of the horizontal axis.
        beside: draws one more subplot, from the rows whose method has the hyper-parameter.

    Raises:
        UserError: no method of the panel has the hyper-parameter.
    """
    over = data.over
    values = [json.loads(text) if text else {} for text in data.runs["hyperparameters"]]
    known = {name for options in values for name in options}
    if over not in known:
        raise unknown("hyper-parameter", over, known, key="report.over")
    texts = [json.dumps(options[over]) if over in options else "" for options in values]
    swept = data.runs.assign(value=texts)
    swept = swept[swept["value"] != ""]
    titled = canvas.groups(swept, "dataset", "model", "method")
    if beside is not None:
        titled.append(("", swept))
    figure, subplots = canvas.grid(titled, COLUMNS, height=2.4)
    every = _series(swept)
    if beside is not None:
        beside(*subplots.pop(), over)
    for ax, runs in subplots:
        _subplot(ax, runs, every, data.metric)
        ax.set(xlabel=over, ylabel=data.metric.heading)
    canvas.legend(figure, every)
    return figure


def _series(runs: pd.DataFrame) -> list[canvas.Series]:
    """Return one series per budget; their looks differ as those of variants of a method do."""
    budgets = runs["budget"].drop_duplicates()
    return [
        canvas.Series(str(text), budget(str(text)), True, style(str(runs["method"].iloc[0]), rank))
        for rank, text in enumerate(budgets)
    ]


def _subplot(ax: Axes, runs: pd.DataFrame, every: Sequence[canvas.Series], metric: Metric) -> None:
    at_places = places(ax, list(dict.fromkeys(runs["value"])))
    for series in every:
        line = runs[runs["budget"] == series.method]
        points = [(x, sample(line[line["value"] == text], metric)) for text, x in at_places.items()]
        canvas.line_with_deviations(ax, points, series.style, metric)
    ax.grid(visible=False, axis="x")
    if canvas.completed(runs, metric).empty:
        canvas.say(ax, "no completed run")
    canvas.remark(ax, canvas.incomplete(runs, canvas.series(runs), metric))


def places(ax: Axes, texts: list[str]) -> dict[str, float]:
    """Set the horizontal axis and return the place of each value, from left to right.

    Numbers are placed by value; anything else is evenly spaced in the order of the study.
    """
    values = [json.loads(text) for text in texts]
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values):
        at = {text: float(number) for number, text in enumerate(texts)}
    else:
        at = dict(sorted(zip(texts, numbers, strict=True), key=lambda pair: pair[1]))
        if min(numbers) > 0 and max(numbers) > WIDE * min(numbers):
            ax.set_xscale("log")
    ax.set_xticks(list(at.values()), [_tick(json.loads(text)) for text in at])
    ax.xaxis.set_minor_locator(NullLocator())
    return at


def _tick(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_tick, value))
    return significant(float(value)) if isinstance(value, int | float) else shown(value)


def momentum_reduction(beta: float, history: int) -> float:
    """Return ρ, by which normalised per-sample momentum divides the deviation of sampling noise.

    ρ² = (1+β)(1−β^k) / ((1−β)(1+β^k)) = (Σ_j β^j)² / Σ_j β^{2j} for k independent gradients. It is
    computed as the ratio of sums, which also holds at β = 1, where it is k.

    Args:
        beta: β in [0, 1].
        history: k, at least 1.

    Source: DP-PMLF, Lemma 3.
    """
    powers = beta ** np.arange(history, dtype=float)
    return float(powers.sum() / np.sqrt(np.square(powers).sum()))


def draw_momentum(ax: Axes, runs: pd.DataFrame, over: str) -> None:
    """Draw ρ over β or k, a line per value of the other.

    Args:
        ax: the axes to draw into.
        runs: rows of runs.csv with their value of the hyper-parameter, of any seed and budget.
        over: `beta` or `history`.

    Raises:
        UserError: the sweep is over something else, or none of its methods has both.
    """
    if over not in SYMBOLS:
        allowed = ", ".join(SYMBOLS)
        raise UserError(f"report.over: {over!r} in a momentum-sweep. Allowed: {allowed}.")
    (other,) = SYMBOLS.keys() - {over}
    lines: dict[float, dict[str, float]] = {}
    for value, text in zip(runs["value"], runs["hyperparameters"], strict=True):
        options = json.loads(text)
        if SYMBOLS.keys() <= options.keys():
            rho = momentum_reduction(options["beta"], options["history"])
            lines.setdefault(options[other], {})[value] = rho
    if not lines:
        raise UserError(
            "report: a momentum-sweep of a panel without a method with beta and history."
        )
    at = places(ax, list(dict.fromkeys(runs["value"])))
    for rank, (fixed, reductions) in enumerate(sorted(lines.items())):
        points = sorted((at[value], reduction) for value, reduction in reductions.items())
        look = style(str(runs["method"].iloc[0]), rank)
        x, y = zip(*points, strict=True)
        ax.plot(x, y, **look.options)
        ax.annotate(
            f"{SYMBOLS[other]} = {fixed:g}",
            points[-1],
            xytext=(-4, 6),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
    ax.grid(visible=False, axis="x")
    highest = max(max(reductions.values()) for reductions in lines.values())
    ax.set_ylim(1, 1 + 1.25 * max(highest - 1, 0.1))  # 1 is no momentum
    ax.set(title="Sampling noise is divided by ρ", xlabel=over, ylabel="ρ")
