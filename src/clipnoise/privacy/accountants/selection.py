"""The cost of tuning: what choosing the best of several private runs costs in ε."""

from __future__ import annotations

import math
from collections.abc import Iterable

from clipnoise.errors import UserError
from clipnoise.lazy import np
from clipnoise.privacy.accountants.poisson import (
    ORDERS,
    rdp_curve,
    renyi_delta,
    renyi_epsilon,
)


def selected_epsilon(
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    expected_runs: float,
) -> float:
    """Bound the ε of publishing only the best of a random number of private runs.

    The number of runs is Poisson with mean μ and drawn before the first run; each run takes a
    candidate at random and has its own noise. Publishing the best then costs a Rényi divergence of
    ε(α) + μδ̂ + log(μ)/(α − 1) at order α, where one run is (ε̂, δ̂)-DP with ε̂ ≤ log(1 + 1/(α − 1)).
    Choosing from a fixed grid costs more; choosing by public data, or by validation data that are
    not private, costs nothing.

    Args:
        noise_multiplier, sampling_rate, steps: σ, q and T of each run.
        delta: δ of the result.
        expected_runs: μ ≥ 1.

    Returns:
        ε under adding or removing one example.

    Raises:
        UserError: μ is below 1.

    Source: Papernot, Steinke 2022, "Hyperparameter Tuning with Rényi Differential Privacy",
    theorem 6.
    """
    if not expected_runs >= 1:
        raise UserError(f"expected_runs: must be at least 1, got {expected_runs}.")
    single = steps * rdp_curve(noise_multiplier, sampling_rate)
    orders = np.array(ORDERS)
    slack = renyi_delta(single, np.log1p(1 / (orders - 1)))
    chosen = single + expected_runs * slack + math.log(expected_runs) / (orders - 1)
    return renyi_epsilon(chosen, delta)


def composed_epsilon(mechanisms: Iterable[tuple[float, float, int]], *, delta: float) -> float:
    """Bound the ε of publishing everything that several runs release.

    Args:
        mechanisms: σ, q and T of each run: Poisson-subsampled Gaussians with noise and batches
            drawn independently of the other runs.
        delta: δ of all together.

    Returns:
        ε under adding or removing one example: Rényi divergences add up at each order.

    Source: Mironov 2017, "Rényi Differential Privacy", proposition 1.
    """
    curves = [steps * rdp_curve(sigma, rate) for sigma, rate, steps in mechanisms if steps]
    return renyi_epsilon(np.sum(curves, axis=0), delta) if curves else 0.0
