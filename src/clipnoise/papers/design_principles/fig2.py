"""Figure 2 of the design-principles paper: private AdaGrad on sparse 1-D logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from clipnoise.fields import Count, Fraction, NonNegative, Positive
from clipnoise.papers.base import Experiment, Findings, Image, Quantity, QuantityClaim, Results, Row
from clipnoise.papers.report import draw_line, legend_below, logarithmic
from clipnoise.papers.trials import MethodOptions
from clipnoise.report.figures.styles import COLOURS, style
from clipnoise.report.formats import decimal
from clipnoise.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

TRUTH = "ground truth"
UNCLIPPED = "non-private AdaGrad, not clipped"
REFERENCE = "non-private AdaGrad"  # a draw is lucky when this one is as good as the truth

ONE_RATE = "all experiments, one η"
OWN_RATES = "all experiments, η of each"
LUCKY = "lucky experiments, η of each"
LUCKY_SAME = "lucky experiments, η of non-private AdaGrad"

MARKERS = {LUCKY: "o", LUCKY_SAME: "D", OWN_RATES: "^"}
LOOKS = {
    REFERENCE: style("adam"),
    "post-processing": style("dp-adagrad"),
    "independent moments": style("ime-adagrad"),
    "independent moments for free": style("ime-adagrad", 1),
}


@dataclass(frozen=True, kw_only=True)
class AdaGradVariant(MethodOptions):
    """One row of the figure."""

    name: str  # as in the report
    cell: str  # the row of the figure that it belongs to
    noise_multiplier: NonNegative
    square_noise: Positive = 1.0  # on the noise of the square; 1 is what its sensitivity needs


@dataclass(frozen=True)
class LogisticData:
    """Inputs and labels of all experiments, each of shape (experiments, examples)."""

    x: Tensor
    y: Tensor

    def losses(self, theta: Tensor) -> Tensor:
        """Return the mean logistic loss of each experiment at each of its k parameters.

        Args:
            theta: shape (experiments, k), as is what is returned.
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
class SparseAdaGrad(Experiment):
    """One epoch of (private) AdaGrad in many experiments: each has a training and a test set."""

    id = "design-principles/fig2"
    title = "Private AdaGrad on 1-D logistic regression: Figure 2"
    source = "On Design Principles for Private Adaptive Optimizers, section 5.1 and Figure 2"
    setup = (
        "1,000 examples, 90% of them zeros, one epoch at batch size 1, C = 1, σ = 0.1; dense "
        "correlated noise, optimal for one participation; 30 noise draws; test loss of the last "
        "parameter on 10,000 dense examples. The paper has one training set and one test set. "
        "Here there are 200 of each, and each pair is one experiment, to show where the paper's "
        "numbers lie among those that other draws would have given.",
        "Compared are the loss itself, which depends on the test set drawn, and the excess over "
        "the loss of the true parameter on the same test set. The learning rate is tuned on "
        "the test loss over nine values, both once for all experiments and once for each, as with "
        "a single experiment. An experiment is called “lucky” when non-private AdaGrad, tuned for "
        "it, is as good as the true parameter to four digits, as in the paper.",
        "Independent moments run as Algorithm 6 has them, with noise on the square for a "
        "sensitivity of (2B + 1)C²/B² = 3C²; and also with noise for C², which is enough for a "
        "batch of exactly one example.",
    )
    claims = (
        QuantityClaim(
            "Independent moment estimation achieves better performance than post-processing.",
            "section 5.1",
            f"excess, post-processing, {ONE_RATE}",
            minus=f"excess, independent moments, {ONE_RATE}",
        ),
        QuantityClaim(
            "It loses little by the noise that it adds to the square (0.0001 in the figure).",
            "Figure 2",
            f"excess, independent moments, {ONE_RATE}",
            minus=f"excess, independent moments for free, {ONE_RATE}",
            bounds=(-0.0005, 0.0005),
        ),
    )

    examples: Count
    zero_fraction: Fraction
    test_examples: Count
    noise_draws: Count
    experiments: Count
    learning_rates: tuple[Positive, ...]
    variants: tuple[AdaGradVariant, ...]
    seed: int

    def run(self) -> Findings:
        train, test = self._data()
        truth = test.losses(test.x.new_ones(self.experiments, 1))
        excess = {v.name: self._excess(v, train, test, truth) for v in self.variants}
        lucky = excess[REFERENCE].amin(dim=0).abs() < 5e-5
        rows: list[Row] = []
        tuning: list[Row] = []
        quantities = [
            Quantity("loss of the truth, exact expectation", expected_loss(1.0), TRUTH),
            Quantity("loss of the truth, test sets: mean", float(truth.mean()), TRUTH),
            Quantity("loss of the truth, test sets: standard deviation", float(truth.std())),
            Quantity("share of lucky experiments", float(lucky.double().mean())),
        ]
        for variant in self.variants:
            values = excess[variant.name]
            key = {"variant": variant.name}
            for i, best in enumerate(values.argmin(dim=0).tolist()):  # the best η of an experiment
                found = {"truth": float(truth[i, 0]), "excess": float(values[best, i])}
                choice = {"experiment": i, "learning_rate": self.learning_rates[best]}
                rows.append({**key, **choice, **found, "lucky": int(lucky[i])})
            for rate, mean in zip(self.learning_rates, values, strict=True):
                tuning.append({**key, "learning_rate": rate, "excess": float(mean.mean())})
            readings = _readings(values, excess[REFERENCE], lucky)
            for reading in readings if variant.name in LOOKS else (ONE_RATE, LUCKY):
                name, cell = f"excess, {variant.name}, {reading}", f"excess, {variant.cell}"
                quantities.append(Quantity(name, readings[reading], cell))
            if variant.name in LOOKS:
                above, of_truth = readings[LUCKY_SAME], _mean(truth[lucky, 0])
                loss = None if above is None or of_truth is None else of_truth + above
                name, cell = f"loss, {variant.name}, {LUCKY_SAME}", f"loss, {variant.cell}"
                quantities.append(Quantity(name, loss, cell))
        return Findings({"data": rows, "tuning": tuning}, quantities)

    def _data(self) -> tuple[LogisticData, LogisticData]:
        import torch

        draws = generator("split", self.seed)

        def sample(count: int) -> LogisticData:
            x = torch.randn(self.experiments, count, generator=draws, dtype=torch.float64)
            uniform = torch.rand(self.experiments, count, generator=draws, dtype=torch.float64)
            return LogisticData(x, (uniform < torch.sigmoid(x)).double())

        train = sample(self.examples)
        order = torch.rand(self.experiments, self.examples, generator=draws).argsort(dim=1)
        zero = order < round(self.zero_fraction * self.examples)
        return LogisticData(train.x.masked_fill(zero, 0.0), train.y), sample(self.test_examples)

    def _excess(
        self, variant: AdaGradVariant, train: LogisticData, test: LogisticData, truth: Tensor
    ) -> Tensor:
        """Return the test loss above that of the truth, mean over noises: (rates, experiments)."""
        import torch

        thetas = [self._train(variant, rate, train) for rate in self.learning_rates]
        return torch.stack([(test.losses(theta) - truth).mean(dim=1) for theta in thetas])

    def _train(self, variant: AdaGradVariant, rate: float, train: LogisticData) -> Tensor:
        """Return the final parameters, shape (experiments, noise draws); one draw if σ is 0."""
        import torch

        copies = self.noise_draws if variant.noise_multiplier > 0 else 1
        count = self.experiments * copies
        x = train.x.repeat_interleave(copies, dim=0)
        y = train.y.repeat_interleave(copies, dim=0)
        factors = torch.tensor([1.0, variant.square_noise], dtype=torch.float64)
        sigma, start = variant.noise_multiplier, torch.zeros(count, 1, dtype=torch.float64)
        trials = variant.trials(sigma, self.examples, start, learning_rate=rate)
        for t in range(self.examples):
            residual = torch.sigmoid(trials.theta[:, 0] * x[:, t]) - y[:, t]
            noise = self._noise[t, :count] * factors
            trials.advance((residual * x[:, t])[:, None, None], noise[:, :, None])
        return trials.theta.reshape(self.experiments, copies)

    @cached_property
    def _noise(self) -> Tensor:
        """C⁻¹z for every trial and both releases, shape (T, trials, 2)."""
        import torch

        from clipnoise.privacy.noise_strategies import optimal_dense

        strategy = torch.from_numpy(optimal_dense(self.examples).matrix())
        shape = (self.examples, self.experiments * self.noise_draws * 2)
        z = torch.randn(shape, generator=generator("noise", self.seed), dtype=torch.float64)
        noise: Tensor = torch.linalg.solve_triangular(strategy, z, upper=False)
        return noise.reshape(self.examples, -1, 2)

    @staticmethod
    def figures(results: Results) -> list[Image]:
        from clipnoise.report.figures import canvas

        figure, axes = canvas.sheet(1, 2, height=2.9)
        left, right = axes[0]
        tuning = results.table("tuning")
        for name, look in LOOKS.items():
            rows = tuning[tuning["variant"] == name]
            draw_line(left, rows["learning_rate"], rows["excess"], look, name, marker=look.marker)
        left.set(xlabel="η", ylabel="Excess")
        logarithmic(left, "x", "y")
        legend_below(left, 0.22, fontsize=7.5)
        places = range(len(LOOKS))
        published = [results.published(f"excess, {name}, {LUCKY}") for name in LOOKS]
        right.scatter(published, places, marker="|", s=160, color=canvas.INK, label="published")
        for rank, (reading, marker) in enumerate(MARKERS.items()):
            values = [results.measured(f"excess, {name}, {reading}") for name in LOOKS]
            right.scatter(values, places, marker=marker, s=22, color=COLOURS[rank], label=reading)
        right.set_yticks(list(places), [name.replace(" ", "\n", 1) for name in LOOKS])
        right.set_xlabel("Excess")
        right.invert_yaxis()
        legend_below(right, 0.22, centre=0.4, fontsize=7.5)
        caption = (
            "Left: mean excess over all experiments at each η. Right: mean excess under three ways "
            "to choose experiments and η; bars are the published values."
        )
        return [("Excess over the truth", caption, figure)]

    @staticmethod
    def remarks(results: Results) -> list[str]:
        text = results.text

        def value(reading: str, name: str = "post-processing") -> str:
            return decimal(results.measured(f"excess, {name}, {reading}"), 4)

        share = decimal(100 * results.measured("share of lucky experiments"), 0)
        free, moments = "independent moments for free", "independent moments"
        return [
            "The loss of the true parameter is "
            f"{text('loss of the truth, exact expectation')} in expectation. Over test sets "
            "of 10,000 examples its standard deviation is "
            f"{text('loss of the truth, test sets: standard deviation', 2)}, so the "
            "published 0.5976 is an ordinary draw.",
            "A non-private loss equal to that of the truth is not typical: over all experiments "
            f"the excess is {value(ONE_RATE, REFERENCE)} at one η and "
            f"{value(OWN_RATES, REFERENCE)} at the η that is best on each test set. {share}% of "
            "the experiments are lucky in this sense. Non-private AdaGrad runs at C = 1, like the "
            "private methods: the paper says only that it has no noise. Without clipping the "
            f"excess is {value(ONE_RATE, UNCLIPPED)} at one η.",
            "With η tuned for each method, post-processing is no worse than independent moments: "
            f"in lucky experiments {value(LUCKY)} against {value(LUCKY, moments)} (for free: "
            f"{value(LUCKY, free)}), and over all experiments at one η {value(ONE_RATE)} against "
            f"{value(ONE_RATE, moments)}. The published gap (0.0034 against 0.0005) does not "
            "appear.",
            "All three published numbers agree to 0.0002 with the mean over lucky experiments when "
            f"every method runs at the η that is best for non-private AdaGrad: {value(LUCKY_SAME)} "
            f"for post-processing (published 0.0034), {value(LUCKY_SAME, moments)} for independent "
            f"moments (0.0005) and {value(LUCKY_SAME, free)} for free (0.0004). The published gap "
            "is therefore consistent with a learning rate that was tuned once, without noise. The "
            "paper says only “we tune the base learning rate η”; the rest is our inference.",
        ]


def _readings(values: Tensor, reference: Tensor, lucky: Tensor) -> dict[str, float | None]:
    """Return the mean excess under each way to tune η and to choose experiments.

    Args:
        values: the excess of a variant, shape (rates, experiments).
        reference: that of AdaGrad without noise, same shape.
        lucky: the experiments in which the reference is as good as the truth, (experiments,).
    """
    best = values.amin(dim=0)
    same = values.gather(0, reference.argmin(dim=0, keepdim=True))[0]
    return {
        ONE_RATE: float(values.mean(dim=1).min()),
        OWN_RATES: float(best.mean()),
        LUCKY: _mean(best[lucky]),
        LUCKY_SAME: _mean(same[lucky]),
    }


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None
