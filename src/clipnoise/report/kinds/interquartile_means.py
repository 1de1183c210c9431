"""Interquartile means over all tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clipnoise.report.figures import canvas, tasks
from clipnoise.report.items import FigureItem, ItemData

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class InterquartileMeans(FigureItem):
    """Over datasets: the interquartile mean over all runs, per budget."""

    kind: Literal["interquartile-means"] = "interquartile-means"

    def draw(self, data: ItemData) -> Figure:
        """Draw the interquartile mean over the runs of all tasks with its interval, per budget.

        Beside a method without runs on some of the tasks stands on how many it has some.
        """
        every, titled = tasks.subplots(data.runs)
        figure, subplots = tasks.rows_of(every, titled)
        for ax, runs in subplots:
            for height, series in enumerate(every):
                scores = tasks.scores(series.of(runs), data.metric)
                tasks.mean(ax, height, series, scores, data.metric)
                canvas.beside(ax, height, tasks.partial(scores, runs))
            heading = data.metric.heading
            ax.set_xlabel(f"IQM of {heading[0].lower()}{heading[1:]}")
            canvas.label_rows(ax, every)
        return figure
