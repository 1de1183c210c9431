"""Two swept hyper-parameters against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import StringConstraints

from clipnoise.lazy import np
from clipnoise.report.formats import DASH, Metric
from clipnoise.report.items import FigureItem, ItemData
from clipnoise.report.kinds.sweep import line_names, require_hyperparameter, swept
from clipnoise.report.lazy import canvas, pd, places, records, statistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 2  # subplots
Name = Annotated[str, StringConstraints(min_length=1)]
FRAME: Mapping[str, Any] = {"marker": "s", "markersize": 4, "markerfacecolor": "none"}


@dataclass(frozen=True, kw_only=True)
class HeatMap(FigureItem):
    """Final accuracy against two hyper-parameters that are swept together; a square marks the best.

    Attributes:
        across: from left to right.
        down: from top to bottom.
    """

    kind: Literal["heat-map"] = "heat-map"
    across: Name
    down: Name

    def check(self, methods: Sequence[Mapping[str, Any]], file: str, key: str) -> None:
        """Refuse panels of which no method has both hyper-parameters."""
        require_hyperparameter(self.across, methods, file, f"{key}.across")
        require_hyperparameter(self.down, methods, file, f"{key}.down")

    def draw(self, data: ItemData) -> Figure:
        """Draw one subplot per dataset, model, method, budget and setting of anything else."""
        rows = swept(data.runs, self.across)
        rows = rows.assign(x=rows["value"])
        rows = swept(rows, self.down)
        rows = rows.assign(y=rows["value"], value=rows["x"] + " " + rows["value"])
        done = canvas.completed(rows, data.metric)
        if done.empty:
            return canvas.blank("no completed run")
        rows = rows.assign(line=line_names(rows))
        titled = canvas.groups(rows, "dataset", "model", "method", "line")
        figure, subplots = canvas.grid(titled, COLUMNS, height=2.4)
        ends = {
            task: (subset[data.metric.column].min(), subset[data.metric.column].max())
            for task, subset in records.split(done, "dataset", "model")
        }
        for ax, here in subplots:
            task = (str(here["dataset"].iloc[0]), str(here["model"].iloc[0]))
            _draw(ax, here, data.metric, ends.get(task, (0.0, 1.0)))
            ax.set(xlabel=self.across, ylabel=self.down)
        figure.suptitle(data.metric.heading, fontsize=9)
        return figure


def _draw(ax: Axes, runs: pd.DataFrame, metric: Metric, ends: tuple[float, float]) -> None:
    """Draw the means of the cells of one subplot in shades between two ends."""
    columns, rows = (places.in_order(list(dict.fromkeys(runs[name]))) for name in ("x", "y"))
    samples = [
        [statistics.sample(records.where(runs, x=x, y=y), metric) for x in columns] for y in rows
    ]
    means = metric.factor * np.array([[one.mean for one in line] for line in samples])
    words = np.array([[_said(one, metric) for one in line] for line in samples])
    low, high = (metric.factor * end for end in ends)
    canvas.cells(ax, means, words, low, high if high > low else low + 1)
    ax.set_xticks(range(len(columns)), [places.tick(text) for text in columns])
    ax.set_yticks(range(len(rows)), [places.tick(text) for text in rows])
    complete = np.array([[one.complete for one in line] for line in samples])
    able = np.where(complete, metric.sign * means, -np.inf)
    if complete.any():
        row, column = np.unravel_index(np.argmax(able), able.shape)
        colour = "white" if means[row, column] - low > 0.55 * (high - low) else canvas.INK
        ax.plot([column - 0.38], [row - 0.32], color=colour, **FRAME)


def _said(sample: statistics.Sample, metric: Metric) -> str:
    """Return what stands in a cell: the mean, and below it how many runs completed, if not all."""
    if not sample.planned:
        return ""
    mean = metric.show(sample.mean) if sample.n else DASH
    return f"{mean}\n{sample.runs} runs" if sample.runs else mean
