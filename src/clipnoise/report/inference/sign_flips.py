"""Tests by sign flips: which methods can be the best, and which pairs of methods differ.

The unit is a search, or a seed where nothing was searched for: one number per method, in pairs,
because all methods share its seeds. X_is is that number of method i, D_ij = X_i − X_j, and
S is the number of units.

**What is assumed.** Units are independent. For methods that are equally good, the vector of their
differences has in each unit the same distribution as its negative. So it has for normal results,
with any variances and correlations, and for any two methods that can be exchanged. Three methods
or more with skewed results, say with rare collapses, meet it in pairs only, not jointly: what the
tests do then is known by simulation (`simulation.py`).

**Why the size is right.** Flip the signs of all differences of a unit together, with one sign per
unit. Under the assumption, the differences among equal methods have the same joint distribution
before and after. So the data are a uniform draw among their 2^S flips, and a statistic exceeds all
but a share α of its own flips with a probability of at most α, whatever the correlations between
methods. It is no approximation for large S. With random flips, of which the data are one, the same
holds.

**The statistic** of a difference is R = Σ_s D_s / √(S Σ_s D_s²), which rises with the t-statistic
R √(S − 1) / √(1 − R²): flips leave the sum of squares as it is.

Sources: Romano and Wolf, Exact and approximate stepdown methods for multiple hypothesis testing,
2005; Hsu, Simultaneous confidence intervals for all distances from the "best", 1981; Hemerik and
Goeman, Exact testing with random permutations, 2018.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import combinations
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
K = TypeVar("K", bound=Hashable)

ALL_FLIPS = 12  # units up to which every flip is taken
DRAWN_FLIPS = 19_999
ROUNDING = 1e-9


def units_needed(alpha: float) -> int:
    """Return with how many units anything can be told at level α: no p-value is below 2^(1−S)."""
    return int(np.ceil(1 - np.log2(alpha) - ROUNDING))


def sign_flips(units: int) -> Floats:
    """Return signs of shape (flips, units), the first row without a change.

    These are all 2^S flips for at most `ALL_FLIPS` units, and beyond that `DRAWN_FLIPS` random
    ones after the first row.
    """
    if units <= ALL_FLIPS:
        bits = (np.arange(2**units)[:, None] >> np.arange(units)) & 1
        return np.asarray(1.0 - 2.0 * bits)
    drawn = np.random.default_rng(0).integers(0, 2, size=(DRAWN_FLIPS, units))
    return np.concatenate([np.ones((1, units)), 1.0 - 2.0 * drawn])


def best_p_values(scores: Floats) -> Floats:
    """Test of each method whether it can be the best: multiple comparisons with the best.

    The hypothesis of method i is that no other one is better. Its statistic is the largest R of
    the others over i, or 0 if no mean is higher. With K the methods that are still to be excluded,
    the one with the largest statistic is excluded if at most a share α of flips has a statistic of
    any method in K that reaches it; then K is what is left, and so on. So no method that is as good
    as the best is excluded with probability ≥ 1 − α, however many there are.

    Proof: let E be the methods that are as good as the best. Before the first of them is excluded,
    K contains E, and the share falls with K; so it would be excluded with K = E, too. If its
    statistic comes from another method of E, then this happens with probability ≤ α: flips do not
    change the joint distribution of the differences in E, and worse methods can only raise the
    maximum of a flip. This leaves the case that the lead of a worse method excludes it. That is a
    lead with the wrong sign, and is left to the simulation.

    Args:
        scores: of shape (methods, units), finite; higher is better.

    Returns:
        A p-value per method, 1 for the one with the highest mean.
    """
    signs = sign_flips(scores.shape[1])
    largest = [(signs @ _directions(scores, own).T).max(axis=1) for own in scores]
    return stepwise(np.maximum(np.array(largest).T, 0.0))


def stepwise(statistics: Floats) -> Floats:
    """Return p-values of hypotheses that are rejected one after the other.

    The hypothesis with the largest statistic comes first; those that are left are tested among
    themselves.

    Args:
        statistics: of shape (draws, hypotheses), the first row those of the data.

    Returns:
        For each hypothesis the share of draws in which one that is left reaches its statistic, or
        that of one before it if this is larger.
    """
    order = np.argsort(statistics[0], kind="stable")  # the smallest first
    largest = np.maximum.accumulate(statistics[:, order], axis=1)
    reached = (largest >= statistics[0, order] - ROUNDING).mean(axis=0)
    shares = np.empty(len(order))
    shares[order] = np.maximum.accumulate(reached[::-1])[::-1]
    return shares


def adjusted_best(p_values: Mapping[K, Floats]) -> dict[K, Floats]:
    """Adjust the p-values of `best_p_values` for the number of settings.

    Each is multiplied by the number of settings. Then no method that is as good as the best of its
    setting is excluded, in all settings at once, with probability ≥ 1 − α, by the union bound,
    whatever the settings share. A stepwise procedure would not be sharper: there is a best method,
    and so a true hypothesis, in every setting.

    Args:
        p_values: by setting.
    """
    return {key: np.minimum(1.0, len(p_values) * one) for key, one in p_values.items()}


def pairs_apart(settings: Mapping[K, Floats]) -> dict[K, dict[tuple[int, int], float]]:
    """Test all pairs of methods in all settings, stepping down, with one family-wise level.

    Let K be pairs that are still to be rejected, K_m those of setting m, and M(K) the number of
    settings that have some. A pair of setting m is rejected if M(K) times the share of flips in
    which the largest |R| over K_m reaches its own is at most α; then K is what is left, and so on.

    Proof that no true hypothesis is rejected with probability ≥ 1 − α: let I be all pairs of equal
    methods. Before the first false rejection K contains I. The share and M fall with K, so this
    pair would be rejected with K = I, too. Within a setting, some pair of I_m has a share of at
    most α / M(I) with probability ≤ α / M(I), because flips do not change the joint distribution
    of the differences in I_m. The sum over the settings of I is α.

    The direction of a difference is that of the means; the proof is about equality.

    Args:
        settings: scores of shape (methods, units) by setting.

    Returns:
        By setting, the adjusted p-value of each pair of methods (by their positions).
    """
    shares = {key: _stepwise_shares(scores) for key, scores in settings.items()}
    left = {key: len(one) for key, one in shares.items() if one}
    adjusted: dict[K, dict[tuple[int, int], float]] = {key: {} for key in settings}
    order = sorted(
        ((share, key, pair) for key, one in shares.items() for pair, share in one.items()),
        key=lambda step: step[0],
    )
    largest = 0.0
    for share, key, pair in order:
        largest = max(largest, min(1.0, len(left) * share))
        adjusted[key][pair] = largest
        left[key] -= 1
        if not left[key]:
            del left[key]
    return adjusted


def apart_from(own: Floats, others: Floats) -> Floats:
    """Test of each of some methods whether it differs from one method, all of them together.

    As in `pairs_apart`, with the pairs of this method alone: none that is equal to it is called
    apart with probability ≥ 1 − α. The p-value is the share of flips in which a difference that is
    left reaches its |R|.

    Args:
        own: scores of the method, of shape (units,), or of one for each of the others.
        others: of the others, shape (methods, units).

    Returns:
        A two-sided p-value for each of the others.
    """
    return stepwise(np.abs(sign_flips(others.shape[1]) @ _directions(own, others).T))


def _stepwise_shares(scores: Floats) -> dict[tuple[int, int], float]:
    """Return for each pair the share of flips in which a pair that is left reaches its |R|."""
    pairs = list(combinations(range(len(scores)), 2))
    if not pairs:
        return {}
    first, second = (scores[list(one)] for one in zip(*pairs, strict=True))
    return dict(zip(pairs, apart_from(first, second).tolist(), strict=True))


def _directions(first: Floats, second: Floats) -> Floats:
    """Return D / √(S Σ D²) of shape (…, units), 0 where the results are equal up to rounding."""
    differences = first - second
    scale = max(float(np.abs(first).max()), float(np.abs(second).max()))
    differences = np.where(np.abs(differences) <= 1e-12 * scale, 0.0, differences)
    size = np.sqrt(differences.shape[-1] * np.square(differences).sum(axis=-1, keepdims=True))
    found: Floats = np.divide(differences, size, out=np.zeros_like(differences), where=size > 0)
    return found
