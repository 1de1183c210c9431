"""What a correction of second moments changes, as in DP-AdamBC, Figure 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clipnoise.report.items import FigureItem, ItemData
from clipnoise.report.lazy import canvas, diagnostics, histograms

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Corrections(FigureItem):
    """Diagnostics: roots of the second moments, and the last one's updates, rescaled."""

    kind: Literal["corrections"] = "corrections"

    def draw(self, data: ItemData) -> Figure:
        """Draw the roots of second moments of each configuration, then the last one's updates.

        Source: DP-AdamBC, Figure 4, whose updates are rescaled to [−1, 1].
        """
        configurations = diagnostics.diagnosed(data.runs)
        if not configurations:
            return canvas.blank(histograms.NOTHING)
        shown = [*((one, "root") for one in configurations), (configurations[-1], "rescaled")]
        figure, axes = canvas.sheet(1, len(shown), height=2.6)
        for ax, (configuration, name) in zip(axes[0], shown, strict=True):
            histograms.subplot(ax, configuration, name)
            ax.set_title(f"{histograms.PANELS[name][0]},\n{configuration.title}")
        axes[0, 0].set_ylabel("Coordinates (%)")
        histograms.legend(figure)
        return figure
