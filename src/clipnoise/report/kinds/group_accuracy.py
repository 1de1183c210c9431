"""Accuracy on each group of test examples, one method below the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clipnoise.report.items import FigureItem, ItemData
from clipnoise.report.lazy import canvas, confusion, styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clipnoise.report.confusion import PredictedSetting
    from clipnoise.report.figures.styles import Style

ABREAST = 2  # subplots


@dataclass(frozen=True, kw_only=True)
class GroupAccuracy(FigureItem):
    """Accuracy by group of test examples, which the dataset names (`groups: sex`), and the gap."""

    kind: Literal["group-accuracy"] = "group-accuracy"

    def draw(self, data: ItemData) -> Figure:
        """Draw one subplot per dataset, model and budget, a row for each method."""
        found = list(confusion.grouped(data.runs))
        if not found:
            return canvas.blank(f"{confusion.NOTHING} by group")
        every = canvas.series(data.runs)
        titled = dict.fromkeys(", ".join(one.names[:3]) for one in found)
        subplots_of = [(title, data.runs) for title in titled]
        height = 0.9 + 0.3 * len(every)
        figure, subplots = canvas.grid(subplots_of, ABREAST, height=height, sharey=True)
        groups = dict.fromkeys(name for one in found for name in one.first.groups)
        looks = {name: styles.style("", rank) for rank, name in enumerate(groups)}
        for (ax, _), title in zip(subplots, titled, strict=True):
            here = {one.key: one for one in found if ", ".join(one.names[:3]) == title}
            for row, series in enumerate(every):
                if series.key in here:
                    _row(ax, row, here[series.key], looks)
            canvas.label_rows(ax, every)
            ax.set_xlabel(confusion.GROUP_ACCURACY.heading)
        entries = [canvas.LegendEntry(name, look) for name, look in looks.items()]
        canvas.legend(figure, entries, found[0].first.column)
        return figure


def _row(ax: Axes, row: int, setting: PredictedSetting, looks: dict[str, Style]) -> None:
    metric = confusion.GROUP_ACCURACY
    by_group = {name: one for name, one in confusion.of_groups(setting).items() if one.n}
    means = {name: one.mean * metric.factor for name, one in by_group.items()}
    ax.plot([min(means.values()), max(means.values())], [row, row], **canvas.THIN)
    for name, value in means.items():
        canvas.dot(ax, value, row, looks[name])
    gap = confusion.gap(setting, confusion.accuracies)
    canvas.beside(ax, row, f"gap {metric.show(gap.mean)}", color=canvas.PALE)
