"""Accounting for batches of a fixed size: an upper bound if drawn, a lower one if shuffled."""

from __future__ import annotations

from clipnoise.privacy.accountants.poisson import Releases


def fixed_size_epsilon(releases: Releases) -> float:
    """Bound the ε of batches of a fixed size drawn without replacement, for replacing an example.

    Args:
        releases: T releases on batches of q·n of the n examples. σ is relative to the clip norm C;
            replacing an example moves the sum by 2C.

    Returns:
        ε under replacement, by Rényi DP. It is not comparable with ε under add-remove adjacency.

    Source: Wang, Balle, Kasiviswanathan 2019, "Subsampled Rényi Differential Privacy and
    Analytical Moments Accountant" (as in dp-accounting).
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    assert releases.examples is not None  # Budget requires it for this accountant
    batch_size = round(releases.sampling_rate * releases.examples)
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(releases.noise_multiplier / 2)
    sampled = dp_accounting.SampledWithoutReplacementDpEvent(
        releases.examples, batch_size, gaussian
    )
    accountant.compose(sampled, releases.steps)
    return float(accountant.get_epsilon(releases.delta))


def shuffled_epsilon_at_least(noise_multiplier: float, batches: int, delta: float) -> float:
    """Return an ε that one epoch of shuffled batches costs at least.

    The neighbouring datasets: all other examples pull one way, and the one that differs pulls the
    other way. It shifts one of the T batches by 2, its absence shifts one by 1, and the largest of
    the T released values tells which. As an attack it gives a lower bound: no valid accountant can
    report less.

    Args:
        noise_multiplier: σ.
        batches: T, the number of batches in the epoch.
        delta: δ.

    Returns:
        ε ≥ 0.

    Source: Chua et al. 2024, "How Private are DP-SGD Implementations?".
    """
    import numpy as np
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
