"""Figure 3 of AdaDPS: linear regression where the rare features are the informative ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from clipnoise.fields import STRICT, Count, NonNegative, Positive, Probability, parse
from clipnoise.methods.base import Method, Public, State, step
from clipnoise.methods.registry import method_class
from clipnoise.papers.base import Findings, Quantity, Reproduction, Row
from clipnoise.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Clipping, Unreleased


@dataclass(frozen=True, kw_only=True)
class Features:
    """A group of features: how many, how often each is 1, its true weight, its known size A."""

    __pydantic_config__: ClassVar = STRICT

    count: Count
    frequency: Probability
    weight: float
    side_information: Positive


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A method with what is fixed and what is tuned.

    Attributes:
        method: the id.
        label: what it is called in the figure, where that is not the id.
        fixed: hyper-parameters that are not tuned.
        grid: values to try by hyper-parameter; every combination is tried.
    """

    __pydantic_config__: ClassVar = STRICT

    method: str
    label: str | None = None
    fixed: dict[str, Any]
    grid: dict[str, list[Any]]

    @property
    def name(self) -> str:
        return self.label or self.method

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yield every combination of the grid."""
        for values in product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))

    def build(self, choice: Mapping[str, Any]) -> Method:
        """Return the method with a combination of the grid."""
        return parse(method_class(self.method), {**self.fixed, **choice}, key=self.name)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel: without privacy when the noise multiplier is 0."""

    __pydantic_config__: ClassVar = STRICT

    name: str
    noise_multiplier: NonNegative
    steps: Count
    evaluate_every: Count
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Problem:
    """Features x (n, d), labels y (n,), the side information A (d,)."""

    x: Tensor
    y: Tensor
    side_information: Tensor

    def loss(self, theta: Tensor) -> float:
        """Return Σ (wᵀx − y)²/2n."""
        return float((self.x @ theta - self.y).square().mean()) / 2

    def gradients(self, theta: Tensor, batch: Tensor) -> Tensor:
        """Return per-example gradients, shape (b, d)."""
        x = self.x[batch]
        return (x @ theta - self.y[batch])[:, None] * x


@dataclass(frozen=True, kw_only=True)
class Figure3(Reproduction):
    """Training loss of private and non-private methods on the toy regression of section 4.1.

    One training set; runs differ in initial parameters, batches and noise. A method's grid is tuned
    on the mean final training loss over runs of their own.

    Source: AdaDPS, section 4.1 and Figure 3.
    """

    id: ClassVar[str] = "adadps/fig3"

    examples: Count
    features: tuple[Features, ...]
    label_noise: NonNegative
    initial_deviation: NonNegative
    expected_batch_size: Count
    delta: Probability
    accountants: tuple[str, ...]
    panels: tuple[Panel, ...]
    data_seed: int
    tuning_seeds: tuple[int, ...]
    seeds: tuple[int, ...]

    def run(self) -> Findings:
        problem = self._problem()
        curves: list[Row] = []
        tuning: list[Row] = []
        finals: list[Row] = []
        quantities = self._privacy()
        for panel, candidate in [(p, c) for p in self.panels for c in p.candidates]:
            tried = self._tune(problem, panel, candidate)
            tuning += tried
            best = min(tried, key=lambda row: row["loss"])
            runs = {
                seed: self._train(problem, panel, candidate.build(best["choice"]), seed)
                for seed in self.seeds
            }
            key = {"panel": panel.name, "label": candidate.name, "method": candidate.method}
            for seed, losses in runs.items():
                curves += [{**key, "seed": seed, "step": t, "loss": losses[t]} for t in losses]
                finals.append({**key, "seed": seed, "loss": losses[panel.steps]})
            mean = sum(losses[panel.steps] for losses in runs.values()) / len(runs)
            quantities.append(Quantity(f"final loss, {panel.name}, {candidate.name}", mean))
        tables = {"curves": curves, "tuning": [_flat(row) for row in tuning], "data": finals}
        return Findings(tables, quantities)

    def _problem(self) -> Problem:
        import torch

        draws = generator("split", self.data_seed)

        def spread(name: str) -> Tensor:
            values = [getattr(group, name) for group in self.features for _ in range(group.count)]
            return torch.tensor(values, dtype=torch.float64)

        frequency = spread("frequency")
        shape = (self.examples, len(frequency))
        x = (torch.rand(shape, generator=draws, dtype=torch.float64) < frequency).double()
        noise = torch.randn(self.examples, generator=draws, dtype=torch.float64)
        y = x @ spread("weight") + self.label_noise * noise
        return Problem(x, y, spread("side_information"))

    def _privacy(self) -> list[Quantity]:
        """Return ε of every private panel by every accountant."""
        from clipnoise.privacy.accountants.poisson import epsilon

        return [
            Quantity(
                f"ε, {panel.name}, {accountant}",
                epsilon(
                    accountant,
                    noise_multiplier=panel.noise_multiplier,
                    sampling_rate=self.expected_batch_size / self.examples,
                    steps=panel.steps,
                    delta=self.delta,
                ),
                f"ε, {panel.name}",
            )
            for panel in self.panels
            for accountant in self.accountants
            if panel.noise_multiplier > 0
        ]

    def _tune(self, problem: Problem, panel: Panel, candidate: Candidate) -> list[Row]:
        rows: list[Row] = []
        for choice in candidate.combinations():
            method = candidate.build(choice)
            total = 0.0
            for seed in self.tuning_seeds:
                total += self._train(problem, panel, method, seed)[panel.steps]
            loss = total / len(self.tuning_seeds)
            rows.append(
                {
                    "panel": panel.name,
                    "label": candidate.name,
                    "choice": choice,
                    "loss": loss if math.isfinite(loss) else math.inf,
                }
            )
        return rows

    def _train(self, problem: Problem, panel: Panel, method: Method, seed: int) -> dict[int, float]:
        """Train one run and return the training loss by step; infinite once it diverges."""
        import torch

        from clipnoise.gradients.per_example import clipped_sum
        from clipnoise.privacy.noise.independent import IndependentNoise
        from clipnoise.privacy.samplers.poisson import PoissonSampler

        initial = torch.randn(
            problem.x.shape[1], generator=generator("initialisation", seed), dtype=torch.float64
        )
        theta = self.initial_deviation * initial
        state = State(like=theta)
        noise = IndependentNoise(generator("noise", seed), theta)
        sampler = PoissonSampler(
            self.examples,
            self.expected_batch_size / self.examples,
            generator("sampling", seed),
        )
        public = Public(
            noise_multiplier=panel.noise_multiplier,
            expected_batch_size=self.expected_batch_size,
            total_steps=panel.steps,
            side_information=problem.side_information,
        )
        losses = {0: problem.loss(theta)}
        for t in range(1, panel.steps + 1):
            rows = problem.gradients(theta, sampler.sample())

            def form(plan: Clipping, rows: Tensor = rows) -> Unreleased:
                return clipped_sum([rows], plan)

            theta = theta + step(
                method,
                state,
                public,
                available=1,
                clipped_sum=form,
                noise=noise.next(method.query.draws) if method.query.draws else (),
            )
            if t % panel.evaluate_every == 0 or t == panel.steps:
                losses[t] = problem.loss(theta)
                if not losses[t] < 1e6:
                    return {**losses, panel.steps: math.inf}
        return losses


def _flat(row: Row) -> Row:
    """Return a row of the tuning table with the choice as text."""
    choice = ", ".join(f"{name}={value:g}" for name, value in row["choice"].items())
    return {**row, "choice": choice}
