"""The quadratic example of the design-principles paper: paths and learned preconditioners."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from clipnoise.fields import STRICT, Count, Positive, Probability, parse
from clipnoise.methods.base import Method, Public
from clipnoise.methods.registry import method_class
from clipnoise.papers.base import Findings, Quantity, Reproduction, Row
from clipnoise.papers.trials import Trials
from clipnoise.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

Curvature = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One method of the example.

    Attributes:
        method: the id.
        options: hyper-parameters other than the learning rate; a clip norm where it clips.
        grid: values of hyper-parameters that are tuned together with the learning rate.
        preconditioner: what the paper says its rates are proportional to: "1/c", "1/√(c² + s²)"
            with s the standard deviation of the noise, or nothing for a method without.
    """

    __pydantic_config__: ClassVar = STRICT

    method: str
    options: dict[str, Any]
    grid: dict[str, list[float]] = field(default_factory=dict)
    preconditioner: Literal["noiseless", "noisy"] | None = None

    def choices(self, learning_rates: Sequence[float]) -> Iterator[dict[str, float]]:
        """Yield every combination of a learning rate and the grid."""
        for values in product(learning_rates, *self.grid.values()):
            yield dict(zip(("learning_rate", *self.grid), values, strict=True))

    def build(self, choice: dict[str, float]) -> Method:
        """Return the method at one combination."""
        return parse(method_class(self.method), {**self.options, **choice}, key=self.method)


@dataclass(frozen=True)
class Outcome:
    """What one method did on one loss with one choice of what is tuned.

    Attributes:
        choice: the choice as text.
        theta: iterates of every trial, shape (T+1, trials, 2).
        rates: the rates of both coordinates over η, mean over trials and the last steps; NaN for a
            method without a first moment to compare the step with.
    """

    choice: str
    theta: Tensor
    rates: Tensor


@dataclass(frozen=True, kw_only=True)
class Quadratic(Reproduction):
    """c_x(x − a)²/2 + c_y(y − b)²/2 with a new example (a, b) ~ N(0, I) in every step.

    The learning rate and the grid of each method are tuned on the mean expected loss over the
    second half of the steps. A preconditioner is read off the steps themselves, Δ_i = −η r_i m̂_i.

    Source: On Design Principles for Private Adaptive Optimizers, sections 4.1 to 4.3.
    """

    id: ClassVar[str] = "design-principles/quadratic"

    curvatures: tuple[Curvature, ...]
    start: tuple[float, float]
    noise_multiplier: Positive
    clip_norm: Positive
    steps: Count
    trials: Count
    measured_share: Probability
    learning_rates: tuple[Positive, ...]
    variants: tuple[Variant, ...]
    seed: int

    def run(self) -> Findings:
        tables: dict[str, list[Row]] = {"data": [], "trajectories": [], "curves": [], "tuning": []}
        quantities: list[Quantity] = []
        for curvature, variant in product(self.curvatures, self.variants):
            key = {"c_x": curvature[0], "c_y": curvature[1], "method": variant.method}
            found, score = None, math.inf
            for choice in variant.choices(self.learning_rates):
                tried = self._run(curvature, variant, choice)
                loss = float(self._losses(curvature, tried.theta)[self.steps // 2 :].mean())
                tables["tuning"].append({**key, "choice": tried.choice, "loss": loss})
                if found is None or loss < score:
                    found, score = tried, loss
            assert found is not None
            self._record(tables, key, curvature, found)
            if variant.preconditioner is not None:
                quantity = self._compare(curvature, variant, found)
                quantities.append(quantity)
                rates = {"rate_x": float(found.rates[0]), "rate_y": float(found.rates[1])}
                ratios = {"ratio": quantity.measured, "predicted": quantity.formula}
                tables["data"].append(
                    {**key, "choice": found.choice, **rates, **ratios, "loss": score}
                )
        return Findings(tables, quantities)

    def _record(
        self, tables: dict[str, list[Row]], key: Row, curvature: Curvature, found: Outcome
    ) -> None:
        """Add mean path and mean loss over the trials to the tables, at most 500 steps of them."""
        losses = self._losses(curvature, found.theta).mean(dim=1)
        for t in range(0, self.steps + 1, max(1, self.steps // 500)):
            mean = found.theta[t].mean(dim=0)
            tables["curves"].append({**key, "step": t, "loss": float(losses[t])})
            tables["trajectories"].append(
                {**key, "step": t, "x": float(mean[0]), "y": float(mean[1])}
            )

    def _losses(self, curvature: Curvature, theta: Tensor) -> Tensor:
        """Return the expected loss above its minimum, shape (T+1, trials)."""
        import torch

        c = torch.tensor(curvature, dtype=theta.dtype)
        return (c * theta.square()).sum(dim=-1) / 2

    def _compare(self, curvature: Curvature, variant: Variant, found: Outcome) -> Quantity:
        c_x, c_y = curvature
        s = self.noise_multiplier * self.clip_norm if variant.preconditioner == "noisy" else 0.0
        return Quantity(
            f"rate of y / rate of x, c = ({c_x:g}, {c_y:g}), {variant.method}",
            float(found.rates[1] / found.rates[0]),
            formula=math.sqrt((c_x**2 + s**2) / (c_y**2 + s**2)),
        )

    def _run(self, curvature: Curvature, variant: Variant, choice: dict[str, float]) -> Outcome:
        import torch

        method = variant.build(choice)
        public = Public(
            noise_multiplier=self.noise_multiplier, expected_batch_size=1, total_steps=self.steps
        )
        c = torch.tensor(curvature, dtype=torch.float64)
        start = torch.tensor(self.start, dtype=torch.float64).expand(self.trials, 2)
        trials = Trials(method, public, start)
        examples, noise = generator("sampling", self.seed), generator("noise", self.seed)
        path = [start]
        ratios: list[Tensor] = []
        for t in range(1, self.steps + 1):
            shape = (self.trials, 2, 2)
            centre = torch.randn(shape[:2], generator=examples, dtype=torch.float64)
            normals = torch.randn(shape, generator=noise, dtype=torch.float64)
            trials.advance((c * (trials.theta - centre))[:, None], normals)
            if "m" in trials.buffers and t > (1 - self.measured_share) * self.steps:
                first = trials.buffers["m"] / (1 - method.betas[0] ** t)  # type: ignore[attr-defined]
                ratios.append((path[-1] - trials.theta) / (choice["learning_rate"] * first))
            path.append(trials.theta)
        rates = torch.cat(ratios).mean(dim=0) if ratios else torch.full((2,), math.nan)
        said = ", ".join(f"{name}={value:g}" for name, value in choice.items())
        return Outcome(said, torch.stack(path), rates)
