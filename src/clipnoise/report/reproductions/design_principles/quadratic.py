"""Report on the quadratic example of the design-principles paper."""

from __future__ import annotations

from typing import ClassVar

import pandas as pd

from clipnoise.report.figures import canvas
from clipnoise.report.formats import significant
from clipnoise.report.reproductions.axes import logarithmic
from clipnoise.report.reproductions.base import Data, Drawing, Report
from clipnoise.report.styles import style


class QuadraticReport(Report):
    """Trajectories and learned preconditioners on two curvatures."""

    id: ClassVar[str] = "design-principles/quadratic"
    title: ClassVar[str] = "What each variant learns on a quadratic: section 4.1"
    source: ClassVar[str] = (
        "On Design Principles for Private Adaptive Optimizers, sections 4.1 to 4.3"
    )
    setup: ClassVar[tuple[str, ...]] = (
        "Loss c_x(x − a)²/2 + c_y(y − b)²/2 on one new example (a, b) ~ N(0, I) per step, from "
        "(3, 3), 4,000 steps, 50 trials. The paper gives no numbers; here c_x = 1, c_y = 0.1 or "
        "0.01, and the noise on a gradient has standard deviation s = σC = 0.5, between the two. "
        "C = 5 hardly ever clips a gradient. Each method runs at its own learning rate, dp-adambc "
        "and ime-adam at their own stability constant too, tuned on the mean expected loss of the "
        "second half of the steps.",
        "A preconditioner is read off the steps: the rate r of a coordinate is −Δ/(η m̂). "
        "“Published” is what the paper's formulas say of the ratio r_y/r_x: c_x/c_y for a "
        "noiseless preconditioner, √((c_x² + s²)/(c_y² + s²)) for one learned from noisy "
        "gradients. For dp-adambc and ime-adam it is what their unbiased estimate aims at.",
    )

    def drawings(self, data: Data) -> list[Drawing]:
        paths, curves = data.table("trajectories"), data.table("curves")
        figure, axes = canvas.sheet(2, 2, height=2.6)
        for column, (key, _) in enumerate(paths.groupby(["c_x", "c_y"], sort=False)):
            for ax, table, x, y in (
                (axes[0, column], paths, "x", "y"),
                (axes[1, column], curves, "step", "loss"),
            ):
                own = table[(table["c_x"] == key[0]) & (table["c_y"] == key[1])]
                for method, line in own.groupby("method", sort=False):
                    look = style(str(method))
                    ax.plot(
                        line[x],
                        line[y],
                        color=look.colour,
                        linestyle=look.line,
                        label=str(method),
                    )
            axes[0, column].set(
                title=f"c = ({key[0]:g}, {key[1]:g})",
                xlabel="x",
                ylabel="y",
                xlim=(-0.6, 3.3),
                ylim=(-2, 5),
            )
            axes[1, column].set(xlabel="Step", ylabel="Expected loss")
            logarithmic(axes[1, column], "y")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        caption = (
            "Top: mean path over the trials, from (3, 3); paths that leave the frame are cut. "
            "Bottom: expected loss above its minimum, mean over the trials."
        )
        return [Drawing("Paths and losses", caption, figure), self._rates(data.table("data"))]

    def _rates(self, table: pd.DataFrame) -> Drawing:
        pairs = list(table.groupby(["c_x", "c_y"], sort=False))
        figure, axes = canvas.sheet(1, len(pairs), height=2.4)
        for ax, (key, own) in zip(axes.flat, pairs, strict=True):
            places = range(len(own))
            colours = [style(str(method)).colour for method in own["method"]]
            ax.scatter(own["ratio"], places, color=colours, zorder=3, label="measured")
            ax.scatter(
                own["predicted"], places, marker="|", s=120, color=canvas.INK, label="formula"
            )
            ax.set_yticks(list(places), list(own["method"]))
            ax.set(title=f"c = ({key[0]:g}, {key[1]:g})", xlabel="r_y / r_x")
            logarithmic(ax, "x")
            ax.invert_yaxis()
        axes[0, 1].set_yticklabels([])
        caption = "Rate of y over rate of x. Dots: measured; bars: the paper's formulas."
        return Drawing("Learned preconditioners", caption, figure)

    def remarks(self, data: Data) -> list[str]:
        rates = data.table("data")
        first = rates.iloc[0]
        own = rates[(rates["c_x"] == first["c_x"]) & (rates["c_y"] == first["c_y"])]
        chosen = "; ".join(f"{row['method']} {row['choice']}" for _, row in own.iterrows())

        def line(method: str) -> str:
            own = rates[rates["method"] == method]
            return " and ".join(significant(value, 3) for value in own["ratio"])

        return [
            "Adam's ratio is c_x/c_y, the inverse curvature; DP-Adam's flattens to what the noise "
            f"leaves of it ({line('dp-adam')} for the two losses). StP-Adam gets the noiseless "
            f"ratio from released gradients alone: {line('stp-adam')}. These are the paper's "
            "claims of sections 4.1 and 4.3.",
            "The noiseless preconditioner without scaling takes noise into flat directions: y then "
            "moves far from 0, and its gradients with it, which shows as a ratio below c_x/c_y "
            f"({line('dp-adam-noiseless')}).",
            "The unbiased estimates come as near as their tuned stability constants let them "
            f"(dp-adambc {line('dp-adambc')}, ime-adam {line('ime-adam')}). Where the noise's "
            "share of the second moment is larger than the signal's, the estimate is often "
            "negative and the constant alone sets the rate of y: smaller constants gave larger "
            "losses. For ime-adam the noise on the square grows with C²; a C that clips would "
            "trade noise for bias.",
            f"Chosen by tuning for c = ({first['c_x']:g}, {first['c_y']:g}): {chosen}.",
        ]
