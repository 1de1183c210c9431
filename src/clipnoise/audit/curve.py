"""From guesses about canaries to what they refute: a claimed curve δ(ε), or one point of it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr, ndtri

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]
    # The least probability, without a canary, of an event that has a given one with it.
    Curve = Callable[[Array], Array]

P_VALUES = np.geomspace(1e-12, 1.0, 600)  # a p-value is the next one above
LARGEST_MU = 50.0
LARGEST_EPSILON = 100.0
SHARES = (0.2, 0.1, 0.04)


def gaussian_curve(mu: float) -> Curve:
    """Return the curve of μ-Gaussian DP, y ↦ Φ(Φ⁻¹(y) − μ).

    Source: Dong, Roth, Su 2022, "Gaussian Differential Privacy", definition 2.6.
    """
    return lambda y: np.asarray(ndtr(ndtri(y) - mu))


def curve_of(epsilons: ArrayLike, deltas: ArrayLike) -> Curve:
    """Return the curve of a privacy profile, or of as many points of it as are claimed.

    An event and its complement give y ↦ max_ε max{(y − δ)/e^ε, 1 − δ − e^ε(1 − y), 0}.

    Args:
        epsilons, deltas: points; each δ is an upper bound in both directions.

    Source: Dong, Roth, Su 2022, "Gaussian Differential Privacy", proposition 2.5.
    """
    bounds, factors = np.asarray(deltas, dtype=float), np.exp(np.asarray(epsilons, dtype=float))

    def least(y: Array) -> Array:
        each = np.asarray(y)[..., None]
        lines = np.maximum((each - bounds) / factors, 1 - bounds - factors * (1 - each))
        return np.asarray(lines.max(axis=-1).clip(0.0))

    return least


def impossible(
    curve: Curve, probability: float, *, canaries: int, guesses: ArrayLike, correct: ArrayLike
) -> NDArray[np.bool_]:
    """Return whether no mechanism with a claimed curve lets guesses be so often right.

    Let G be the curve and V the number of right guesses. Take the event that a guess on canary i is
    "in", and that at least c − 1 of the other guesses are right: whatever the other coins, its
    probability with i out is at least G of that with i in; "out" the same. G is convex, so over
    coins, both kinds of guess and all canaries, right and wrong guesses are such that

        Σ_{k≥c−1} (r − k) P[V = k]/m ≥ G(Σ_{k≥c} k P[V = k]/m)  for each c.

    Suppose P[V ≥ v] = τ. The least total probability that this needs has all of τ at v and then,
    for c = v, v − 1, …, 1, the least P[V = c − 1] that is enough. For, of two rows of probabilities
    down to c, let the second have η ≥ 0 more in total, at least cη more right guesses and at most
    (r − c)η more wrong ones. It needs at most (r − c)η/(r − c + 1) less at c − 1, whereby the
    same holds down to c − 1. So if the least total is above 1, then P[V ≥ v] is not τ, and nor is
    it more: distributions of V that are possible are a convex set, in which τ can be 0.

    Args:
        curve: what is claimed for each canary.
        probability: τ.
        canaries: m, each in the dataset by an independent fair coin.
        guesses, correct: r, fixed in advance, and v; numbers, or arrays of one shape.

    Returns:
        Whether P[V ≥ v] < τ, for each r and v.

    Source: Mahloujifar, Melis, Chaudhuri 2025, "Auditing f-Differential Privacy in One Run".
    """
    r, number = np.asarray(guesses, dtype=float), np.asarray(correct, dtype=float)
    total = np.full(number.shape, probability)
    right, wrong = number * total, (r - number) * total
    for _ in range(int(number.max(initial=0))):
        number = number - 1
        needed = canaries * curve(np.minimum(right / canaries, 1.0)) - wrong
        more = np.where(number >= 0, np.maximum(needed, 0.0) / (r - number), 0.0)
        total, right, wrong = total + more, right + number * more, wrong + (r - number) * more
        if np.all(total > 1 + 1e-9):
            break
    return np.asarray(total > 1 + 1e-9)


@dataclass(frozen=True)
class Guesses:
    """How often guesses about the same canaries were right, for each way to guess that was tried.

    Each way gets an equal share of the allowed error (Bonferroni), so that what is said of any of
    them, and of all together, holds with the stated confidence.

    Attributes:
        canaries: m, each in the dataset by an independent fair coin.
        made: r of each way, how many canaries were guessed on; none is guessed of the others.
        right: v of each way, how many guesses were right.
    """

    canaries: int
    made: tuple[int, ...]
    right: tuple[int, ...]

    @classmethod
    def by(
        cls, scores: Array, included: NDArray[np.bool_], shares: tuple[float, ...] = SHARES
    ) -> Guesses:
        """Guess "in" for the highest scores and "out" for the lowest, in numbers fixed before.

        Args:
            scores: one per canary, shape (m,), or several, shape (k, m); the higher, the more it
                looks included.
            included: the coins.
            shares: of canaries to guess on.

        Returns:
            A way to guess for each score and share, scores first.
        """
        ways = [
            correct_guesses(row, included, share)
            for row, share in product(np.atleast_2d(scores), shares)
        ]
        made, right = zip(*ways, strict=True)
        return cls(len(included), made, right)

    def refute(self, curve: Curve, *, confidence: float) -> NDArray[np.bool_]:
        """Return which ways refute a claim; with the stated confidence, none refutes a true one."""
        return self._impossible(curve, (1 - confidence) / len(self.made))

    def p_value(self, curve: Curve) -> float:
        """Return the p-value of a claimed curve, a number in [1e-12, 1]."""
        first = bisect_left(
            range(len(P_VALUES)),
            True,
            key=lambda number: bool(self._impossible(curve, float(P_VALUES[number])).any()),
        )
        return min(1.0, len(self.made) * float(P_VALUES[first])) if first < len(P_VALUES) else 1.0

    def epsilon_at_least(self, delta: float, *, confidence: float = 0.95) -> float:
        """Return the largest ε (to 1e-3) that is refuted at one δ, and nothing else being claimed.

        With the stated confidence the mechanism is not (ε′, δ)-DP for any ε′ below.
        """

        def refuted(epsilon: float) -> bool:
            return bool(self.refute(curve_of([epsilon], [delta]), confidence=confidence).any())

        return _largest_refuted(refuted, least=0.0, most=LARGEST_EPSILON)

    def _impossible(self, curve: Curve, probability: float) -> NDArray[np.bool_]:
        return impossible(
            curve, probability, canaries=self.canaries, guesses=self.made, correct=self.right
        )


def correct_guesses(scores: Array, included: NDArray[np.bool_], share: float) -> tuple[int, int]:
    """Guess on a share of the canaries; return r and how many guesses were right.

    Half of the guesses are "in", for the highest scores, and half "out", for the lowest.
    """
    order = np.argsort(scores, kind="stable")
    half = max(1, math.floor(share * len(included) / 2))
    right = int(included[order[-half:]].sum()) + int((~included[order[:half]]).sum())
    return 2 * half, right


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
    guesses = Guesses.by(scores, included, shares)

    def refuted(mu: float) -> bool:
        return bool(guesses.refute(gaussian_curve(mu), confidence=confidence).any())

    return _largest_refuted(refuted, least=1e-3, most=LARGEST_MU)


def _largest_refuted(refuted: Callable[[float], bool], *, least: float, most: float) -> float:
    """Return the largest value (to 1e-3) that is refuted, where all smaller ones are, too.

    Args:
        refuted: whether a value is.
        least, most: where the search begins, and beyond which it ends; below 1 and above it.

    Returns:
        0 where not even the least value is refuted.
    """
    if not refuted(least):
        return 0.0
    low, high = least, 1.0
    while refuted(high):
        if high > most:
            return high
        low, high = high, 2 * high
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


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
