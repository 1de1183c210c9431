"""The quadratic example of the design-principles paper: paths and learned preconditioners."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Literal

from clipnoise.fields import Count, Positive, Probability
from clipnoise.papers.base import Experiment, Findings, Image, Quantity, QuantityClaim, Results, Row
from clipnoise.papers.report import draw_line, logarithmic, panels, shared_legend
from clipnoise.papers.trials import MethodOptions, choice_text, combinations
from clipnoise.report.figures.styles import style
from clipnoise.report.formats import significant
from clipnoise.seeds import generator

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

Curvature = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class QuadraticMethod(MethodOptions):
    """One method of the example; its grid is tuned together with the learning rate.

    The paper says what the rates of its preconditioner are proportional to: 1/c ("noiseless") or
    1/√(c² + s²) ("noisy"), with s the standard deviation of the noise.
    """

    grid: dict[str, list[float]] = field(default_factory=dict)
    preconditioner: Literal["noiseless", "noisy"] | None = None


@dataclass(frozen=True)
class Trajectory:
    """One method on one loss with one choice of the tuned hyper-parameters.

    Rates are those of both coordinates over η, mean over trials and the last steps; NaN for a
    method without a first moment to compare the step with.
    """

    choice: str
    theta: Tensor  # iterates of every trial, shape (T+1, trials, 2)
    losses: Tensor  # expected, above the minimum, shape (T+1, trials)
    loss: float  # mean over the trials and the second half of the steps
    rates: Tensor


@dataclass(frozen=True, kw_only=True)
class Quadratic(Experiment):
    """c_x(x − a)²/2 + c_y(y − b)²/2 with a new example (a, b) ~ N(0, I) in every step."""

    id = "design-principles/quadratic"
    title = "What each variant learns on a quadratic: section 4.1"
    source = "On Design Principles for Private Adaptive Optimizers, sections 4.1 to 4.3"
    setup = (
        "Loss c_x(x − a)²/2 + c_y(y − b)²/2 on one new example (a, b) ~ N(0, I) per step, from "
        "(3, 3), 4,000 steps, 50 trials. The paper gives no numbers; here c_x = 1, c_y = 0.1 or "
        "0.01, and the noise on a gradient has standard deviation s = σC = 0.5, between the two. "
        "C = 5 hardly ever clips a gradient. The learning rate of each method, and the stability "
        "constant of dp-adambc and ime-adam, is tuned on the mean expected loss over the second "
        "half of the steps.",
        "The preconditioner is computed from the steps: the rate r of a coordinate is −Δ/(η m̂). "
        "“Published” is the ratio r_y/r_x that the paper's formulas give: c_x/c_y for a noiseless "
        "preconditioner, √((c_x² + s²)/(c_y² + s²)) for one learned from noisy gradients. For "
        "dp-adambc and ime-adam it is the ratio that their unbiased estimate aims at.",
    )
    claims = tuple(
        QuantityClaim(
            text,
            source,
            f"rate of y / rate of x, c = (1, 0.1), {method}",
            minus="rate of y / rate of x, c = (1, 0.1), dp-adam",
        )
        for text, source, method in (
            ("Noise flattens the preconditioner that DP-Adam learns.", "section 4.1", "adam"),
            (
                "Scale-then-privatize learns the geometry that noise hides.",
                "section 4.3",
                "stp-adam",
            ),
        )
    )

    curvatures: tuple[Curvature, ...]
    start: tuple[float, float]
    noise_multiplier: Positive
    clip_norm: Positive
    steps: Count
    trials: Count
    measured_share: Probability
    learning_rates: tuple[Positive, ...]
    variants: tuple[QuadraticMethod, ...]
    seed: int

    def run(self) -> Findings:
        tables: dict[str, list[Row]] = {"data": [], "trajectories": [], "curves": [], "tuning": []}
        quantities: list[Quantity] = []
        for curvature, variant in product(self.curvatures, self.variants):
            key = {"c_x": curvature[0], "c_y": curvature[1], "method": variant.method}
            best = None
            for choice in combinations({"learning_rate": self.learning_rates, **variant.grid}):
                tried = self._run(curvature, variant, choice)
                tables["tuning"].append({**key, "choice": tried.choice, "loss": tried.loss})
                best = tried if best is None or tried.loss < best.loss else best
            assert best is not None
            losses = best.losses.mean(dim=1)
            for t in range(0, self.steps + 1, max(1, self.steps // 500)):  # about 500 are drawn
                x, y = map(float, best.theta[t].mean(dim=0))
                tables["curves"].append({**key, "step": t, "loss": float(losses[t])})
                tables["trajectories"].append({**key, "step": t, "x": x, "y": y})
            if variant.preconditioner is not None:
                quantity = self._compare(curvature, variant, best)
                quantities.append(quantity)
                rates = {"rate_x": float(best.rates[0]), "rate_y": float(best.rates[1])}
                ratios = {"ratio": quantity.measured, "predicted": quantity.formula}
                row = {**key, "choice": best.choice, **rates, **ratios, "loss": best.loss}
                tables["data"].append(row)
        return Findings(tables, quantities)

    def _compare(
        self, curvature: Curvature, variant: QuadraticMethod, best: Trajectory
    ) -> Quantity:
        c_x, c_y = curvature
        s = self.noise_multiplier * self.clip_norm if variant.preconditioner == "noisy" else 0.0
        return Quantity(
            f"rate of y / rate of x, c = ({c_x:g}, {c_y:g}), {variant.method}",
            float(best.rates[1] / best.rates[0]),
            formula=math.sqrt((c_x**2 + s**2) / (c_y**2 + s**2)),
        )

    def _run(
        self, curvature: Curvature, variant: QuadraticMethod, choice: Mapping[str, float]
    ) -> Trajectory:
        import torch

        c = torch.tensor(curvature, dtype=torch.float64)
        start = torch.tensor(self.start, dtype=torch.float64).expand(self.trials, 2)
        trials = variant.trials(self.noise_multiplier, self.steps, start, **choice)
        examples, noise = generator("sampling", self.seed), generator("noise", self.seed)
        path = [start]
        ratios: list[Tensor] = []
        for t in range(1, self.steps + 1):
            shape = (self.trials, 2, 2)
            centre = torch.randn(shape[:2], generator=examples, dtype=torch.float64)
            normals = torch.randn(shape, generator=noise, dtype=torch.float64)
            trials.advance((c * (trials.theta - centre))[:, None], normals)
            if "m" in trials.buffers and t > (1 - self.measured_share) * self.steps:
                first = trials.buffers["m"] / (1 - trials.betas[0] ** t)
                ratios.append((path[-1] - trials.theta) / (choice["learning_rate"] * first))
            path.append(trials.theta)
        rates = torch.cat(ratios).mean(dim=0) if ratios else torch.full((2,), math.nan)
        theta = torch.stack(path)
        losses = (c * theta.square()).sum(dim=-1) / 2
        loss = float(losses[self.steps // 2 :].mean())
        return Trajectory(choice_text(choice), theta, losses, loss, rates)

    @staticmethod
    def figures(results: Results) -> list[Image]:
        return [_draw_paths(results), _draw_rates(results.table("data"))]

    @staticmethod
    def remarks(results: Results) -> list[str]:
        rates = results.table("data")
        (c_x, c_y), chosen = next(iter(rates.groupby(["c_x", "c_y"], sort=False)))
        choices = "; ".join(f"{row['method']} {row['choice']}" for _, row in chosen.iterrows())

        def ratios(method: str) -> str:
            rows = rates[rates["method"] == method]
            return " and ".join(significant(value, 3) for value in rows["ratio"])

        return [
            "Adam's ratio is c_x/c_y, the inverse curvature. DP-Adam's is flattened to what the "
            f"noise leaves of it ({ratios('dp-adam')} for the two losses). StP-Adam reaches the "
            f"noiseless ratio from released gradients alone: {ratios('stp-adam')}. These are the "
            "paper's claims of sections 4.1 and 4.3.",
            "The noiseless preconditioner without scaling carries noise into flat directions: y "
            "then moves far from 0, and its gradients grow, which shows as a ratio below c_x/c_y "
            f"({ratios('dp-adam-noiseless')}).",
            "The unbiased estimates come as close as their tuned stability constants allow "
            f"(dp-adambc {ratios('dp-adambc')}, ime-adam {ratios('ime-adam')}). Where the noise "
            "contributes more to the second moment than the signal, the estimate is often negative "
            "and the constant alone determines the rate of y: smaller constants gave larger "
            "losses. For ime-adam the noise on the square grows with C²; a C that clips would "
            "trade noise for bias.",
            f"Chosen by tuning for c = ({c_x:g}, {c_y:g}): {choices}.",
        ]


def _draw_paths(results: Results) -> Image:
    from clipnoise.report.figures import canvas

    figure, axes = canvas.sheet(2, 2, height=2.6)
    for row, name, x, y in ((0, "trajectories", "x", "y"), (1, "curves", "step", "loss")):
        groups = results.table(name).groupby(["c_x", "c_y"], sort=False)
        for ax, ((c_x, c_y), lines) in zip(axes[row], groups, strict=True):
            for method, line in lines.groupby("method", sort=False):
                draw_line(ax, line[x], line[y], style(str(method)), method)
            if row == 0:
                frame = {"xlim": (-0.6, 3.3), "ylim": (-2, 5)}
                ax.set(title=f"c = ({c_x:g}, {c_y:g})", xlabel="x", ylabel="y", **frame)
            else:
                ax.set(xlabel="Step", ylabel="Expected loss")
                logarithmic(ax, "y")
    shared_legend(figure, axes[0, 0], columns=4)
    caption = (
        "Top: mean path over the trials, from (3, 3); paths that leave the frame are cut off. "
        "Bottom: expected loss above its minimum, mean over the trials."
    )
    return "Paths and losses", caption, figure


def _draw_rates(table: pd.DataFrame) -> Image:
    from clipnoise.report.figures import canvas

    figure, drawn = panels(table, ["c_x", "c_y"], height=2.4)
    for ax, (c_x, c_y), rows in drawn:
        places = range(len(rows))
        colours = [style(str(method)).colour for method in rows["method"]]
        ax.scatter(rows["ratio"], places, color=colours, zorder=3, label="measured")
        ax.scatter(rows["predicted"], places, marker="|", s=120, color=canvas.INK, label="formula")
        ax.set_yticks(list(places), list(rows["method"]))
        ax.set(title=f"c = ({c_x:g}, {c_y:g})", xlabel="r_y / r_x")
        logarithmic(ax, "x")
        ax.invert_yaxis()
    drawn[1][0].set_yticklabels([])
    caption = "Rate of y over rate of x. Dots: measured; bars: the paper's formulas."
    return "Learned preconditioners", caption, figure
