"""The figures of the league: gains of a task, gains over tasks, and closed shares of the gap."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clipnoise.report.blocks import FigureBlock
from clipnoise.report.figures import canvas
from clipnoise.report.figures.styles import Style, style
from clipnoise.report.records import where
from clipnoise.report.statistics import Interval

if TYPE_CHECKING:
    from clipnoise.report.league import LeagueFindings, MethodOverTasks

OVER, CLOSED = "over-tasks.svg", "closed-share.svg"


def gains_block(task: str) -> FigureBlock:
    """Return the figure of a task."""
    return FigureBlock(
        title=f"{task}: gain over DP-SGD",
        caption="Thick: the 95% interval of a gain alone. Thin: those that hold together, over all "
        "methods, tasks and budgets. Filled: can be the best. Open: shown not to be.",
        image=f"{task}.svg",
    )


def over_tasks_block() -> FigureBlock:
    """Return the figure over tasks."""
    return FigureBlock(
        title="Gain over DP-SGD over tasks",
        caption="Thick: the 95% interval of the gain that is expected on a task. Thin: the one in "
        "which the gain on a new task lies. Too few tasks give none.",
        image=OVER,
    )


def closed_block() -> FigureBlock:
    """Return the figure of closed shares."""
    return FigureBlock(
        title="Closed share of the privacy gap",
        caption="With 95% intervals in which the gap is drawn again.",
        image=CLOSED,
    )


@dataclass(frozen=True)
class GainRow:
    """What one subplot shows of a method: a value with two intervals, in points or %.

    Attributes:
        method: its label.
        inner: drawn thick, with the value.
        outer: drawn thin; None for none.
        filled: whether its marker is.
    """

    method: str
    inner: Interval
    outer: Interval | None = None
    filled: bool = True


def figures(found: LeagueFindings) -> dict[str, Figure]:
    """Draw all figures.

    Returns:
        By the names of their files.
    """
    known, gain = looks(found), "Gain over DP-SGD (points)"
    drawn = {}
    for task in found.confirmed:
        rows = {e: list(_gains(found, task, e)) for at, e in found.settings if at == task}
        drawn[f"{task}.svg"] = _draw(rows, known, gain)
    budgets: dict[float, list[MethodOverTasks]] = {}
    for one in found.over_tasks:
        budgets.setdefault(one.epsilon, []).append(one)
    over = {
        e: [GainRow(m.method, m.gain.mean, m.gain.new_task) for m in each]
        for e, each in budgets.items()
    }
    closed = {
        e: [GainRow(m.method, m.closed) for m in each if m.closed] for e, each in budgets.items()
    }
    if over:
        drawn[OVER] = _draw(over, known, gain)
    if closed := {e: rows for e, rows in closed.items() if rows}:
        drawn[CLOSED] = _draw(closed, known, "Closed gap (%)")
    return drawn


def looks(found: LeagueFindings) -> dict[str, Style]:
    """Return the look of each method by its label, the same in all figures."""
    seen: Counter[str] = Counter()
    known: dict[str, Style] = {}
    for runs in found.tasks.values():
        for method, label in runs[["method", "label"]].drop_duplicates().to_numpy():
            if label not in known:
                known[label] = style(method, seen[method])
                seen[method] += 1
    return known


def _gains(found: LeagueFindings, task: str, epsilon: float) -> Iterator[GainRow]:
    best = where(found.best, task=task, epsilon=epsilon).set_index("method")["can_be_best"]
    for one in where(found.gains, task=task, epsilon=epsilon).to_dict("records"):
        inner, outer = (
            Interval(one["gain"], one[low], one[high])
            for low, high in (("low", "high"), ("all_low", "all_high"))
        )
        yield GainRow(one["method"], inner, outer, filled=bool(best[one["method"]]))


def _draw(
    budgets: Mapping[float, Sequence[GainRow]], known: Mapping[str, Style], name: str
) -> Figure:
    """Draw a subplot for each ε with a row for each method, the best on average first."""
    means: dict[str, list[float]] = {}
    for row in (row for rows in budgets.values() for row in rows):
        means.setdefault(row.method, []).append(row.inner.mean)
    order = sorted(means, key=lambda method: -sum(means[method]) / len(means[method]))
    names = [canvas.LegendEntry(method, known[method]) for method in order]
    height = 0.9 + 0.2 * len(order)
    figure, axes = canvas.sheet(1, len(budgets), height=height, sharey=True)
    for ax, (epsilon, rows) in zip(axes.flat, budgets.items(), strict=True):
        ax.set_title(f"ε = {epsilon:g}")
        ax.axvline(0, color=canvas.PALE, linewidth=0.8)
        for row in rows:
            _draw_row(ax, order.index(row.method), row, known[row.method])
        canvas.label_rows(ax, names)
    figure.supxlabel(name, fontsize=9)
    return figure


def _draw_row(ax: Axes, height: int, row: GainRow, look: Style) -> None:
    for interval, width in ((row.outer, 0.8), (row.inner, 2.4)):
        if interval is not None and math.isfinite(interval.low + interval.high):
            ends = [100 * interval.low, 100 * interval.high]
            ax.plot(ends, [height] * 2, color=look.colour, linewidth=width)
    inside = {} if row.filled else {"markerfacecolor": "white"}
    canvas.dot(ax, 100 * row.inner.mean, height, look, zorder=3, **inside)
