"""How many coordinates of an unbiased second moment are negative, by dimension and B/σ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

from clipnoise.fields import STRICT, Count, Positive, Probability, parse
from clipnoise.methods.base import Public
from clipnoise.methods.registry import method_class
from clipnoise.papers.base import Findings, Quantity, Reproduction, Row
from clipnoise.papers.trials import Trials
from clipnoise.seeds import generator


@dataclass(frozen=True, kw_only=True)
class Example:
    """A claim of the paper about a setting: the largest dimension with few negative coordinates.

    Attributes:
        name: of the published cell.
        batch_size: B.
        noise_multiplier: σ.
        norm: ‖g‖/C of the mean gradient: 1 where all examples agree, 1/√B where they are
            orthogonal.
    """

    __pydantic_config__: ClassVar = STRICT

    name: str
    batch_size: Positive
    noise_multiplier: Positive
    norm: Positive


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One method on one shape of gradient: all coordinates equal in size, or normal ("random")."""

    __pydantic_config__: ClassVar = STRICT

    method: str
    options: dict[str, Any]
    gradient: Literal["equal", "random"]


@dataclass(frozen=True, kw_only=True)
class NegativeCoordinates(Reproduction):
    """One example with the same gradient of norm C = 1 in every step, so that only noise varies.

    Counted are v̂ − Φ < 0 for dp-adambc and v̂ < 0 for ime-adam, over coordinates and trials at the
    last step. For dp-adambc only B/σ matters, so that B = 1 stands for any batch whose examples
    agree; the square that ime-adam releases has 3/2 times the noise at B = 1 that it has at large
    B.

    Source: On Design Principles for Private Adaptive Optimizers, section 4.4.1, inequalities 2, 3.
    """

    id: ClassVar[str] = "design-principles/negative-coordinates"

    steps: Count
    dimensions: tuple[Count, ...]
    relative: tuple[Positive, ...]
    coordinates_at_least: Count
    share: Probability
    threshold: Positive
    sweeps: tuple[Sweep, ...]
    examples: tuple[Example, ...]
    seed: int

    def run(self) -> Findings:
        rows: list[Row] = [
            {
                "method": sweep.method,
                "gradient": sweep.gradient,
                "dimension": dimension,
                "signal_to_noise": relative * math.sqrt(dimension),
                "relative": relative,
                "negative": self._negative(sweep, dimension, relative * math.sqrt(dimension)),
            }
            for sweep in self.sweeps
            for dimension in self.dimensions
            for relative in self.relative
        ]
        return Findings({"data": rows}, self._quantities(rows))

    def _quantities(self, rows: list[Row]) -> list[Quantity]:
        """Return the (B/σ)/√m at which a share of the coordinates is negative, and what follows."""
        cell = f"(B/σ)/√m at which a share of {self.share:g} is negative"
        quantities: list[Quantity] = []
        found: dict[str, float | None] = {}
        for sweep in self.sweeps:
            if sweep.method != "dp-adambc":
                continue
            points = [
                (row["relative"], row["negative"])
                for row in rows
                if (row["method"], row["gradient"]) == (sweep.method, sweep.gradient)
            ]
            found[sweep.gradient] = crossing(points, self.share)
            name = f"{cell}, coordinates {sweep.gradient}"
            quantities.append(Quantity(name, found[sweep.gradient], cell))
        for example in self.examples:
            ratio = example.norm * example.batch_size / example.noise_multiplier
            thresholds = {"the inequality": self.threshold, "the measurement": found.get("equal")}
            for source, threshold in thresholds.items():
                largest = None if threshold is None else (ratio / threshold) ** 2
                quantities.append(Quantity(f"{example.name}, by {source}", largest, example.name))
        return quantities

    def _negative(self, sweep: Sweep, dimension: int, ratio: float) -> float:
        """Return the share of negative coordinates after the last step."""
        import torch

        draws = generator("noise", self.seed)
        count = max(1, self.coordinates_at_least // dimension)
        gradient = torch.ones(count, 1, dimension)
        if sweep.gradient == "random":
            gradient = torch.randn(gradient.shape, generator=draws)
        gradient = gradient / gradient.norm(dim=2, keepdim=True)
        method = parse(method_class(sweep.method), sweep.options, key=sweep.method)
        public = Public(noise_multiplier=1 / ratio, expected_batch_size=1, total_steps=self.steps)
        trials = Trials(method, public, torch.zeros(count, dimension))
        shape = (count, method.query.draws, dimension)
        for _ in range(self.steps):
            trials.advance(gradient, torch.randn(shape, generator=draws))
        beta2 = method.betas[1]  # type: ignore[attr-defined]
        bias = public.noise_variance(1.0) if sweep.method == "dp-adambc" else 0.0
        second = trials.buffers["v"] / (1 - beta2**self.steps)
        return float((second < bias).double().mean())


def crossing(points: list[tuple[float, float]], share: float) -> float | None:
    """Return where a falling curve through points passes a height; None where it does not.

    Args:
        points: (position, height), in any order; positions above 0. Heights at the same position
            are averaged.
        share: the height.

    Returns:
        The position, interpolated between neighbours over its logarithm.
    """
    heights: dict[float, list[float]] = {}
    for position, height in points:
        heights.setdefault(position, []).append(height)
    ordered = sorted((x, sum(ys) / len(ys)) for x, ys in heights.items())
    for (x0, y0), (x1, y1) in pairwise(ordered):
        if y0 > share >= y1:
            weight = (y0 - share) / (y0 - y1)
            return math.exp((1 - weight) * math.log(x0) + weight * math.log(x1))
    return None
