"""The figures of the league: gains of a task, gains over tasks, and closed shares of the gap."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clipnoise.report.blocks import FigureBlock
from clipnoise.report.figures import canvas
from clipnoise.report.figures.styles import Style, style
from clipnoise.report.formats import ACCURACY, count
from clipnoise.report.records import where
from clipnoise.report.statistics import Interval

if TYPE_CHECKING:
    from clipnoise.report.league import LeagueFindings


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


@dataclass(frozen=True)
class LeagueFigure:
    """What one figure shows.

    Attributes:
        block: its words and the name of its file.
        axis: what is drawn, with its unit.
        budgets: the rows of each subplot, by ε.
        tasks: of how many tasks, or data sets, a subplot is; empty where it is of one.
    """

    block: FigureBlock
    axis: str
    budgets: Mapping[float, Sequence[GainRow]]
    tasks: Mapping[float, int] = field(default_factory=dict)

    def draw(self, known: Mapping[str, Style]) -> Figure:
        """Draw a subplot for each ε with a row for each method, the best on average first.

        Args:
            known: the look of each method, from `looks`.
        """
        means: dict[str, list[float]] = {}
        for row in (row for rows in self.budgets.values() for row in rows):
            means.setdefault(row.method, []).append(row.inner.mean)
        order = sorted(means, key=lambda method: -sum(means[method]) / len(means[method]))
        names = [canvas.LegendEntry(method, known[method]) for method in order]
        height = 0.9 + 0.2 * len(order)
        figure, axes = canvas.sheet(1, len(self.budgets), height=height, sharex=True, sharey=True)
        for ax, (epsilon, rows) in zip(axes.flat, self.budgets.items(), strict=True):
            tasks = f" ({count(self.tasks[epsilon], 'task')})" if self.tasks else ""
            ax.set_title(f"ε = {epsilon:g}{tasks}")
            ax.axvline(0, color=canvas.PALE, linewidth=0.8)
            for row in rows:
                _draw_row(ax, order.index(row.method), row, known[row.method])
            canvas.label_rows(ax, names)
        figure.supxlabel(self.axis, fontsize=9)
        return figure


def gains_figure(found: LeagueFindings, task: str) -> LeagueFigure:
    """Return the figure of a task."""
    base = found.track.called
    return _figure(
        f"{task}: gain over {base}",
        "Thick: the pointwise 95% interval of a gain. Thin: the one that is simultaneous over all "
        "methods, tasks and budgets. Filled: can be the best. Open: shown not to be.",
        f"{task}.svg",
        f"Gain over {base} (points)",
        ((e, row) for at, e in found.settings if at == task for row in _gains(found, task, e)),
    )


def figures_over_tasks(found: LeagueFindings) -> list[LeagueFigure]:
    """Return the figures over tasks: of gains, and of closed shares where there are any."""
    base = found.track.called
    over = _figure(
        f"Gain over {base} over tasks",
        "Thick: the pointwise 95% interval of the expected gain on a task. Thin: the 95% "
        "prediction interval for a new task. The simultaneous intervals are wider than the thick "
        "ones.",
        "over-tasks.svg",
        f"Gain over {base} (points)",
        (
            (one.epsilon, GainRow(one.method, one.gain.mean, one.gain.new_task))
            for one in found.estimated
        ),
        {one.epsilon: one.gain.tasks for one in found.estimated},
    )
    closed = _figure(
        "Closed share of the privacy gap",
        "With 95% bootstrap intervals that include the uncertainty of the gap.",
        "closed-share.svg",
        "Closed gap (%)",
        ((one.epsilon, GainRow(one.method, one.closed)) for one in found.over_tasks if one.closed),
        {one.epsilon: len(one.gaps) for one in found.over_tasks if one.closed},
    )
    return [one for one in (over, closed) if one.budgets]


def figures(found: LeagueFindings) -> list[LeagueFigure]:
    """Return all figures of the page, those over tasks first."""
    return [*figures_over_tasks(found), *(gains_figure(found, task) for task in found.confirmed)]


def _figure(
    title: str,
    caption: str,
    file: str,
    axis: str,
    rows: Iterable[tuple[float, GainRow]],
    tasks: Mapping[float, int] = MappingProxyType({}),
) -> LeagueFigure:
    """Return a figure of rows by ε, whose alternative text has the ends of each."""
    budgets: dict[float, list[GainRow]] = {}
    for epsilon, row in rows:
        budgets.setdefault(epsilon, []).append(row)
    ends = [f"at ε = {epsilon:g} {_ends(each)}" for epsilon, each in budgets.items()]
    alt = f"{axis}, for each method with its intervals: {'; '.join(ends)}"
    block = FigureBlock(title=title, caption=caption, image=file, alt=alt)
    return LeagueFigure(block, axis, budgets, tasks)


def _ends(rows: Sequence[GainRow]) -> str:
    order = sorted(rows, key=lambda row: row.inner.mean)
    named = [f"{row.method} {ACCURACY.show(row.inner.mean)}" for row in (order[-1], order[0])]
    return f"from {named[0]} to {named[1]}"


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


def _draw_row(ax: Axes, height: int, row: GainRow, look: Style) -> None:
    for interval, width in ((row.outer, 0.8), (row.inner, 2.4)):
        if interval is not None and math.isfinite(interval.low + interval.high):
            ends = [100 * interval.low, 100 * interval.high]
            ax.plot(ends, [height] * 2, color=look.colour, linewidth=width)
    inside = {} if row.filled else {"markerfacecolor": "white"}
    canvas.dot(ax, 100 * row.inner.mean, height, look, zorder=3, **inside)
