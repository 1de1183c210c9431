"""Histograms of Adam's estimates, as in DP-AdamBC, Figure 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clipnoise.report.items import FigureItem, ItemData
from clipnoise.report.lazy import diagnostics, histograms

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Estimates(FigureItem):
    """Diagnostics: histograms of first moments and of the roots of second moments."""

    kind: Literal["estimates"] = "estimates"

    def draw(self, data: ItemData) -> Figure:
        """Draw one row per configuration: the first seed with diagnostics."""
        return histograms.draw(diagnostics.diagnosed(data.runs), ("first", "root"))
