"""Where the second moment of scale-then-privatize settles: section 4.3.1 and appendix B."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from clipnoise.fields import Count, Fraction, Positive, Probability
from clipnoise.papers.base import Experiment, Findings, Image, Quantity, Results, Row
from clipnoise.papers.report import draw_line, panels, shared_legend
from clipnoise.papers.trials import MethodOptions
from clipnoise.report.figures.styles import style
from clipnoise.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

UPDATE = "largest update of Adam after gradients of 0"


@dataclass(frozen=True, kw_only=True)
class SteadyState(Experiment):
    """The same gradient g in every step, nothing clipped: v̂ over g², per coordinate."""

    id = "design-principles/steady-state"
    uses = ("adam",)
    title = "Where the second moments settle: section 4.3.1"
    source = (
        "On Design Principles for Private Adaptive Optimizers, sections 3.4.1, 4.3.1, appendix B"
    )
    setup = (
        "Every step has the same gradient g, and nothing is clipped, as the section assumes; "
        "β2 = 0.999. Half of the coordinates have g = 1, half g = 0.1. Shown is the second moment "
        "v̂ as a multiple of g², averaged over coordinates and over the last half of the steps. "
        "The section derives that scale-then-privatize settles at g²/(1 − σ²/B²): proportional to "
        "g², as without noise. Without scaling (dp-adam) it settles at g² + σ²/B², which is not.",
        "Section 3.4.1: after so many gradients of 0 that β2^t vanishes, a single gradient moves "
        "Adam with β1 = 0 by √((1 − β2^t)/(1 − β2)) learning rates, whatever its size.",
    )

    noise_to_batch: tuple[Fraction, ...]
    gradients: tuple[Positive, ...]
    coordinates: Count
    steps: Count
    measured_share: Probability
    variants: tuple[MethodOptions, ...]
    seed: int

    def run(self) -> Findings:
        rows: list[Row] = []
        quantities: list[Quantity] = []
        for variant, ratio in product(self.variants, self.noise_to_batch):
            path = self._path(variant, ratio)
            late = path[-max(1, round(self.measured_share * len(path))) :].mean(dim=0)
            for i, g in enumerate(self.gradients):
                scaled = variant.method.startswith("stp")
                settled = 1 / (1 - ratio**2) if scaled else 1 + (ratio / g) ** 2
                name = f"v̂/g², {variant.method}, g = {g:g}, σ/B = {ratio:g}"
                quantities.append(Quantity(name, float(late[i]), formula=settled))
                key = {"method": variant.method, "ratio": ratio, "gradient": g, "settled": settled}
                for t in range(0, self.steps, max(1, self.steps // 200)):
                    rows.append({**key, "step": t + 1, "moment": float(path[t, i])})
        quantities.append(Quantity(UPDATE, self._largest_update()))
        return Findings({"data": rows}, quantities)

    def _path(self, variant: MethodOptions, ratio: float) -> Tensor:
        """Return v̂/g² of every step, mean over the coordinates of a size: (steps, sizes)."""
        import torch

        draws = generator("noise", self.seed)
        sizes = torch.tensor(self.gradients, dtype=torch.float64)
        gradient = sizes.repeat_interleave(self.coordinates)
        clip_norm = variant.build().clip_norm_at(1)
        assert clip_norm is not None
        trials = variant.trials(ratio / clip_norm, self.steps, torch.zeros_like(gradient)[None])
        path = []
        for t in range(1, self.steps + 1):
            noise = torch.randn(1, 1, len(gradient), generator=draws, dtype=torch.float64)
            trials.advance(gradient[None, None], noise)
            moments = trials.buffers["v"][0] / (1 - trials.betas[1] ** t) / gradient**2
            path.append(moments.reshape(len(sizes), -1).mean(dim=1))
        return torch.stack(path)

    def _largest_update(self) -> float:
        """Return by how many learning rates a gradient moves Adam after steps without any."""
        import torch

        adam = MethodOptions(method="adam", options={"learning_rate": 1.0, "betas": (0.0, 0.999)})
        trials = adam.trials(0, self.steps, torch.zeros(1, 1, dtype=torch.float64))
        nothing = torch.zeros(1, 1, 1, dtype=torch.float64)
        for _ in range(self.steps - 1):
            trials.advance(nothing, nothing)
        before = trials.theta
        trials.advance(nothing + 1.0, nothing)
        return abs(float(trials.theta - before))

    @staticmethod
    def figures(results: Results) -> list[Image]:
        from clipnoise.report.figures import canvas

        table = results.table("data")
        figure, drawn = panels(table, ["method", "gradient"], height=2.2)
        for ax, (method, gradient), rows in drawn:
            for variant, (ratio, line) in enumerate(rows.groupby("ratio", sort=False)):
                look = style(str(method), variant)
                draw_line(ax, line["step"], line["moment"], look, f"σ/B = {ratio:g}")
                ax.axhline(line["settled"].iloc[0], color=canvas.PALE, linewidth=0.8, linestyle=":")
            ax.set(title=f"{method}, g = {gradient:g}", xlabel="Step")
        drawn[0][0].set_ylabel("v̂ / g²")
        shared_legend(figure, drawn[0][0], columns=4)
        caption = "Dotted lines: where the formulas say that the second moment settles."
        return [("Second moments along training", caption, figure)]

    @staticmethod
    def remarks(results: Results) -> list[str]:
        def text(method: str, g: str, ratio: str) -> str:
            return results.text(f"v̂/g², {method}, g = {g}, σ/B = {ratio}", 3)

        return [
            "Scale-then-privatize settles where section 4.3.1 says, and at the same multiple of "
            f"g² for both sizes: at σ/B = 0.5 {text('stp-adam', '1', '0.5')} for g = 1 and "
            f"{text('stp-adam', '0.1', '0.5')} for g = 0.1, by the formula 1.33. For dp-adam the "
            f"two are {text('dp-adam', '1', '0.5')} and {text('dp-adam', '0.1', '0.5')}.",
            "The section prints the steady state a second time as (ν*)²/(1 − σ²/B²); g² = ν*, so "
            "that square is a misprint. The (1 − β2)/(1 − cβ2) of appendix B is the same as "
            "1/(1 − σ²/B²).",
            f"One gradient moves Adam by {results.text(UPDATE, 3)} learning rates after "
            "gradients of 0; the limit is √1000 = 31.6, where section 3.4.1 prints “≈ 30”.",
        ]
