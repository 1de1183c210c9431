"""Variants of a method, one below the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.report.figures import canvas, rows
from clipnoise.report.items import FigureItem, ItemData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABREAST = 3  # subplots


@dataclass(frozen=True, kw_only=True)
class Ablation(FigureItem):
    """Final accuracy of each method, seed by seed."""

    kind: Literal["ablation"] = "ablation"
    deviation: ClassVar = "± {}; ticks: seeds"

    def draw(self, data: ItemData) -> Figure:
        """Draw one subplot per dataset, model and budget, the variants down the left side."""
        every, titled = canvas.series(data.runs), canvas.by_budget(data.runs)
        figure, subplots = canvas.grid(titled, ABREAST, height=0.9 + 0.3 * len(every), sharey=True)
        for ax, runs in subplots:
            rows.dots(ax, runs, every, data.metric)
        return figure
