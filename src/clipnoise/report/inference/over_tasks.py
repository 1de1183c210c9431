"""Statements over tasks: a mixed model of gains, the best method, and the share of gaps closed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from clipnoise.report.inference.sign_flips import Floats, best_p_values
from clipnoise.report.statistics import LEVEL, Interval

RESAMPLES = 2000
LEAST_GAP = 0.02  # below it, a share says nothing of use
SURE = 3.0  # standard errors: a dozen such gaps are all positive in 97.5% of resamples


@dataclass(frozen=True)
class MixedModel:
    """The gain of a method over tasks of which those that were run are a sample.

    Attributes:
        tasks: how many were run.
        mean: the expected gain on a task, with its interval.
        error: standard error of the mean.
        spread: standard deviation τ of the gain from task to task; NaN for one task.
        new_task: the interval in which the gain on a new task lies.
    """

    tasks: int
    mean: Interval
    error: float
    spread: float
    new_task: Interval

    def together(self, gains: int) -> Interval:
        """Return the interval of the mean that holds together with those of other gains, at 95%.

        It is Bonferroni's: it holds however the gains depend on each other.

        Args:
            gains: how many there are, this one among them.
        """
        return _around(self.mean.mean, self.error, self.tasks - 1, 1 - (1 - LEVEL) / gains)


def mixed_model(gains: Floats, errors: Floats, *, level: float = LEVEL) -> MixedModel:
    """Estimate what a method gains on average over tasks, and what it may gain on a new one.

    The gain y_t of task t is normal with variance τ² + v_t: τ² is the interaction of method and
    task, and v_t the variance of searches, seeds and test examples, which is taken as known. τ² is
    Paule and Mandel's estimate, at which Σ w_t (y_t − μ)² = T − 1 with w_t = 1 / (τ² + v_t) and μ
    the mean with these weights, or 0. Its interval has the standard error 1 / √Σ w_t and T − 1
    degrees of freedom. That is Hartung and Knapp's, never narrowed where the gains differ less than
    their errors let expect. That for a new task adds τ² and has T − 2.

    Args:
        gains: y, of shape (tasks,).
        errors: √v, of the same shape, positive.
        level: of both intervals.

    Returns:
        The estimates. Intervals are NaN at both ends where there are too few tasks: below two, and
        below three for a new task. τ is NaN below two.

    Sources: Paule and Mandel, Consensus values and weighting factors, 1982; Hartung and Knapp 2001;
    Higgins, Thompson and Spiegelhalter, A re-evaluation of random-effects meta-analysis, 2009.
    """
    tasks, variances = len(gains), np.square(errors)

    def weighed(between: float) -> tuple[float, float, float]:
        weights = 1 / (between + variances)
        mean = float(weights @ gains / weights.sum())
        return mean, float(weights @ np.square(gains - mean)), float(weights.sum())

    between = 0.0
    if tasks > 1 and weighed(0.0)[1] > tasks - 1:
        largest = float(np.square(gains - gains.mean()).sum())
        between = float(optimize.brentq(lambda one: weighed(one)[1] - (tasks - 1), 0.0, largest))
    mean, _, weight = weighed(between)
    return MixedModel(
        tasks=tasks,
        mean=_around(mean, math.sqrt(1 / weight), tasks - 1, level),
        error=math.sqrt(1 / weight),
        spread=math.sqrt(between) if tasks > 1 else math.nan,
        new_task=_around(mean, math.sqrt(between + 1 / weight), tasks - 2, level),
    )


def _around(mean: float, error: float, freedom: int, level: float) -> Interval:
    reach = math.nan if freedom < 1 else float(stats.t.ppf((1 + level) / 2, freedom)) * error
    return Interval(mean, mean - reach, mean + reach)


def best_over_tasks(means: Floats) -> Floats:
    """Test of each method whether it can be the one with the highest expected result over tasks.

    It is `best_p_values` with tasks as units: they are a sample of all tasks, and the differences
    of equally good methods are symmetric from task to task. Two tasks of one data set are no two
    units: average them first.

    Args:
        means: of shape (methods, tasks).

    Returns:
        A p-value per method.
    """
    return best_p_values(means)


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
    tasks: Sequence[Gap], method: int, baseline: int, *, resamples: int = RESAMPLES, seed: int = 0
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
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
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


def has_gap(task: Gap, baseline: int, *, resamples: int = RESAMPLES, seed: int = 0) -> bool:
    """Return whether privacy costs a baseline two points, and three standard errors, at least.

    Args:
        task: the gap.
        baseline: the position of the baseline.
        resamples: how many are drawn for the standard error.
        seed: of the draws.
    """
    _, base, top = _redrawn(task, baseline, baseline, resamples, np.random.default_rng(seed))
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
