"""Report on negative second moments."""

from __future__ import annotations

from typing import ClassVar

from clipnoise.report.figures import canvas
from clipnoise.report.reproductions.axes import logarithmic
from clipnoise.report.reproductions.base import Data, Drawing, Report
from clipnoise.report.styles import COLOURS, MARKERS

CELL = "(B/σ)/√m at which a share of 0.25 is negative"


class NegativeCoordinatesReport(Report):
    """The share of negative coordinates against dimension and B/σ."""

    id: ClassVar[str] = "design-principles/negative-coordinates"
    title: ClassVar[str] = "Negative second moments: section 4.4"
    source: ClassVar[str] = (
        "On Design Principles for Private Adaptive Optimizers, section 4.4.1 and appendix C"
    )
    setup: ClassVar[tuple[str, ...]] = (
        "The mean gradient is the same vector of norm C = 1 in every step, as the section assumes; "
        "after 3,000 steps (β2 = 0.999) the share of coordinates is counted whose second moment is "
        "negative: v̂ − Φ for dp-adambc, v̂ for ime-adam. Both methods run as in training; m is the "
        "dimension. Coordinates are all equal in size, or normal (“random”).",
    )

    def drawings(self, data: Data) -> list[Drawing]:
        table = data.table("data")
        groups = list(table.groupby(["method", "gradient"], sort=False))
        figure, axes = canvas.sheet(1, len(groups), height=2.6, sharey=True)
        for ax, ((method, gradient), own) in zip(axes.flat, groups, strict=True):
            for rank, (dimension, line) in enumerate(own.groupby("dimension")):
                ax.plot(
                    line["relative"],
                    100 * line["negative"],
                    color=COLOURS[rank % len(COLOURS)],
                    marker=MARKERS[rank % len(MARKERS)],
                    markersize=4,
                    label=f"m = {dimension:,}",
                )
            ax.axhline(25, color=canvas.PALE, linewidth=0.8, linestyle=":")
            ax.axvline(0.15, color=canvas.PALE, linewidth=0.8, linestyle=":")
            ax.set(title=f"{method}, {gradient}", xlabel="(B/σ)/√m")
            logarithmic(ax, "x")
        axes[0, 0].set_ylabel("Negative coordinates (%)")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        caption = "Dotted: the paper's threshold 0.15 and its share of one quarter."
        return [Drawing("Share of negative coordinates", caption, figure)]

    def remarks(self, data: Data) -> list[str]:
        equal = "largest m at B = 2048, σ = 1, equal gradients"
        orthogonal = "largest m at B = 2048, σ = 1, orthogonal gradients"
        return [
            "Inequality 2, B/σ ≳ 0.15·√m, holds as an equality for equal coordinates: a quarter is "
            f"negative at {data.say(f'{CELL}, coordinates equal')}. For dp-adambc the share "
            "depends on (B/σ)/√m alone: the curves of all dimensions lie on each other. With "
            "coordinates of unequal size more is needed: "
            f"{data.say(f'{CELL}, coordinates random')}.",
            "For ime-adam the curves move right with m: the noise on the released square has "
            "standard deviation of order σ/B per step against g² = 1/m, so that B/σ must grow with "
            "m, not √m. The paper calls its conclusions optimistic for independent moments.",
            "The paper's examples do not follow from its inequality. B = 2,048 and σ = 1 give "
            f"m ≤ (2,048/0.15)² = {data.say(equal + ', by the inequality')}, where it prints 10⁶, "
            f"and with orthogonal gradients m ≤ {data.say(orthogonal + ', by the inequality')}, "
            "where it prints 2·10⁴. The paper allows for constants hidden in “≳”; the measurement "
            "shows that for equal coordinates there are none.",
            "The variance in the derivation has g²σ²/B² where 4g²σ²/B² is meant (the square's "
            "cross term is 2gz/B); at the threshold the other term, 2σ⁴/B⁴, is over twenty times "
            "larger, so the constant 0.15 stands.",
        ]
