"""How much of what privacy costs a method wins back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from clipnoise.report.formats import Metric, budget, count
from clipnoise.report.items import FigureItem, ItemData
from clipnoise.report.lazy import baseline, canvas, charts, records, statistics, tasks
from clipnoise.studies.items import SeveralPanels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOWEST = -100.0  # %: as far below DP-SGD as training without privacy is above it
SHARE = Metric("", "Closed gap", "%", 100.0, 1, higher_is_better=True)


@dataclass(frozen=True, kw_only=True)
class ClosedGap(SeveralPanels, FigureItem):
    """Over datasets: the gain over dp-sgd as a share of what privacy costs dp-sgd."""

    kind: Literal["closed-gap"] = "closed-gap"

    def draw(self, data: ItemData) -> Figure:
        """Draw the interquartile mean of the closed share of the privacy gap, per budget."""
        every, budgets = tasks.subplots(data.runs)
        found = [
            baseline.gaps(data.runs, str(rows["budget"].iloc[0]), data.metric)
            for _, rows in budgets
        ]
        titled = []
        for (title, rows), one in zip(budgets, found, strict=True):
            counted = f"{one.tasks - len(one.left_out)} of {count(one.tasks, 'task')}"
            titled.append((f"{title.partition(',')[0]}, {counted}", rows))
        figure, subplots = tasks.rows_of(every, titled)
        for (ax, _), one in zip(subplots, found, strict=True):
            ax.axvline(0, color=canvas.PALE, linewidth=0.8)
            for height, series in enumerate(every):
                tasks.mean(ax, height, series, one.shares.get(series.key, []), SHARE, LOWEST)
            if not one.shares:
                canvas.say(ax, "no gap to divide by")
            ax.set_xlim(left=max(ax.get_xlim()[0], LOWEST))
            ax.set_xlabel("Closed gap (%)")
            canvas.label_rows(ax, every)
        return figure

    def charts(self, data: ItemData) -> list[Any]:
        """Draw the interquartile mean of the closed share of the privacy gap, for each budget."""
        shown, metric = data.runs, data.metric
        names = {one.key: one.title for one in canvas.series(shown)}
        drawn = []
        for text in shown[records.is_private(shown)]["budget"].drop_duplicates():
            found = baseline.gaps(shown, str(text), metric)
            points, lost = [], []
            for key, scores in found.shares.items():
                share = statistics.interquartile_interval(scores)
                ends = [round(100 * end, 1) for end in (share.mean, share.low, share.high)]
                if all(map(math.isfinite, ends)):
                    interval = dict(zip(("value", "low", "high"), ends, strict=True))
                    known = {"method": names[key], "_method": key[0], **interval}
                    points.append({**known, "tasks": len(scores)})
                else:
                    lost.append(names[key])
            if found.shares:
                counted = f"{found.tasks - len(found.left_out)} of {found.tasks} tasks"
                title = [f"{budget(str(text))}, {counted}"]
                if lost:
                    title.append(f"no finite interval, because runs diverged: {', '.join(lost)}")
                chart = charts.with_intervals(points, "Closed gap (%)", least=-100)
                drawn.append(chart.properties(title=title))
        return drawn
