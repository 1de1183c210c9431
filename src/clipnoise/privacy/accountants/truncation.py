"""The cost of cutting Poisson batches at a largest size: an addition to δ."""

from __future__ import annotations

import math
from collections.abc import Callable

from clipnoise.privacy.accountants.poisson import AccountantError


def truncation_probability(examples: int, sampling_rate: float, largest_batch: int) -> float:
    """Return the probability that Poisson sampling draws more than K examples.

    It is that of the larger of two neighbouring datasets, which bounds both.

    Args:
        examples: n, of the smaller dataset or the larger one: n + 1 are counted.
        sampling_rate: q.
        largest_batch: K.
    """
    from scipy.stats import binom

    return float(binom.sf(largest_batch, examples + 1, sampling_rate))


def truncated_epsilon(
    spent: Callable[[float], float], delta: float, expected_truncations: float
) -> float:
    """Bound ε when steps that draw too many examples leave some of them out.

    If the steps are (ε, δ′)-DP without truncation, they are (ε, δ′ + (1 + e^ε) T P)-DP with it,
    where P is the probability that a step draws too many. The smallest ε for which the sum stays
    within δ is approached from below, so the last iterate is rounded up.

    Args:
        spent: ε without truncation as a function of δ′.
        delta: δ.
        expected_truncations: T·P.

    Returns:
        ε ≥ 0.

    Raises:
        AccountantError: truncation alone costs more than δ.

    Source: Chua et al. 2024, "Scalable DP-SGD: Shuffling vs. Poisson Subsampling".
    """
    value = spent(delta)
    if expected_truncations == 0:
        return value
    for _ in range(100):
        remaining = delta - (1 + math.exp(min(value, 700.0))) * expected_truncations
        if remaining <= 0:
            break
        following = spent(remaining)
        if following <= value:
            return value
        value = following * (1 + 1e-9)
    raise AccountantError(
        f"largest_batch: batches are truncated so often ({expected_truncations:.2g} expected in "
        f"all steps) that this alone costs more than delta {delta:g}. Choose a larger one."
    )
