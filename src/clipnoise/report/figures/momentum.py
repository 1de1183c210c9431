"""Momentum: what per-sample momentum does to sampling noise, beside a sweep over β or k."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from clipnoise.errors import UserError
from clipnoise.report.figures.sweep import places
from clipnoise.report.filters import momentum_reduction
from clipnoise.report.styles import style

SYMBOLS = {"beta": "β", "history": "k"}


def draw_beside(ax: Axes, runs: pd.DataFrame, over: str) -> None:
    """Draw ρ over β or k, a line per value of the other.

    Args:
        ax: where.
        runs: rows of runs.csv with their value of the hyper-parameter, of any seed and budget.
        over: `beta` or `history`.

    Raises:
        UserError: the sweep is over something else, or no method of it has both.
    """
    if over not in SYMBOLS:
        allowed = ", ".join(SYMBOLS)
        raise UserError(f"report.over: {over!r} in a momentum-sweep. Allowed: {allowed}.")
    (other,) = SYMBOLS.keys() - {over}
    lines: dict[float, dict[str, float]] = {}
    for value, momentum in _momenta(runs):
        lines.setdefault(momentum[other], {})[value] = momentum_reduction(**momentum)
    if not lines:
        raise UserError(
            "report: a momentum-sweep of a panel without a method with beta and history."
        )
    at = places(ax, list(dict.fromkeys(runs["value"])))
    for rank, (fixed, reductions) in enumerate(sorted(lines.items())):
        points = sorted((at[value], reduction) for value, reduction in reductions.items())
        look = style(str(runs["method"].iloc[0]), rank)
        x, y = zip(*points, strict=True)
        ax.plot(x, y, color=look.colour, linestyle=look.line, marker=look.marker)
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


def _momenta(runs: pd.DataFrame) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield β and k with the swept value, of every row whose method has both."""
    for value, text in zip(runs["value"], runs["hyperparameters"], strict=True):
        values = json.loads(text)
        if SYMBOLS.keys() <= values.keys():
            yield value, {name: values[name] for name in SYMBOLS}
