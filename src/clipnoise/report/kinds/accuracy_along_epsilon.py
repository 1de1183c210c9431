"""Accuracy or loss along the ε spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.report.formats import METRICS
from clipnoise.report.items import FigureItem, ItemData
from clipnoise.report.lazy import lines
from clipnoise.studies.file import CurveMetric
from clipnoise.studies.items import SeveralPanels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class AccuracyAlongEpsilon(SeveralPanels, FigureItem):
    """As `curves`, along the ε spent; methods that spend none are left out.

    Attributes:
        metric: one of those of `curves`.
    """

    kind: Literal["accuracy-along-epsilon"] = "accuracy-along-epsilon"
    heading: ClassVar = "Results along the ε spent"
    metric: CurveMetric | None = None

    def draw(self, data: ItemData) -> Figure:
        """Draw a subplot for each dataset, model and budget."""
        shown = METRICS[self.metric] if self.metric else data.metric
        return lines.draw(data.runs, data.curves, data.metric, shown, along="epsilon_spent")
