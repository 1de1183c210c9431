"""Statements over tasks: a mixed model of gains, the best method, and the share of gaps closed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import optimize, special, stats

from clipnoise.report.inference.sign_flips import Floats
from clipnoise.report.statistics import LEVEL, Interval

RESAMPLES = 2000
LEAST_GAP = 0.02  # below it, a share says nothing of use
SURE = 3.0  # standard errors: a dozen such gaps are all positive in 97.5% of resamples
SCORES = np.linspace(-7, 7, 71)  # normal scores of the values of χ² over which is integrated
DENSITIES = stats.norm.pdf(SCORES) / stats.norm.pdf(SCORES).sum()
BISECTIONS = 60
LEAST_ERROR = 1e-4  # of a gain: runs that are all equal do not show that methods are


@dataclass(frozen=True)
class MixedModel:
    """The gain of a method on average over tasks, and what it may gain on a new one.

    The tasks that were run are a sample. The gain y_t of task t is normal with variance τ² + v_t:
    τ² is the interaction of method and task, and v_t the variance of searches, seeds and test
    examples, which is taken as known. With w_t = 1 / (τ² + v_t), the mean m of the gains with these
    weights is normal with variance 1 / Σ w_t, and Q = Σ w_t (y_t − m)² is χ² with T − 1 degrees of
    freedom and independent of m. Q falls as τ² grows. So each value of χ² gives one τ², 0 where it
    is larger than Q at 0, and with it a normal distribution around m: of the expected gain, and,
    with a variance that is τ² larger, of the gain on a new task. An interval is the middle of the
    mixture of these distributions over all values of χ². If errors are equal and far below τ, it is
    the t-interval. τ is not taken as known: gains that are close by chance do not make it short.
    The intervals are nominal: of those at 95%, 94% hold the truth where τ is as large as errors.

    Attributes:
        gains: y, of shape (tasks,).
        errors: √v, of the same shape, positive.

    Sources: Viechtbauer, Confidence intervals for the amount of heterogeneity in meta-analysis,
    2007 (τ² from Q); Iyer, Wang and Mathew, Models and confidence intervals for true values in
    interlaboratory trials, 2004; Nagashima, Noma and Furukawa, Prediction intervals for
    random-effects meta-analysis, 2019; Paule and Mandel, Consensus values and weighting factors,
    1982 (the point estimate).
    """

    gains: Floats
    errors: Floats

    @property
    def tasks(self) -> int:
        """How many were run, on data sets of their own."""
        return len(self.gains)

    @cached_property
    def spread(self) -> float:
        """τ at which Q is what is expected of it, T − 1, or 0; NaN for one task."""
        if self.tasks < 2:
            return math.nan
        return math.sqrt(float(self._between(np.array([self.tasks - 1.0]))[0]))

    @cached_property
    def mean(self) -> Interval:
        """The expected gain on a task, with its 95% interval; without an end for one task."""
        return self.together(1)

    @cached_property
    def new_task(self) -> Interval:
        """The 95% interval in which the gain on a new task lies."""
        return self._middle(LEVEL, new=True)

    def together(self, gains: int) -> Interval:
        """Return the interval of the mean that holds together with those of other gains, at 95%.

        It is Bonferroni's: it holds however the gains depend on each other.

        Args:
            gains: how many there are, this one among them.
        """
        return self._middle(1 - (1 - LEVEL) / gains, new=False)

    def _middle(self, level: float, *, new: bool) -> Interval:
        if self.tasks < 2:
            return Interval(float(self.gains.mean()), math.nan, math.nan)
        (mean,), _, _ = self._weighed(np.array([self.spread**2]))
        means, _, variances = self._weighed(self._of_chi_squared)
        deviations = np.sqrt(variances + self._of_chi_squared if new else variances)
        tail = (1 - level) / 2
        low, high = (_quantile(share, means, deviations) for share in (tail, 1 - tail))
        return Interval(float(mean), low, high)

    @cached_property
    def _of_chi_squared(self) -> Floats:
        """τ² by each value of χ²."""
        return self._between(stats.chi2.ppf(special.ndtr(SCORES), self.tasks - 1))

    def _between(self, values: Floats) -> Floats:
        """Return τ² at which Q has each of some values, or 0 where it is less at 0."""
        low, high = np.zeros_like(values), np.square(self.gains - self.gains.mean()).sum() / values
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            above = self._weighed(middle)[1] > values
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return low

    def _weighed(self, between: Floats) -> tuple[Floats, Floats, Floats]:
        """Return m, Q and 1 / Σ w at each of some τ²."""
        weights = 1 / (between[:, None] + np.square(self.errors))
        total = weights.sum(axis=1)
        means = weights @ self.gains / total
        return means, (weights * np.square(self.gains - means[:, None])).sum(axis=1), 1 / total


def _quantile(share: float, means: Floats, deviations: Floats) -> float:
    """Return a quantile of the mixture of normal distributions, one for each of `SCORES`."""

    def excess(value: float) -> float:
        return float(DENSITIES @ special.ndtr((value - means) / deviations)) - share

    of_each = means + special.ndtri(share) * deviations
    low, high = of_each.min() - deviations.min(), of_each.max() + deviations.min()
    return float(optimize.brentq(excess, low, high, maxiter=1000))


def by_data_set(values: Floats, of: Sequence[str]) -> Floats:
    """Average over the tasks of each data set: two tasks of one data set are no two units.

    The average of standard errors is an upper bound of that of the mean, which it is if the tasks
    depend on each other wholly.

    Args:
        values: of shape (…, tasks).
        of: the data set of each task.

    Returns:
        Of shape (…, data sets).
    """
    chosen = [[one == each for each in of] for one in dict.fromkeys(of)]
    return np.stack([values[..., one].mean(axis=-1) for one in chosen], axis=-1)


@dataclass(frozen=True)
class Gap:
    """The results of a task between whose baseline and ceiling methods are placed.

    Attributes:
        private: which share of the runs after each search get each example right, of shape
            (methods, searches, examples), the baseline among them; searches are shared.
        ceiling: the same without privacy, of shape (searches, examples): searches of their own on
            the same examples.
    """

    private: Floats
    ceiling: Floats


def closed_shares(
    tasks: Sequence[Gap], method: int, baseline: int, *, resamples: int = RESAMPLES
) -> Interval:
    """Return the mean over tasks of the share of the privacy gap that a method closes.

    The share is (method − baseline) / (ceiling − baseline). Each resample draws it whole: searches
    with replacement, the same for all private methods, and the test examples, the same for all. So
    the gap is not taken as known. The interval holds the middle 95% of resamples. It is wide, and
    without an end if need be, where the gap of a task is not sure to be positive: `has_gap` says
    which tasks are better left out.

    Args:
        tasks: the gaps, which are fixed: no new task is meant.
        method: the position of the method.
        baseline: that of the baseline.
        resamples: how many are drawn.
    """
    rng = np.random.default_rng(0)
    drawn, shares = np.zeros(resamples), 0.0
    for task in tasks:
        first, base, top = _redrawn(task, method, baseline, resamples, rng)
        gap = top - base
        share = np.divide(first - base, gap, out=np.full(len(gap), np.nan), where=gap > 0)
        drawn += share[1:] / len(tasks)
        shares += float(share[0]) / len(tasks)
    low, high = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    lost = np.isnan(drawn)
    return Interval(
        shares,
        float(np.quantile(np.where(lost, -np.inf, drawn), low, method="nearest")),
        float(np.quantile(np.where(lost, np.inf, drawn), high, method="nearest")),
    )


def has_gap(task: Gap, baseline: int, *, resamples: int = RESAMPLES) -> bool:
    """Return whether privacy costs a baseline two points, and three standard errors, at least.

    Args:
        task: the gap.
        baseline: the position of the baseline.
        resamples: how many are drawn for the standard error.
    """
    _, base, top = _redrawn(task, baseline, baseline, resamples, np.random.default_rng(0))
    gap = top - base
    return bool(gap[0] >= max(LEAST_GAP, SURE * gap[1:].std()))


def _redrawn(
    task: Gap, method: int, baseline: int, resamples: int, rng: np.random.Generator
) -> Floats:
    """Return the means of method, baseline and ceiling: as they are, then in each resample.

    Means over few searches vary too little when searches are drawn with replacement, by the factor
    √((S − 1) / S), which is made up for. The error of the test set is normal, with the covariance
    of the three over examples.

    Returns:
        Of shape (3, 1 + resamples).
    """
    pair = task.private[[method, baseline]]
    found = np.stack([*pair.mean(axis=1), task.ceiling.mean(axis=0)])  # by example
    level, examples = found.mean(axis=1), found.shape[1]
    covariance = np.cov(found) / examples
    moved = rng.multivariate_normal(np.zeros(3), covariance, size=resamples, method="eigh").T
    for results, rows in ((pair.mean(axis=2), (0, 1)), (task.ceiling.mean(axis=1)[None], (2,))):
        searches = results.shape[1]
        picked = rng.integers(searches, size=(resamples, searches))
        rest = results - results.mean(axis=1, keepdims=True)
        if searches > 1:
            spread = math.sqrt(searches / (searches - 1))
            moved[list(rows)] += spread * rest[:, picked].mean(axis=2)
    return np.concatenate([level[:, None], level[:, None] + moved], axis=1)
