"""Intervals of gains that contain seeds, search and test set, and tests for all test examples.

What is seen of a setting is c_isn, the share of the reported runs of method i after search s that
get test example n right. All methods share the searches' seeds and the test examples. A gain is
that of one method over another one; with d_sn the difference of their shares, searches and examples
are two crossed random effects,

    d_sn = g + a_s + b_n + (ab)_sn,

with g the gain in the population of searches, seeds and test examples. The mean over S searches
and N examples estimates it. The analysis of variance gives its variance as

    V = V_A + V_B − V_AB,
    V_A  = var_s(d_s·) / S                          searches and seeds,
    V_B  = var_n(d_·n) / N                          test examples,
    V_AB = Σ_sn (d_sn − d_s· − d_·n + d_··)² / ((S − 1)(N − 1)) / (S N),   counted in both,

because V_A estimates σ_a²/S + σ_ab²/(SN), V_B estimates σ_b²/N + σ_ab²/(SN), and V_AB the term that
both contain. V is never taken to be less than V_A or V_B. The seeds after a search are averaged, so
V_A contains them. V has ν = V² / (V_A²/(S−1) + V_B²/(N−1) + V_AB²/((S−1)(N−1))) degrees of freedom,
at least S − 1. The intervals are nominal: their coverage is known by simulation, as one of 95% with
eight searches and 150 examples.

Sources: Searle, Casella and McCulloch, Variance Components, 1992, chapter 4 (crossed effects);
Satterthwaite, An approximate distribution of estimates of variance components, 1946; Cameron,
Gelbach and Miller, Robust inference with multiway clustering, 2011 (the bound by V_A and V_B).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from clipnoise.report.inference.sign_flips import Floats, stepwise
from clipnoise.report.statistics import LEVEL, Interval, t_quantile

DRAWS = 19_999
BLOCK = 2_000  # examples whose interactions are held at once


@dataclass(frozen=True)
class Components:
    """What a setting has of each variance: of the means of methods, as covariance matrices.

    Attributes:
        searches: results of shape (methods, searches), means over seeds and examples.
        examples: the number of test examples.
        of_searches, of_examples, of_both: V_A, V_B and V_AB between methods.
    """

    searches: Floats
    examples: int
    of_searches: Floats
    of_examples: Floats
    of_both: Floats


@dataclass(frozen=True)
class EstimatedGain:
    """The gain of a method over another one, in the population of searches and test examples.

    Attributes:
        mean: over searches and examples.
        error: standard error √V.
        search_error: its part of searches and seeds, √V_A: all there is for these test examples.
        test_error: its part of test examples, √V_B.
        freedom: degrees of freedom ν.
        interval: the t-interval for this gain alone, at 95% unless another level is asked for.
    """

    mean: float
    error: float
    search_error: float
    test_error: float
    freedom: float
    interval: Interval


def components(correct: Floats) -> Components:
    """Estimate the covariances of the means of methods by an analysis of variance.

    Args:
        correct: c of shape (methods, searches, examples), 0 for runs that diverged; at least two
            searches and two examples.
    """
    methods, searches, examples = correct.shape
    by_search, by_example = correct.mean(axis=2), correct.mean(axis=1)
    level = by_search.mean(axis=1)
    product = np.zeros((methods, methods))
    for start in range(0, examples, BLOCK):
        part = slice(start, start + BLOCK)
        rest = correct[:, :, part] - by_search[:, :, None] - by_example[:, None, part]
        flat = (rest + level[:, None, None]).reshape(methods, -1)
        product += flat @ flat.T
    cells = (searches - 1) * (examples - 1)
    return Components(
        searches=by_search,
        examples=examples,
        of_searches=np.atleast_2d(np.cov(by_search)) / searches,
        of_examples=np.atleast_2d(np.cov(by_example)) / examples,
        of_both=product / cells / (searches * examples),
    )


def gain(of: Components, method: int, other: int, *, level: float = LEVEL) -> EstimatedGain:
    """Return the gain of a method over another one, by their positions, with its interval."""
    a, b, both = (_between(one, method, other) for one in _matrices(of))
    variance = max(a + b - both, a, b)
    searches = of.searches.shape[1]
    mean = float((of.searches[method] - of.searches[other]).mean())
    freedom = float(searches - 1)
    if variance > 0:
        cells = (searches - 1) * (of.examples - 1)
        parts = a**2 / (searches - 1) + b**2 / (of.examples - 1) + both**2 / cells
        freedom = max(freedom, variance**2 / parts)
    error = float(np.sqrt(variance))
    reach = t_quantile(freedom, level) * error
    return EstimatedGain(
        mean=mean,
        error=error,
        search_error=float(np.sqrt(a)),
        test_error=float(np.sqrt(b)),
        freedom=freedom,
        interval=Interval(mean, mean - reach, mean + reach),
    )


def simultaneous_intervals(
    of: Components,
    baseline: int,
    *,
    settings: int = 1,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[int, Interval]:
    """Return simultaneous intervals of all gains over a baseline.

    The reach is a quantile of the largest |t| of all methods in `ErrorDraws`, at the level
    1 − 0.05 / settings, so that the intervals of all settings are simultaneous at 95%. It is never
    less than that of the gain's own t-interval at this level: where one search collapsed, no flip
    of signs has a large t, whatever the level.

    Args:
        of: of one setting.
        baseline: its position.
        settings: how many there are.
        draws: how many are made.
        seed: of the draws.
    """
    others = [index for index in range(len(of.searches)) if index != baseline]
    each = 1 - (1 - LEVEL) / settings
    found = {index: gain(of, index, baseline, level=each) for index in others}
    if not others:
        return {}
    drawn = ErrorDraws.of(of, draws, seed).gains_over(baseline)
    largest = np.abs(drawn[:, others]).max(axis=1)
    reach = float(np.quantile(largest, each, method="higher"))
    reaches = {i: max(reach * one.error, one.interval.high - one.mean) for i, one in found.items()}
    return {
        i: Interval(one.mean, one.mean - reaches[i], one.mean + reaches[i])
        for i, one in found.items()
    }


def best_in_population(of: Components, *, draws: int = DRAWS, seed: int = 0) -> Floats:
    """Test of each method whether it can be the best for all examples, not only those of the test.

    As `best_p_values`, with the largest t of the others over a method in place of R, and
    `ErrorDraws` in place of flips. The p-values are nominal: they come from an approximation, whose
    size is simulated.

    Returns:
        A p-value per method.
    """
    every = range(len(of.searches))
    made = ErrorDraws.of(of, draws, seed)
    statistics = np.zeros((1 + draws, len(every)))
    for own in every:
        t = np.array([_ratio(gain(of, index, own)) for index in every])
        statistics[:, own] = np.vstack([t, made.gains_over(own)]).max(axis=1)
    return stepwise(statistics)


def _ratio(one: EstimatedGain) -> float:
    if one.error > 0:
        return one.mean / one.error
    return math.copysign(math.inf, one.mean) if one.mean else 0.0


def _matrices(of: Components) -> tuple[Floats, Floats, Floats]:
    return of.of_searches, of.of_examples, of.of_both


def _between(matrix: Floats, first: int, second: int) -> float:
    """Return the variance of a difference; it is 0 where rounding makes it negative."""
    value = matrix[first, first] + matrix[second, second] - 2 * matrix[first, second]
    return max(0.0, float(value))


@dataclass(frozen=True)
class ErrorDraws:
    """Errors of the means of methods, as they would be drawn if no method differed from another.

    A draw flips the signs of what each search differs from the mean (a wild bootstrap with
    Rademacher multipliers, one for all methods), and adds a normal error of the test set that is
    correlated as the methods are: what Gaussian multipliers of the test examples would give.

    Attributes:
        components: of the setting.
        rest: what searches differ from the mean, of shape (methods, searches), with the variance
            that n − 1 as divisor gives.
        moved, shifted: errors of searches and of the test set, of shape (draws, methods).
    """

    components: Components
    rest: Floats
    moved: Floats
    shifted: Floats

    @classmethod
    def of(cls, components: Components, draws: int, seed: int) -> Self:
        """Draw them."""
        rng = np.random.default_rng(seed)
        methods, searches = components.searches.shape
        rest = components.searches - components.searches.mean(axis=1, keepdims=True)
        rest = rest * np.sqrt(searches / (searches - 1))
        signs = 1.0 - 2.0 * rng.integers(0, 2, size=(draws, searches))
        shifted = rng.normal(size=(draws, methods)) @ _root(components.of_examples).T
        return cls(components, rest, signs @ rest.T / searches, shifted)

    def gains_over(self, own: int) -> Floats:
        """Return the t of the gains of all methods over one.

        The variance over searches is estimated again in each draw, so t has the heavy tails that
        a small number of searches gives it.
        The error of the test set is as large as V_B − V_AB.

        Returns:
            Of shape (draws, methods).
        """
        methods, searches = self.rest.shape
        a, b, both = (
            np.array([_between(matrix, index, own) for index in range(methods)])
            for matrix in _matrices(self.components)
        )
        squares = np.square(self.rest - self.rest[own]).mean(axis=1)
        moved = self.moved - self.moved[:, [own]]
        spread = (squares - np.square(moved)) / (searches - 1)
        share = np.divide(np.maximum(b - both, 0.0), b, out=np.zeros_like(b), where=b > 0)
        top = moved + (self.shifted - self.shifted[:, [own]]) * np.sqrt(share)
        error = np.sqrt(np.maximum(spread, 0.0) + np.maximum(np.maximum(b - both, b - a), 0.0))
        small = 1e-12 * np.abs(self.components.searches).max()
        sure = np.where(np.abs(top) > small, np.copysign(np.inf, top), 0.0)
        found: Floats = np.divide(top, error, out=sure, where=error > small)
        return found


def _root(covariance: Floats) -> Floats:
    """Return a matrix whose product with its transpose is the covariance."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
