"""Random numbers for sampling and noise, from a seeded generator or a cryptographic source.

The cryptographic source is ChaCha20 under a key that the operating system draws for each call and
that is discarded after it, so no number follows from any other, and none can be reproduced.
"""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING

from clipnoise.lazy import Tensor, torch

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

PAIRS = 2**16  # pairs of normals drawn at a time, few enough for the cache
DIGITS = 53  # binary digits of a float64


class Draws:
    """A stream of random numbers that nothing else uses, and its position for a checkpoint."""

    def __init__(self, generator: torch.Generator | None) -> None:
        """Start the stream.

        Args:
            generator: where the numbers come from; None stands for a cryptographic source.
        """
        self.generator = generator

    def uniform(self, count: int) -> Tensor:
        """Return independent uniforms on a grid of 2^-53 in [0, 1), float64 of shape (count,)."""
        if self.generator is None:
            return _uniforms(_stream(), count)
        return torch.rand(count, generator=self.generator, dtype=torch.float64)

    def permutation(self, count: int) -> Tensor:
        """Return a random order of 0 … count−1, int64."""
        if self.generator is None:
            return self.uniform(count).argsort()
        return torch.randperm(count, generator=self.generator)

    def integers(self, below: int, count: int) -> Tensor:
        """Return independent integers in 0 … below−1, int64 of shape (count,)."""
        if self.generator is None:
            return (self.uniform(count) * below).long()
        return torch.randint(below, (count,), generator=self.generator)

    def normals(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return independent standard normals in the dtype and on the device of a tensor."""
        if self.generator is None:
            return secure_normals(shape, like)
        return torch.randn(shape, generator=self.generator, dtype=like.dtype, device=like.device)

    def get_state(self) -> dict[str, Tensor]:
        """Return the position in the stream; a cryptographic source has none."""
        return {} if self.generator is None else {"generator": self.generator.get_state()}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Go to a saved position; the numbers that follow are the same bit for bit.

        Raises:
            ValueError: the numbers come from a cryptographic source, which has no positions.
        """
        if self.generator is None:
            raise ValueError("draws from a cryptographic source cannot be resumed")
        self.generator.set_state(state["generator"])


def secure_normals(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Draw independent standard normals from the cryptographic source.

    Box and Muller's transform turns uniforms of 53 bits into normals of up to 8.5 in float64, which
    are rounded to the dtype of `like`. Drawn on the CPU, then moved.

    Args:
        shape: of the result.
        like: a tensor with its dtype and device.
    """
    stream = _stream()
    numbers = torch.empty(math.prod(shape), dtype=like.dtype)
    for start in range(0, len(numbers), 2 * PAIRS):
        piece = numbers[start : start + 2 * PAIRS]
        piece.copy_(_box_muller(stream, (len(piece) + 1) // 2)[: len(piece)])
    return numbers.view(shape).to(like.device)


def _box_muller(stream: CipherContext, pairs: int) -> Tensor:
    """Return 2·pairs standard normals in float64."""
    uniform = 1 - _uniforms(stream, 2 * pairs)  # (0, 1], so that the logarithm is finite
    radius = uniform[:pairs].log_().mul_(-2).sqrt_()
    angle = uniform[pairs:].mul_(2 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])


def _stream() -> CipherContext:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    return Cipher(ChaCha20(secrets.token_bytes(32), bytes(16)), mode=None).encryptor()


def _uniforms(stream: CipherContext, count: int) -> Tensor:
    """Return multiples of 2^-53 in [0, 1), float64."""
    if count == 0:
        return torch.empty(0, dtype=torch.float64)
    drawn = bytearray(stream.update(bytes(8 * count)))
    bits = torch.frombuffer(drawn, dtype=torch.int64) & (2**DIGITS - 1)
    uniforms: Tensor = bits.double() * 2.0**-DIGITS
    return uniforms
