"""What an example of b-min-sep may do: every pattern, and its probability."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def patterns(bands: int, steps: int, rate: float) -> tuple[Array, Array]:
    """Return every pattern, 0 or 1 by step, and its probability by the words of the sampler."""
    start = [1.0, *[rate] * (bands - 1)]  # waits for 0, 1, …, b − 1 steps
    chances: Counter[tuple[int, ...]] = Counter()
    for pattern in product((0, 1), repeat=steps):
        for wait, weight in enumerate(start):
            chance, left = weight / sum(start), wait
            for takes_part in pattern:
                able = left == 0
                chance *= (rate if takes_part else 1 - rate) if able else 1 - takes_part
                left = bands - 1 if takes_part else max(0, left - 1)
            chances[pattern] += chance
    kept = [(pattern, chance) for pattern, chance in chances.items() if chance > 0]
    return np.array([p for p, _ in kept], float), np.array([chance for _, chance in kept])
