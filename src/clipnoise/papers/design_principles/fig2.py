"""Figure 2 of the design-principles paper: private AdaGrad on sparse 1-D logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from clipnoise.fields import STRICT, Count, Fraction, NonNegative, Positive, parse
from clipnoise.methods.base import Method, Public
from clipnoise.methods.registry import method_class
from clipnoise.papers.base import Findings, Quantity, Reproduction, Row
from clipnoise.papers.trials import Trials
from clipnoise.seeds import generator

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TRUTH = "ground truth"
REFERENCE = "non-private AdaGrad"  # an experiment is lucky when this one loses nothing on the truth


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One row of the figure.

    Attributes:
        name: as in the report.
        cell: the row of the figure it belongs to.
        method: the id.
        options: hyper-parameters other than the learning rate.
        noise_multiplier: σ.
        square_noise: factor on the noise of the released square; 1 is what its sensitivity asks.
    """

    __pydantic_config__: ClassVar = STRICT

    name: str
    cell: str
    method: str
    options: dict[str, Any]
    noise_multiplier: NonNegative
    square_noise: Positive = 1.0

    def build(self, learning_rate: float) -> Method:
        """Return the method at one learning rate."""
        values = {**self.options, "learning_rate": learning_rate}
        return parse(method_class(self.method), values, key=self.name)


@dataclass(frozen=True)
class Examples:
    """Inputs and labels of all experiments, each of shape (experiments, examples)."""

    x: Tensor
    y: Tensor

    def losses(self, theta: Tensor) -> Tensor:
        """Return the mean logistic loss of each experiment at its parameters.

        Args:
            theta: shape (experiments, k).

        Returns:
            Shape (experiments, k).
        """
        import torch

        rows = []
        for x, y, values in zip(self.x, self.y, theta, strict=True):
            softplus = torch.nn.functional.softplus(values[:, None] * x).mean(dim=1)
            rows.append(softplus - values * (x * y).mean())
        return torch.stack(rows)


def expected_loss(theta: float) -> float:
    """Return E[log(1 + e^{θx}) − yθx] for x ~ N(0, 1), y ~ Bern(1/(1 + e^{−x})), by quadrature."""
    import numpy as np
    from scipy.special import expit

    nodes, weights = np.polynomial.hermite_e.hermegauss(150)
    values = np.logaddexp(0, theta * nodes) - expit(nodes) * theta * nodes
    return float(weights @ values / weights.sum())


