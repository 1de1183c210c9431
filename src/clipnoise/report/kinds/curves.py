"""Accuracy or loss along training or along the ε spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.report.figures import canvas, lines
from clipnoise.report.formats import METRICS, Metric
from clipnoise.report.items import FigureItem, ItemData
from clipnoise.studies.file import CurveMetric

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Curves(FigureItem):
    """A metric along training, mean and standard deviation over seeds.

    Attributes:
        metric: one or several; by default test accuracy, or test loss.
        along: steps, or the ε spent, which leaves out methods that spend none.
    """

    kind: Literal["curves"] = "curves"
    deviation: ClassVar = "with a band of ± one {}"
    metric: CurveMetric | tuple[CurveMetric, ...] | None = None
    along: Literal["step", "epsilon"] = "step"

    def __post_init__(self) -> None:
        if self.along == "epsilon" and isinstance(self.metric, tuple):
            raise ValueError("metric: give one along the ε spent")

    def draw(self, data: ItemData) -> Figure:
        """Draw a subplot for each budget, or along steps one for each of several panels."""
        names = (self.metric,) if isinstance(self.metric, str) else self.metric or ()
        shown = [METRICS[name] for name in names] or [data.metric]
        if self.along == "epsilon":
            return lines.draw(data.runs, data.curves, data.metric, shown[0], "epsilon_spent")
        if len(self.named) > 1 or len(shown) > 1:
            return _panels(data, [METRICS[name] for name in names])
        return lines.draw(data.runs, data.curves, data.metric, shown[0])


def _panels(data: ItemData, metrics: Sequence[Metric]) -> Figure:
    """Draw several panels in one figure: two in a row, or with several metrics a row for each.

    A panel with several budgets shows its last. Panels of the same methods share a legend.
    """
    panels = data.each
    metrics = metrics or [panels[0].metric]
    subplots = [
        (panel, title, metric)
        for panel, title in zip(panels, data.titles, strict=True)
        for metric in metrics
    ]
    columns = len(metrics) if len(metrics) > 1 else min(2, len(panels))
    named = [[series.title for series in canvas.series(panel.runs)] for panel in panels]
    alike = all(names == named[0] for names in named)
    figure, axes = canvas.sheet(-(-len(subplots) // columns), columns, height=2.5 if alike else 3)
    for ax in axes.flat[len(subplots) :]:
        ax.set_axis_off()
    for number, (ax, (panel, title, metric)) in enumerate(zip(axes.flat, subplots, strict=False)):
        text = lines.budgets(panel.runs)[-1]
        done = lines.completed_curves(panel.runs, panel.curves, panel.metric)
        every, curves = canvas.series(panel.runs), lines.at(done, text)
        lines.subplot(ax, lines.at(panel.runs, text), curves, every, panel.metric, metric)
        ax.set(title=title, ylabel=metric.heading, ylim=lines.limits(curves, metric))
        canvas.chance_line(ax, panel.runs, metric)
        ax.set_xlabel(lines.AXES["step"] if number + columns >= len(subplots) else "")
        if not alike:
            canvas.legend_below(ax, every)
    if alike:
        canvas.legend(figure, canvas.series(panels[0].runs))
    return figure
