"""How much methods change from one panel to another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Len

from clipnoise.lazy import np
from clipnoise.report import baseline, charts, records
from clipnoise.report.blocks import Block, FigureBlock
from clipnoise.report.figures import canvas, tasks
from clipnoise.report.formats import budget
from clipnoise.report.items import FigureItem, ItemData

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from clipnoise.report.formats import Metric
    from clipnoise.report.records import Key, Place
    from clipnoise.report.statistics import Interval

FEW = 6  # methods that a sentence names


@dataclass(frozen=True, kw_only=True)
class ChangesFigure(FigureItem):
    """How much better methods are than with another option of an axis, with 95% intervals: `{kind:
    changes, only: {accountant: pld}, against: {accountant: rdp}}`.

    Attributes:
        against: the option to compare with, by axis.
    """

    kind: Literal["changes"] = "changes"
    against: Annotated[dict[str, str], Len(1)]

    @property
    def compared(self) -> Mapping[str, Mapping[str, str]]:
        """The panels that these are compared with."""
        return {"against": self.against}

    def blocks(self, data: ItemData) -> Iterator[Block]:
        """Yield the figure below a sentence that says what each method gains."""
        caption = " ".join(filter(None, [self.caption, self._sentence(data)]))
        yield FigureBlock(title=data.title, caption=caption, image=data.image)

    def draw(self, data: ItemData) -> Figure:
        """Draw by how much each method changes from one panel to another: a tick for each task.

        A point is the mean over tasks, with its interval where there is one.
        """
        every = canvas.series(data.runs[records.is_private(data.runs)])
        found = self._changes(data)
        others, metric = data.others["against"], data.metric
        intervals = baseline.change_intervals(data.runs, others, metric)
        figure, ((ax, _),) = tasks.rows_of(every, [("", data.runs)])
        figure.set_figheight(0.9 + 0.22 * (len(every) + 1))  # a few rows need no more
        ax.axvline(0, color=canvas.PALE, linewidth=0.8)
        for height, series in enumerate(every):
            values = [one for one in found.get(series.key, {}).values() if not np.isnan(one)]
            finite = [data.metric.factor * value for value in values if np.isfinite(value)]
            ax.plot(finite, [height] * len(finite), "|", color=canvas.PALE, markersize=7)
            if finite and len(finite) == len(values):
                canvas.dot(ax, float(np.mean(finite)), height, series.style)
                if series.key in intervals:
                    ends = intervals[series.key].low, intervals[series.key].high
                    span = [metric.factor * end for end in ends]
                    ax.plot(span, [height] * 2, color=series.style.colour, linewidth=1.2)
            elif values:
                canvas.beside(
                    ax, height, f"diverged on {len(values) - len(finite)} of {len(values)}"
                )
        ticks = f"ticks: task and {_equal(data.runs)}; lines: 95% intervals over seeds"
        ax.set_xlabel(f"{self._axis(data)}\n{ticks}")
        canvas.label_rows(ax, every)
        return figure

    def charts(self, data: ItemData) -> list[Any]:
        """Draw the mean change of each method from some panels to others, a tick for each task."""
        import altair as alt

        metric, found = data.metric, self._changes(data)
        points = [
            {
                "method": label,
                "_method": method,
                "task": f"{dataset}, {model}, {budget(text)}",
                "value": round(metric.factor * value, 2),
            }
            for (method, label), by_task in found.items()
            for (dataset, model, text), value in by_task.items()
            if math.isfinite(value)
        ]
        if not points:
            return []
        base = charts.chart(points)
        order = list(dict.fromkeys(str(point["method"]) for point in points))
        y = alt.Y("method:N", sort=order, title=None)
        x = alt.X("value:Q", title=self._axis(data))
        ticks = base.mark_tick(opacity=0.6).encode(
            x=x, y=y, tooltip=["method:N", "task:N", "value:Q"]
        )
        means = base.mark_point(filled=True, size=60, opacity=1).encode(
            x=alt.X("mean(value):Q"),
            y=y,
            color=charts.colours(points),
            tooltip=["method:N", "mean(value):Q"],
        )
        return [(ticks + means).properties(width="container", height=alt.Step(charts.HEIGHT))]

    def _sentence(self, data: ItemData) -> str:
        """Return what each of a few methods gains, with what the seeds leave open."""
        private = data.runs[records.is_private(data.runs)]
        every = canvas.series(private)
        if not 0 < len(every) <= FEW:
            return ""
        found, metric = self._changes(data), data.metric
        intervals = baseline.change_intervals(data.runs, data.others["against"], metric)
        gains = [
            f"{one.key[1]} {_gain(found.get(one.key, {}), intervals.get(one.key), metric)}"
            for one in every
        ]
        equal, unit = _equal(private), " in points" if metric.unit else ""
        here, there = _both_adjacencies(data)
        what = f"Gain at equal {equal}{unit}"
        if here != there:
            what = (
                f"Difference{unit} at the same {equal} under different adjacencies, so not "
                f"comparable (here {here}, there {there})"
            )
        return f"{what}, with 95% intervals over seeds: {'; '.join(gains)}."

    def _axis(self, data: ItemData) -> str:
        """Return what the horizontal axis shows: against what, and that more is better."""
        here, there = _both_adjacencies(data)
        than = "Better than" if here == there else "Not comparable; difference from that"
        return f"{than} with {data.other_titles['against']}: {data.metric.change}"

    def _changes(self, data: ItemData) -> Mapping[Key, Mapping[Place, float]]:
        return baseline.changes(data.runs, data.others["against"], data.metric)


def _both_adjacencies(data: ItemData) -> tuple[str, str]:
    """Return the adjacency of what is shown, and that of what it is compared with."""
    both = (data.runs[records.is_private(data.runs)], data.others["against"])
    here, there = (", ".join(sorted(set(runs["adjacency"]) - {""})) for runs in both)
    return here, there


def _equal(runs: pd.DataFrame) -> str:
    """Return what private runs have in common with those that they are compared with."""
    private = runs[records.is_private(runs)]
    return "ε" if private["budget"].str.startswith("eps=").all() else "σ"


def _gain(by_task: Mapping[Place, float], mean: Interval | None, metric: Metric) -> str:
    """Return the mean change of a method, and that at each budget where budgets are all its tasks.

    Args:
        by_task: the change on each dataset and model at each budget.
        mean: their mean; None where it is not known.
        metric: what is compared.
    """
    if mean is None:
        diverged = any(math.isinf(value) for value in by_task.values())
        return "cannot be compared: " + ("runs diverged" if diverged else "runs are missing")
    budgets = {text: metric.show(value) for (_, _, text), value in by_task.items()}
    if not 1 < len(budgets) == len(by_task):
        return mean.show(metric)
    parts = ", ".join(f"{value} at {budget(text)}" for text, value in budgets.items())
    return f"{mean.show(metric)} ({parts})"
