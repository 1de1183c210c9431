"""Adam's moments with and without noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clipnoise.report import diagnostics
from clipnoise.report.figures import histograms, noise_bias
from clipnoise.report.items import FigureItem, ItemData
from clipnoise.studies.items import Values

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Moments(FigureItem):
    """Diagnostics of Adam's moments with and without noise.

    Attributes:
        show: `histograms` of first moments, second moments with Φ, and updates; `estimates`,
            histograms of first moments and of the roots of second moments; `corrections`, of these
            roots and of the last method's updates, rescaled; or `noise-bias`, the share of second
            moments below Φ, norms, and all second moments sorted.
    """

    kind: Literal["moments"] = "moments"
    show: Literal["histograms", "estimates", "corrections", "noise-bias"] = "histograms"

    def check(self, methods: Values, training: Values, file: str, key: str) -> None:
        """Refuse panels that record no diagnostics."""
        diagnostics.require_diagnostics(training, file, key)

    def draw(self, data: ItemData) -> Figure:
        """Draw the first seed with diagnostics of each configuration."""
        configurations = diagnostics.diagnosed(data.runs)
        if self.show == "noise-bias":
            return noise_bias.draw(configurations)
        if self.show == "corrections":
            return histograms.corrections(configurations)
        shown = ("first", "root") if self.show == "estimates" else ("first", "second", "update")
        return histograms.draw(configurations, shown)
