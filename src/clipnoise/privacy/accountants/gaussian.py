"""The accountant of batches without amplification: the Gaussian mechanism, computed exactly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from clipnoise.fields import parse
from clipnoise.lazy import np
from clipnoise.privacy.accountants.poisson import Releases

if TYPE_CHECKING:
    from numpy.typing import NDArray


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return the ε of one release of the Gaussian mechanism, exact up to rounding (upwards).

    k releases at σ, or one release of sensitivity √k, cost as much as one release at σ/√k.

    Args:
        noise_multiplier: σ, relative to the sensitivity; above 0.
        delta: δ in (0, 1).

    Raises:
        UserError: a value out of range.

    Source: Balle, Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy",
    theorem 8.
    """
    from scipy.optimize import brentq

    one = {"sampling_rate": 1.0, "steps": 1}
    values = parse(Releases, {"noise_multiplier": noise_multiplier, "delta": delta, **one})
    ratio = 1 / values.noise_multiplier
    target = math.log(values.delta)

    def excess(value: float) -> float:
        return _log_delta(value, ratio) - target

    if excess(0.0) <= 0:
        return 0.0
    high = ratio**2 / 2 + ratio * math.sqrt(-2 * target)  # from the tail bound of the normal
    root = float(brentq(excess, 0.0, high, xtol=1e-14, rtol=1e-14))
    return root + 1e-12 * max(1.0, root)


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest σ at which one release of the Gaussian mechanism costs at most ε.

    Args:
        epsilon: ε > 0.
        delta: δ in (0, 1).

    Returns:
        σ, to a relative 1e-9, rounded up.
    """
    low, high = -40.0, 40.0  # log σ
    while high - low > 1e-9:
        middle = (low + high) / 2
        enough = gaussian_epsilon(math.exp(middle), delta) <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return math.exp(high)


def gaussian_delta(mu: float, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return δ at each ε of the Gaussian mechanism with μ = 1/σ, exact up to rounding (upwards).

    Source: Balle, Wang 2018, theorem 8.
    """
    from scipy.special import log_ndtr

    first = log_ndtr(mu / 2 - epsilons / mu)
    second = epsilons + log_ndtr(-mu / 2 - epsilons / mu)
    deltas = -np.exp(first) * np.expm1(np.minimum(second - first, 0.0))
    rounding = 1e-12 * np.exp(first)  # of logarithms whose difference is small
    return np.asarray(np.minimum(deltas + rounding, 1.0), dtype=np.float64)


def _log_delta(value: float, ratio: float) -> float:
    """Return log δ(ε) = log(Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)) for μ = 1/σ."""
    from scipy.special import log_ndtr

    first = float(log_ndtr(ratio / 2 - value / ratio))
    second = value + float(log_ndtr(-ratio / 2 - value / ratio))
    if second >= first:  # equal but for rounding
        return -math.inf
    return first + math.log(-math.expm1(second - first))
