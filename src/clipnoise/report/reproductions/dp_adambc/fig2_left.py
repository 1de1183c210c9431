"""Report on Figure 2 (left) of DP-AdamBC."""

from __future__ import annotations

from typing import ClassVar

from clipnoise.report.figures import canvas
from clipnoise.report.reproductions.axes import logarithmic
from clipnoise.report.reproductions.base import Data, Drawing, Report
from clipnoise.report.styles import style

CURVES = {"asymptote, small Φ": "dp-adambc", "asymptote, large Φ": "dp-adam"}


class Figure2LeftReport(Report):
    """The schedule of equation 3."""

    id: ClassVar[str] = "dp-adambc/fig2-left"
    title: ClassVar[str] = "The schedule that DP-Adam implies: Figure 2, left"
    source: ClassVar[str] = "DP-AdamBC, equation 3 and Figure 2 (left)"
    setup: ClassVar[tuple[str, ...]] = (
        "Where the noise dominates the second moment, DP-Adam steps as DP-SGDM would with "
        "η_t = η(1 − β)/((1 − β^t)√Φ), Φ = (σC/B)². The values come from dp-sgdm with "
        "schedule: adam-equivalent, the same code that trains.",
    )

    def drawings(self, data: Data) -> list[Drawing]:
        table = data.table("data")
        figure, axes = canvas.sheet(1, 2, height=2.3)
        for ax, (name, look) in zip(axes.flat, CURVES.items(), strict=True):
            own = table[table["setting"] == name]
            shape = style(look)
            ax.plot(own["step"], own["rate"], color=shape.colour, label="equation 3")
            ax.axhline(
                data.published(name), color=canvas.PALE, linestyle=":", label="published asymptote"
            )
            ax.set(title=name.removeprefix("asymptote, "), xlabel="Step t")
            logarithmic(ax, "y")
            ax.legend()
        axes[0, 0].set_ylabel("Learning rate of DP-SGDM")
        caption = "η = 0.001 and β = 0.9, for the two Φ of the paper."
        return [Drawing("Implied learning rate", caption, figure)]

    def remarks(self, data: Data) -> list[str]:
        return [
            "Both asymptotes are those of the paper's rounded Φ: 0.0001/√2.4e-8 = "
            f"{data.say('asymptote, small Φ, from the printed Φ')}. With Φ unrounded they are "
            f"{data.say('asymptote, small Φ')} and {data.say('asymptote, large Φ')}.",
            "Section 3 names η = 0.001 for the SNLI run and a rate of 6.4 for DP-SGDM. Equation 3 "
            f"gives {data.say('SNLI in section 3, η = 0.001')} for it. Appendix D names η = 0.01 "
            "for the same run, and then 6.4 is exact: section 3 has the wrong η.",
            "Both rates of appendix D for CIFAR-10 are met exactly.",
        ]
