"""Verified bounds on the divergences of a mixture of normals from one normal.

P = Σ πᵢ N(mᵢ, I) against Q = N(0, I), R their likelihood ratio. What draws R from which density,
and bounds the weights of the draws in advance, is left to the kinds of mixtures.

**The verification.** For values X ≥ 0 with second moment S, E exp(−λX) ≤ exp(−λE[X] + λ²S/2), so
the mean of n draws is below E[X] − √(2S ln(1/ρ)/n) with probability at most ρ. The same is true of
X², whose second moment is at most w²S where X ≤ w, and so bounds S. ε is the smallest at which this
bound on δ(ε) holds. All its parts fall as ε grows, so it errs only if the bound at the true ε does.

No value of (R − e^ε)₊ R^(−k) exceeds e^((1−k)ε) (k − 1)^(k−1)/k^k, the largest of the weighted
values for removing an example.

Source: Wang et al. 2023, "A Randomized Approach for Tight Privacy Accounting" (estimate, verify,
release).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

from clipnoise.lazy import np
from clipnoise.privacy.accountants.poisson import LARGEST_LOSS, AccountantError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Bound = Callable[[float], float]  # on δ, of ε

CHUNK = 2**12  # draws at a time, so that they stay in the processor's memory
MOST_TILTS = 40  # the largest k
SEED = 2410_06266


@dataclass(frozen=True)
class Weighted:
    """Draws of R, each with the logarithm of its weight without the power of R.

    Attributes:
        log_ratios, log_weights: ln R and ln of the weight, shape (draws,).
        power: the weight has the factor R to this power.
        log_most: the logarithm of the largest of the other factors.
    """

    log_ratios: Array
    log_weights: Array
    power: float
    log_most: float


class Mixture(ABC):
    """Σ πᵢ N(mᵢ, I) against N(0, I).

    Attributes:
        most_tilts: the largest k that can be drawn.
    """

    most_tilts: int

    @cached_property
    def drawn(self) -> Callable[[int], Weighted]:
        """`tilted`, which draws once for each k."""
        return cache(self.tilted)

    def epsilon(self, delta: float, certainty: float) -> float:
        """Return ε at which both directions are verified."""
        removing = bound(self.drawn(self.tilt(delta)), certainty, sign=1)
        value = _smallest(removing, delta)
        adding = self.adding((value,), certainty)
        return value if adding(value) <= delta else _smallest(adding, delta, value)

    def deltas(self, epsilons: Array, delta: float, certainty: float) -> Array:
        """Bound δ at each ε in both directions, by the best of the densities that are drawn from.

        Where removing an example says that δ is small, the draws for adding one are to be close:
        they are independent of those that say it.

        Args:
            epsilons: ascending.
            delta: the smallest δ that matters.
            certainty: ln(1/ρ).
        """
        tilts = {1, self.tilt(math.sqrt(delta)), self.tilt(delta)}
        removing = _at(
            least([bound(self.drawn(k), certainty, sign=1) for k in sorted(tilts)]), epsilons
        )
        reached = [removing > level for level in (math.sqrt(delta), delta)]
        places = [epsilons[min(int(above.sum()), len(epsilons) - 1)] for above in reached]
        adding = self.adding((0.0, *map(float, places)), certainty)
        return np.maximum(removing, _at(adding, epsilons))

    def tilt(self, delta: float) -> int:
        """Choose k: that for which the largest weighted value is 100δ at the smallest ε.

        The logarithm of the largest value is convex in k, so the first minimum is the only one.
        """
        best, least = 1, math.inf
        for k in range(2, self.most_tilts + 1) if 100 * delta < 1 else ():
            excess = self.log_normaliser(k) + _log_most_remaining(k) - math.log(100 * delta)
            if excess / (k - 1) >= least:
                break
            best, least = k, excess / (k - 1)
        return best

    @abstractmethod
    def log_normaliser(self, k: int) -> float:
        """Bound ln of the largest weight, without the power of R, of draws tilted by R^k."""

    @abstractmethod
    def tilted(self, k: int) -> Weighted:
        """Draw R from a density close to Q·R^k."""

    @abstractmethod
    def adding(self, places: Collection[float], certainty: float) -> Bound:
        """Bound δ for adding an example, where R is drawn from densities close to Q.

        Args:
            places: the ε at which the bound is to be close.
            certainty: ln(1/ρ); at each ε, the draws of one place mislead with probability 2ρ.
        """


def log_mean_exp(values: Array) -> Array:
    """Return ln of the mean of exp over the first axis."""
    most = values.max(axis=0)
    return np.asarray(np.log(np.exp(values - most).mean(axis=0)) + most)


def _log_most_remaining(k: int) -> float:
    """Return ln((k − 1)^(k−1)/k^k) for k > 1."""
    return (k - 1) * math.log(k - 1) - k * math.log(k)


def log_most(sign: int, power: float, epsilon: float) -> float:
    """Return ln of the largest value of (R − e^ε)₊ R^power, or of (1 − e^ε R)₊ R^power."""
    exponent = -power - 1 if sign == 1 else power
    if exponent == 0:
        return 0.0
    base = exponent * math.log(exponent) - (exponent + 1) * math.log(exponent + 1)
    return base - exponent * epsilon


def bound(drawn: Weighted, certainty: float, *, sign: int) -> Bound:
    """Return the upper confidence bound on δ as a function of ε.

    Args:
        drawn: R and weights.
        certainty: ln(1/ρ).
        sign: 1 for removing an example, −1 for adding one.
    """
    n, power = len(drawn.log_ratios), drawn.power
    # (R − e^ε)₊ = R(1 − e^ε/R)₊
    logs = drawn.log_weights + (power + (sign == 1)) * drawn.log_ratios - drawn.log_most
    margin = math.sqrt(certainty / (2 * n))
    values, share = np.empty(n), np.empty(n)  # for every ε: it takes as long to allocate them

    def at(epsilon: float) -> float:
        log_largest = log_most(sign, power, epsilon)
        np.subtract(epsilon, sign * drawn.log_ratios, out=share)
        np.negative(np.expm1(np.minimum(share, 0.0, out=share), out=share), out=share)
        # No larger value is below 1 where the share is not 0, and where it is, ∞·0 must not occur.
        np.minimum(np.subtract(logs, log_largest, out=values), LARGEST_LOSS, out=values)
        np.multiply(np.exp(values, out=values), share, out=values)
        np.minimum(values, 1.0, out=values)
        root = margin + math.sqrt(margin**2 + float(values @ values) / n)
        most = math.exp(min(log_largest + drawn.log_most, LARGEST_LOSS))
        return most * (float(values.mean()) + 2 * root * margin)

    return at


def least(bounds: Sequence[Bound]) -> Bound:
    """Return the smallest of some bounds."""
    return lambda epsilon: min(each(epsilon) for each in bounds)


def _at(of: Bound, epsilons: Array) -> Array:
    return np.array([of(float(epsilon)) for epsilon in epsilons])


def _smallest(of: Bound, delta: float, start: float = 0.0) -> float:
    """Return an ε at which a falling bound is at most δ, close above the smallest one."""
    if of(start) <= delta:
        return start
    low, high = start, start + 1.0
    while not of(high) <= delta:
        low, high = high, 2 * high
        if high > 1e4:
            raise too_small()
    while high - low > 1e-7 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (low, middle) if of(middle) <= delta else (middle, high)
    return high


def too_small() -> AccountantError:
    """Return the error of noise whose cost no draw shows."""
    return AccountantError("noise_multiplier: too small for a bound by the accountant monte-carlo.")
