"""Accounting for batches of a fixed size: an upper bound if drawn, a lower one if shuffled."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from clipnoise.lazy import np
from clipnoise.privacy.accountants.poisson import (
    LOG_MOMENT_ERROR,
    ORDERS,
    Releases,
    refuse_tiny,
    renyi_delta,
    renyi_epsilon,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


def whole_batch(sampling_rate: float, examples: int) -> int:
    """Return B = q·n, rounded up if q was rounded down."""
    return min(examples, math.ceil(sampling_rate * examples * (1 - 1e-12)))


def fixed_size_epsilon(releases: Releases) -> float:
    """Bound the ε of batches of a fixed size drawn without replacement, for replacing an example.

    Args:
        releases: T releases on batches of q·n of the n examples. σ is relative to the clip norm C;
            replacing an example moves the sum by 2C.

    Returns:
        ε under replacement, by Rényi DP. It is not comparable with ε under add-remove adjacency.

    Raises:
        AccountantError: the noise is too small for a finite bound.
    """
    return renyi_epsilon(_every_curve(releases), releases.delta)


def fixed_size_delta(releases: Releases, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bound δ at each ε, as `fixed_size_epsilon` bounds ε at δ."""
    return renyi_delta(_every_curve(releases), epsilons)


def _every_curve(releases: Releases) -> NDArray[np.float64]:
    """Bound the Rényi divergence of all releases together at each of ORDERS."""
    assert releases.examples is not None  # Budget requires it for this accountant
    sigma, examples = releases.noise_multiplier, releases.examples
    refuse_tiny(sigma)
    rate = whole_batch(releases.sampling_rate, examples) / examples
    return releases.steps * _curve(sigma / 2, rate)


@lru_cache(maxsize=16)
def _curve(sigma: float, rate: float) -> NDArray[np.float64]:
    """Bound the Rényi divergence of one release at each of ORDERS, for replacing an example.

    E[(mixture/Gaussian)^α] is at most 1 + Σ_j C(α, j) q^j b_j, where b_j bounds twice the
    exponentiated divergence of the Gaussian mechanism at order j, or follows from its moments.
    Between whole orders the log moment is interpolated: it is convex.

    Args:
        sigma: σ relative to the distance that replacing an example can cause.
        rate: q.

    Source: Wang, Balle, Kasiviswanathan 2019, "Subsampled Rényi Differential Privacy and
    Analytical Moments Accountant", theorem 27 and corollary 10.
    """
    from scipy.special import gammaln, logsumexp

    largest = int(max(ORDERS))
    j = np.arange(2, largest + 1)
    moments = _log_even_moments(sigma, largest + 2)
    by_moments = np.log(4) + (moments[j // 2] + moments[(j + 1) // 2]) / 2
    terms = np.minimum(by_moments, np.log(2) + j * (j - 1) / (2 * sigma**2)) + j * np.log(rate)
    logs = np.zeros(largest + 1)
    for order in sorted({end for alpha in ORDERS for end in (math.floor(alpha), math.ceil(alpha))}):
        some = j[: order - 1]
        choices = gammaln(order + 1) - gammaln(some + 1) - gammaln(order - some + 1)
        logs[order] = np.logaddexp(0, logsumexp(choices + terms[: order - 1])) if order > 1 else 0.0
    whole = np.arange(largest + 1)
    orders = np.array(ORDERS)
    unsampled = orders / (2 * sigma**2)  # sampling costs nothing
    curve = np.minimum(np.interp(orders, whole, logs) / (orders - 1), unsampled)
    bound = np.asarray(curve * (1 + LOG_MOMENT_ERROR), dtype=np.float64)
    bound.setflags(write=False)
    return bound


def _log_even_moments(sigma: float, largest: int) -> NDArray[np.float64]:
    """Return log E[(P/Q − 1)^l] for l = 0, 2, … under Q = N(0, σ²), with P = N(1, σ²).

    The trapezoidal rule is exact up to rounding. Where the integrand lies far out the moment is
    about e^(l(l−1)/2σ²), which is never the smaller bound: it counts as infinite.
    """
    from scipy.special import logsumexp

    powers = np.arange(0, largest + 1, 2)[:, None]
    width = 0.05
    x = np.arange(-45, 60, width)
    ratio = np.abs(np.expm1(np.minimum(x / sigma - 1 / (2 * sigma**2), 700)))
    logs = powers * np.log(np.maximum(ratio, 1e-300)) - x**2 / 2
    moments = logsumexp(logs, axis=1) + math.log(width / math.sqrt(2 * math.pi))
    return np.where(powers[:, 0] / sigma < 40, moments, np.inf)


def shuffled_epsilon_at_least(noise_multiplier: float, batches: int, delta: float) -> float:
    """Return an ε that one epoch of shuffled batches costs at least.

    The neighbouring datasets: all other examples pull one way, and the one that differs pulls the
    other way. It shifts one of the T batches by 2, its absence shifts one by 1, and the largest of
    the T released values tells which. As an attack it gives a lower bound: no valid accountant can
    report less.

    Args:
        noise_multiplier, delta: σ and δ.
        batches: T, the number of batches in the epoch.

    Source: Chua et al. 2024, "How Private are DP-SGD Implementations?".
    """
    from scipy.special import log_ndtr

    sigma = noise_multiplier
    threshold = np.linspace(-2 * sigma, 2 + 12 * sigma, 20_001)
    others = (batches - 1) * log_ndtr(threshold / sigma)
    with_it = -np.expm1(others + log_ndtr((threshold - 2) / sigma))
    without = -np.expm1(others + log_ndtr((threshold - 1) / sigma))
    usable = (with_it > delta) & (without > 1e-300)
    if not usable.any():
        return 0.0
    ratios = np.log(with_it[usable] - delta) - np.log(without[usable])
    return max(0.0, float(ratios.max()))
