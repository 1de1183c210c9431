"""One seed per run, one independent random stream per purpose."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Purpose = Literal[
    "split", "initialisation", "sampling", "micro-batches", "noise", "public", "dropout"
]


def derive(purpose: Purpose, seed: int) -> int:
    """Derive the seed of one purpose: the first 63 bits of SHA-256("purpose:seed").

    Python's own hash() changes between processes; this is the same everywhere and always.

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

    The streams are for repeatable research: who knows the seed knows the noise. A model that
    protects real people needs noise from a cryptographic source: `privacy.secure_noise`.

    Args:
        purpose: what the stream is for.
        seed: the run's seed.
        device: where numbers are drawn; the numbers differ between kinds of device.

    Returns:
        A generator of its own, at its start.
    """
    import torch

    return torch.Generator(device).manual_seed(derive(purpose, seed))
