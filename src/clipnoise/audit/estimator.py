"""From right and wrong guesses about canaries to a lower bound on ε."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit
from scipy.stats import binom

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_EPSILON = 100.0


@dataclass(frozen=True)
class Bound:
    """A lower bound on ε and what it rests on.

    Attributes:
        epsilon: with the stated confidence the mechanism is not (ε′, δ)-DP for any ε′ below.
        canaries: m.
        guesses: r, how many canaries were guessed on; the auditor abstains on the others.
        correct: v, how many guesses were right.
        confidence: 1 − β.
        tries: how many numbers of guesses were tried; each got its share of β.
    """

    epsilon: float
    canaries: int
    guesses: int
    correct: int
    confidence: float
    tries: int


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Bound the probability that an (ε, δ)-DP mechanism lets an auditor be right so often.

    β + 2mδα with q = e^ε/(1 + e^ε), β = P[Binomial(r, q) ≥ v] and
    α = max_{1≤i≤v} P[v > Binomial(r, q) ≥ v − i]/i.

    Args:
        canaries: m, each in the dataset by an independent fair coin.
        guesses: r ≤ m.
        correct: v ≤ r.
        epsilon: ε ≥ 0.
        delta: δ in [0, 1].

    Returns:
        A number in [0, 1].

    Source: Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run",
    Theorem 5.2 and appendix D.
    """
    q = float(expit(epsilon))
    beta = float(binom.sf(correct - 1, guesses, q))
    alpha = 0.0
    if delta > 0 and correct > 0:
        steps = np.arange(1, correct + 1)
        below = np.cumsum(binom.pmf(correct - steps, guesses, q))
        alpha = float((below / steps).max())
    return min(1.0, beta + 2 * canaries * delta * alpha)


def epsilon_at_least(
    canaries: int, guesses: int, correct: int, *, delta: float, significance: float
) -> float:
    """Return the largest ε (to 1e-6) that the guesses refute at δ; see `p_value`.

    The significance is the probability of a false refutation, such as 0.05.
    """

    def refuted(epsilon: float) -> bool:
        return p_value(canaries, guesses, correct, epsilon, delta) < significance

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        if high > LARGEST_EPSILON:
            return high
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def lower_bound(
    scores: NDArray[np.float64],
    included: NDArray[np.bool_],
    *,
    delta: float,
    confidence: float = 0.95,
    shares: tuple[float, ...] = (0.2, 0.1, 0.04),
) -> Bound:
    """Guess "in" for the highest scores and "out" for the lowest, and bound ε from the result.

    Several numbers of guesses are tried; by the union bound each is tested at an equal share of the
    allowed error, so the best of them may be reported.

    Args:
        scores: one per canary; the higher, the more it looks included.
        included: the coins.
        delta: δ.
        confidence: of the bound.
        shares: of canaries to guess on, fixed before the scores are seen.

    Returns:
        The best bound.
    """
    order, m = np.argsort(scores, kind="stable"), len(scores)
    significance = (1 - confidence) / len(shares)
    bounds = []
    for share in shares:
        half = max(1, math.floor(share * m / 2))
        right = int(included[order[-half:]].sum()) + int((~included[order[:half]]).sum())
        value = epsilon_at_least(m, 2 * half, right, delta=delta, significance=significance)
        bounds.append(Bound(value, m, 2 * half, right, confidence, len(shares)))
    return max(bounds, key=lambda bound: bound.epsilon)