@dataclass(frozen=True, kw_only=True)
class Figure2(Reproduction):
    """One epoch of (private) AdaGrad in many experiments: each a training set, a test set, noises.

    The paper has one experiment. Here are many, so that its numbers can be seen among those that
    other draws of the data would have given. The learning rate is tuned on the test loss, once for
    all experiments and once for each, as somebody with one experiment would.

    Source: On Design Principles for Private Adaptive Optimizers, section 5.1 and Figure 2.
    """

    id: ClassVar[str] = "design-principles/fig2"

    examples: Count
    zero_fraction: Fraction
    test_examples: Count
    noise_draws: Count
    experiments: Count
    learning_rates: tuple[Positive, ...]
    variants: tuple[Variant, ...]
    seed: int

    def run(self) -> Findings:
        train, test = self._data()
        truth = test.losses(test.x.new_ones(self.experiments, 1))
        excess = {
            variant.name: self._excess(variant, train, test, truth) for variant in self.variants
        }
        lucky = excess[REFERENCE].amin(dim=0).abs() < 5e-5
        rows: list[Row] = []
        quantities = [
            Quantity("loss of the truth, exact expectation", expected_loss(1.0), TRUTH),
            Quantity("loss of the truth, test sets: mean", float(truth.mean()), TRUTH),
            Quantity("loss of the truth, test sets: standard deviation", float(truth.std())),
            Quantity("share of lucky experiments", float(lucky.double().mean())),
        ]
        for variant in self.variants:
            values = excess[variant.name]
            rows += self._rows(variant, values, truth, lucky)
            for reading, value in _readings(values, excess[REFERENCE], lucky).items():
                name, cell = f"excess, {variant.name}, {reading}", f"excess, {variant.cell}"
                quantities.append(Quantity(name, value, cell))
        tuning: list[Row] = [
            {"variant": v.name, "learning_rate": rate, "excess": float(excess[v.name][i].mean())}
            for v in self.variants
            for i, rate in enumerate(self.learning_rates)
        ]
        return Findings({"data": rows, "tuning": tuning}, quantities)

    def _data(self) -> tuple[Examples, Examples]:
        import torch

        draws = generator("split", self.seed)

        def sample(count: int) -> Examples:
            x = torch.randn(self.experiments, count, generator=draws, dtype=torch.float64)
            uniform = torch.rand(self.experiments, count, generator=draws, dtype=torch.float64)
            return Examples(x, (uniform < torch.sigmoid(x)).double())

        train = sample(self.examples)
        order = torch.rand(self.experiments, self.examples, generator=draws).argsort(dim=1)
        zero = order < round(self.zero_fraction * self.examples)
        return Examples(train.x.masked_fill(zero, 0.0), train.y), sample(self.test_examples)

    def _excess(self, variant: Variant, train: Examples, test: Examples, truth: Tensor) -> Tensor:
        """Return test loss minus that of the truth, mean over noises, (rates, experiments)."""
        import torch

        rows = []
        for rate in self.learning_rates:
            theta = self._train(variant, variant.build(rate), train)
            rows.append((test.losses(theta) - truth).mean(dim=1))
        return torch.stack(rows)

    def _train(self, variant: Variant, method: Method, train: Examples) -> Tensor:
        """Return the final parameters, shape (experiments, noises); one noise without noise."""
        import torch

        copies = self.noise_draws if variant.noise_multiplier > 0 else 1
        count = self.experiments * copies
        x = train.x.repeat_interleave(copies, dim=0)
        y = train.y.repeat_interleave(copies, dim=0)
        public = Public(
            noise_multiplier=variant.noise_multiplier,
            expected_batch_size=1,
            total_steps=self.examples,
        )
        factors = torch.tensor([1.0, variant.square_noise], dtype=torch.float64)
        trials = Trials(method, public, torch.zeros(count, 1, dtype=torch.float64))
        for t in range(self.examples):
            residual = torch.sigmoid(trials.theta[:, 0] * x[:, t]) - y[:, t]
            noise = self._noise[t, :count] * factors
            trials.advance((residual * x[:, t])[:, None, None], noise[:, :, None])
        return trials.theta.reshape(self.experiments, copies)

    @cached_property
    def _noise(self) -> Tensor:
        """C⁻¹z for every trial and both releases, shape (T, trials, 2)."""
        import torch

        from clipnoise.privacy.noise.strategies import optimal_dense

        strategy = torch.from_numpy(optimal_dense(self.examples).matrix())
        shape = (self.examples, self.experiments * self.noise_draws * 2)
        z = torch.randn(shape, generator=generator("noise", self.seed), dtype=torch.float64)
        noise: Tensor = torch.linalg.solve_triangular(strategy, z, upper=False)
        return noise.reshape(self.examples, -1, 2)

    def _rows(
        self, variant: Variant, values: Tensor, truth: Tensor, lucky: torch.Tensor
    ) -> list[Row]:
        """Return one row per experiment, at the learning rate that is best for it."""
        best = values.argmin(dim=0)
        return [
            {
                "variant": variant.name,
                "experiment": i,
                "learning_rate": self.learning_rates[int(best[i])],
                "truth": float(truth[i, 0]),
                "excess": float(values[best[i], i]),
                "lucky": int(lucky[i]),
            }
            for i in range(self.experiments)
        ]


def _readings(values: Tensor, reference: Tensor, lucky: Tensor) -> dict[str, float | None]:
    """Return the mean excess under each way to tune η and to choose experiments.

    Args:
        values: the excess of a variant, shape (rates, experiments).
        reference: that of AdaGrad without noise, same shape.
        lucky: the experiments in which the reference loses nothing, shape (experiments,).
    """
    own = values.amin(dim=0)
    same = values.gather(0, reference.argmin(dim=0, keepdim=True))[0]
    return {
        "all experiments, one η": float(values.mean(dim=1).min()),
        "all experiments, η of each": float(own.mean()),
        "lucky experiments, η of each": _mean(own[lucky]),
        "lucky experiments, η of non-private AdaGrad": _mean(same[lucky]),
    }


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None
