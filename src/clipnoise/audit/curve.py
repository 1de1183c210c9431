"""Audits against a whole curve δ(ε), and audits that may stop after any run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr, ndtri

from clipnoise.audit.empirical import correct_guesses, largest_refuted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    # The least probability, without a canary, of an event that has a given one with it.
    Curve = Callable[[Array], Array]

EPSILONS = np.concatenate([np.linspace(0, 12, 121), np.linspace(12.5, 50, 76)])
P_VALUES = np.geomspace(1e-12, 1.0, 600)  # a p-value is the next one above
LARGEST_MU = 50.0
SHARES = (0.2, 0.1, 0.04)


def gaussian_curve(mu: float) -> Curve:
    """Return the curve of μ-Gaussian DP, y ↦ Φ(Φ⁻¹(y) − μ).

    Source: Dong, Roth, Su 2022, "Gaussian Differential Privacy", definition 2.6.
    """
    return lambda y: np.asarray(ndtr(ndtri(y) - mu))


def curve_of(profile: Callable[[Array], Array]) -> Curve:
    """Return the curve of a privacy profile, y ↦ max_ε (y − δ(ε))/e^ε.

    Args:
        profile: upper bounds of δ in both directions, at each ε.
    """
    deltas, factors = profile(EPSILONS), np.exp(-EPSILONS)
    return lambda y: np.max((np.asarray(y)[..., None] - deltas) * factors, axis=-1).clip(0.0)


def curve_p_value(curve: Curve, *, canaries: int, guesses: int, correct: int) -> float:
    """Bound the probability that a mechanism with a claimed curve lets guesses be so often right.

    Let G be the curve and V the number of right guesses. Take the event that a guess on canary i is
    "in", and that at least c − 1 of the other guesses are right: whatever the other coins, its
    probability with i out is at least G of that with i in; "out" the same. G is convex, so over
    coins, both kinds of guess and all canaries, right and wrong guesses are such that

        Σ_{k≥c−1} (r − k) P[V = k]/m ≥ G(Σ_{k≥c} k P[V = k]/m)  for each c.

    Suppose P[V ≥ v] = τ. The least total probability that this needs has all of τ at v and then,
    for c = v, v − 1, …, 1, the least P[V = c − 1] that is enough. For, of two rows of probabilities
    down to c, let the second have η ≥ 0 more in total, at least cη more right guesses and at most
    (r − c)η more wrong ones. It needs at most (r − c)η/(r − c + 1) less at c − 1, whereby the
    same holds down to c − 1. So if the least total is above 1, then P[V ≥ v] < τ.

    Args:
        curve: what is claimed for each canary.
        canaries: m, each in the dataset by an independent fair coin.
        guesses, correct: r, fixed in advance, and v.

    Returns:
        A number in [1e-12, 1].

    Source: Mahloujifar, Melis, Chaudhuri 2025, "Auditing f-Differential Privacy in One Run".
    """
    total = P_VALUES.copy()
    right, wrong = correct * total, (guesses - correct) * total
    for number in range(correct - 1, -1, -1):
        needed = canaries * curve(np.minimum(right / canaries, 1.0)) - wrong
        more = np.maximum(needed, 0.0) / (guesses - number)
        total, right, wrong = total + more, right + number * more, wrong + (guesses - number) * more
    impossible = np.flatnonzero(total > 1 + 1e-9)
    return float(P_VALUES[impossible[0]]) if len(impossible) else 1.0


def smallest_p_value(
    scores: Array, included: NDArray[np.bool_], curve: Curve, shares: tuple[float, ...] = SHARES
) -> float:
    """Return the p-value of a claimed curve over several scores and numbers of guesses.

    Args:
        scores: one per canary, shape (m,), or several, shape (k, m).
        included: the coins.
        curve: what is claimed.
        shares: of canaries to guess on, fixed before the scores are seen.

    Returns:
        The smallest p-value times the number of those tried (Bonferroni), at most 1.
    """
    every = np.atleast_2d(scores)
    values = [
        curve_p_value(curve, canaries=len(included), guesses=guesses, correct=correct)
        for row, share in product(every, shares)
        for guesses, correct in [correct_guesses(row, included, share)]
    ]
    return min(1.0, len(values) * min(values))


def mu_at_least(
    scores: Array,
    included: NDArray[np.bool_],
    *,
    confidence: float = 0.95,
    shares: tuple[float, ...] = SHARES,
) -> float:
    """Return the largest μ (to 1e-3) whose Gaussian DP the guesses refute; 0 if they refute none.

    With the stated confidence the mechanism is not μ′-Gaussian DP for any μ′ below.
    """

    def refuted(mu: float) -> bool:
        return smallest_p_value(scores, included, gaussian_curve(mu), shares) < 1 - confidence

    return largest_refuted(refuted, least=1e-3, most=LARGEST_MU, precision=1e-3)


@dataclass(frozen=True)
class Look:
    """What an audit has shown after a run.

    Attributes:
        runs: so far.
        evidence: the product of the e-values of all runs.
        refuted: whether it ever was 1/(1 − confidence) or more.
    """

    runs: int
    evidence: float
    refuted: bool


def looks(p_values: Iterable[float], *, confidence: float = 0.95) -> Iterator[Look]:
    """Yield what is shown after each of a row of independent runs; one may stop after any.

    A p-value p becomes the e-value (1 − p + p log p)/(p log² p), whose mean is at most 1 under the
    claim. So is that of the product, and it ever reaches 1/α with a probability of at most α.

    Args:
        p_values: of the same claim, one for each run; later ones may depend on what was seen.
        confidence: 1 − α.

    Source: Vovk and Wang 2021, "E-values: Calibration, combination and applications", section 2;
    Ville 1939.
    """
    logarithm, refuted = 0.0, False
    for number, p in enumerate(p_values, 1):
        logarithm += math.log(e_value(p)) if p < 1 else -math.log(2)
        refuted = refuted or logarithm >= -math.log(1 - confidence)
        yield Look(number, math.exp(min(logarithm, 700.0)), refuted)


def e_value(p: float) -> float:
    """Return the mean of κp^(κ−1) over κ uniform in (0, 1): an e-value, for p in (0, 1)."""
    if p > 1 - 1e-4:
        return 0.5
    p = max(p, 1e-300)
    return (1 - p + p * math.log(p)) / (p * math.log(p) ** 2)
