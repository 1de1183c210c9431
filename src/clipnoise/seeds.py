"""One seed per run, and one independent random stream per purpose."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import torch

GAMMA = 0x9E3779B97F4A7C15  # the increment of SplitMix64's counter

Purpose = Literal[
    "split", "initialisation", "sampling", "micro-batches", "noise", "public", "dropout"
]


def derive(purpose: Purpose, seed: int) -> int:
    """Derive the seed of one purpose: the first 63 bits of SHA-256("purpose:seed").

    Unlike Python's hash(), it is the same in every process and on every machine.

    Args:
        purpose: what the stream is for.
        seed: the run's seed.

    Returns:
        A non-negative integer below 2^63.
    """
    digest = hashlib.sha256(f"{purpose}:{seed}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(purpose: Purpose, seed: int, device: str = "cpu") -> torch.Generator:
    """Return the random stream of one purpose.

    The streams are for repeatable research: anyone who knows the seed knows the noise. A model that
    protects real people needs noise from a cryptographic source: `privacy.secure_noise`.

    Args:
        purpose: what the stream is for.
        seed: the run's seed.
        device: where numbers are drawn; they differ between kinds of device.

    Returns:
        A new generator, at its start.
    """
    import torch

    return torch.Generator(device).manual_seed(derive(purpose, seed))


def mix64(values: np.ndarray) -> np.ndarray:
    """Scramble 64-bit counters into pseudorandom numbers, elementwise: uint64 → uint64.

    Source: Steele, Lea, Flood 2014, "Fast Splittable Pseudorandom Number Generators" (the output
    function of SplitMix64).
    """
    import numpy as np

    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
