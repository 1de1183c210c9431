"""What smaller searches would have found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clipnoise.lazy import np
from clipnoise.report.items import FigureItem, ItemData
from clipnoise.report.lazy import canvas, records, tasks
from clipnoise.studies.items import SeveralPanels

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from clipnoise.report.figures.canvas import Series


@dataclass(frozen=True, kw_only=True)
class BestOf(SeveralPanels, FigureItem):
    """What smaller searches would have found, on average over datasets."""

    kind: Literal["best-of"] = "best-of"

    def draw(self, data: ItemData) -> Figure:
        """Draw what a search of k configurations finds, on average over tasks, per budget."""
        every, titled = tasks.subplots(data.runs)
        figure, subplots = canvas.grid(titled, tasks.COLUMNS, height=3.2)
        metric = data.metric
        found = [
            {one: metric.factor * _best_of(one.of(runs)) for one in every} for _, runs in subplots
        ]
        ranks = [
            {one: metric.sign * y[-1] for one, y in lines.items() if len(y)} for lines in found
        ]
        named = tasks.named(every, ranks)
        for (ax, _), lines in zip(subplots, found, strict=True):
            for series, y in lines.items():
                look = {**series.style.options, "markersize": 4} if series in named else canvas.THIN
                ax.plot(range(1, len(y) + 1), y, zorder=2 + (series in named), **look)
            if len(named) < len(every):
                _focus(ax, lines, named)
            ax.set_xlabel("Configurations tried")
        subplots[0][0].set_ylabel(metric.heading)
        tasks.legend(figure, every, named, "that are highest at the right end")
        return figure


def _focus(ax: Axes, lines: Mapping[Series, NDArray[np.float64]], named: Sequence[Series]) -> None:
    """Give the height of the axes to the named lines, and name those that lie below."""
    values = np.concatenate([lines[one] for one in named])
    if not np.isfinite(values).any():
        return
    low, high = np.nanmin(values), np.nanmax(values)
    low -= 0.2 * (high - low)
    below = [one.title for one, y in lines.items() if len(y) and np.nanmax(y) < low]
    ax.set_ylim(low, high + 0.05 * (high - low))
    canvas.remark(ax, f"below: {', '.join(below)}" if below else "")


def _best_of(runs: pd.DataFrame) -> NDArray[np.float64]:
    """Return the mean over tasks for each number of configurations; NaN where one is unknown."""
    chosen = runs[runs["choice"] != ""].drop_duplicates(["dataset", "model"])
    found = [one.best_of for one in map(records.found_choice, chosen["choice"]) if one]
    shortest = min((len(one) for one in found), default=0)
    table = np.array([one[:shortest] for one in found], dtype=np.float64)
    return np.asarray(table.mean(axis=0)) if shortest else np.empty(0)
