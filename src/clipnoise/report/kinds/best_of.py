"""What smaller searches would have found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clipnoise.lazy import np
from clipnoise.report.formats import Metric, searched_by
from clipnoise.report.items import FigureItem, ItemData
from clipnoise.report.lazy import canvas, tasks
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
        metric = _searched_by(data)
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
                _focus(ax, lines, named, metric)
            ax.set_xlabel("Configurations tried")
        subplots[0][0].set_ylabel(metric.heading)
        tasks.legend(figure, every, named, "that are best at the right end")
        return figure


def _searched_by(data: ItemData) -> Metric:
    """Return what the searches chose by, on the test split; before any, what runs are ranked by."""
    made = data.runs["choice"].dropna()
    return searched_by(made.iloc[0].metric) if len(made) else data.metric


def _focus(
    ax: Axes, lines: Mapping[Series, NDArray[np.float64]], named: Sequence[Series], metric: Metric
) -> None:
    """Give the height of the axes to the named lines, and name those that are worse."""
    values = np.concatenate([lines[one] for one in named])
    if not np.isfinite(values).any():
        return
    low, high = np.nanmin(values), np.nanmax(values)
    best, worst = (high, low) if metric.higher_is_better else (low, high)
    best, worst = best + 0.05 * (best - worst), worst - 0.2 * (best - worst)
    beyond = [
        one.title for one, y in lines.items() if len(y) and np.nanmax(metric.sign * (y - worst)) < 0
    ]
    ax.set_ylim(min(best, worst), max(best, worst))
    where = "below" if metric.higher_is_better else "above"
    canvas.remark(ax, f"{where}: {', '.join(beyond)}" if beyond else "")


def _best_of(runs: pd.DataFrame) -> NDArray[np.float64]:
    """Return the mean over tasks and searches for each number of configurations.

    It is NaN where one is unknown.
    """
    chosen = runs[runs["choice"].notna()].drop_duplicates(["dataset", "model", "search"])
    found = [one.best_of for one in chosen["choice"]]
    shortest = min((len(one) for one in found), default=0)
    table = np.array([one[:shortest] for one in found], dtype=np.float64)
    return np.asarray(table.mean(axis=0)) if shortest else np.empty(0)
