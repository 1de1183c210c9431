"""How often small samples of draws mislead a bound on δ."""

from __future__ import annotations

import math
from dataclasses import replace

from clipnoise.privacy.accountants.mixture import Weighted, bound

SAMPLES = 400


def misled(drawn: Weighted, epsilon: float, *, size: int) -> int:
    """Return for how many of 400 samples the bound is below that of all draws together.

    At ρ = 0.05 for each of two bounds, fewer than a fifth are expected.
    """
    truth, count = bound(drawn, 1e-12, sign=1)(epsilon), 0
    for start in range(0, SAMPLES * size, size):
        rows = slice(start, start + size)
        part = replace(
            drawn, log_ratios=drawn.log_ratios[rows], log_weights=drawn.log_weights[rows]
        )
        count += bound(part, math.log(20), sign=1)(epsilon) < truth
    return count
