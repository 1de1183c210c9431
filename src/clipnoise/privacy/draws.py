"""Random numbers for sampling and noise, from a seeded generator or a cryptographic source.

The cryptographic source is ChaCha20 under a key that the operating system draws for each call and
that is discarded after it, so no number follows from any other, and none can be reproduced.

A normal made of uniforms of few bits has a tail that ends early: with the 24 bits of float32 on a
CPU at 5.8, and a release further out would show that an example took part. So every normal beyond
`TAIL` is drawn again, from that tail of the normal distribution and with twice 53 bits.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from clipnoise.lazy import Tensor, np, torch

if TYPE_CHECKING:
    from typing import Any

    from cryptography.hazmat.primitives.ciphers import CipherContext
    from numpy.typing import NDArray

    Array = NDArray[Any]

PAIRS = 2**16  # pairs of normals drawn at a time
PIECE = 2**17  # normals drawn at a time from a generator, few enough for the cache
DIGITS = 53  # binary digits of a float64

# Box and Muller's transform draws two normals from one radius. With 24 bits, 80 radii lie beyond
# the corner of |z| ≤ 3.5, so that what stays is close to normal, in pairs too. (Beyond the corner
# of |z| ≤ 4 there would be one.)
TAIL = 3.5
OUTSIDE = math.erfc(TAIL / math.sqrt(2)) / 2  # P(z > TAIL)
REACH = 12.5  # normals of 12.52 can be drawn: P(z > 12.52) = OUTSIDE · 2^(−2·DIGITS)


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
        where = self.generator.device
        return torch.rand(count, generator=self.generator, dtype=torch.float64, device=where)

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
        """Return independent standard normals in the dtype and on the device of a tensor.

        Their tail is that of the normal distribution as far as `REACH`, whatever the generator.
        """
        if self.generator is None:
            return secure_normals(shape, like)
        numbers = like.new_empty(math.prod(shape))
        if not numbers.is_cpu:
            numbers.normal_(generator=self.generator)
            places = (numbers.abs() > TAIL).nonzero().view(-1)
            again = _again(numbers[places].cpu().numpy(), self.uniform)
            numbers[places] = torch.from_numpy(again).to(numbers)
            return numbers.view(shape)
        values, found = numbers.numpy(), []  # NumPy searches three times as fast
        for start in range(0, len(values), PIECE):
            numbers[start : start + PIECE].normal_(generator=self.generator)
            found.append(start + _beyond(values[start : start + PIECE]))
        if found:
            _draw_again(values, np.concatenate(found), self.uniform)
        return numbers.view(shape)

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

    Box and Muller's transform turns uniforms of 53 bits into normals in float64, which are rounded
    to the dtype of `like`. They reach as far as those of `Draws`. Drawn on the CPU, then moved.

    Args:
        shape: of the result.
        like: a tensor with its dtype and device.
    """
    stream = _stream()
    numbers = torch.empty(math.prod(shape), dtype=like.dtype)
    for start in range(0, len(numbers), 2 * PAIRS):
        piece = numbers[start : start + 2 * PAIRS]
        drawn = _box_muller(stream, (len(piece) + 1) // 2)
        _draw_again(drawn.numpy(), _beyond(drawn.numpy()), partial(_uniforms, stream))
        piece.copy_(drawn[: len(piece)])
    return numbers.view(shape).to(like.device)


def _beyond(numbers: Array) -> Array:
    """Return the places of the numbers beyond `TAIL`, shape (k,)."""
    return np.flatnonzero(np.abs(numbers) > TAIL)


def _draw_again(numbers: Array, places: Array, uniform: Callable[[int], Tensor]) -> None:
    """Replace numbers by normals that are beyond `TAIL` on the same side."""
    if len(places):
        numbers[places] = _again(numbers[places], uniform)


def _again(drawn: Array, uniform: Callable[[int], Tensor]) -> Array:
    """Draw normals beyond `TAIL`, each on the side of one that was drawn before.

    Args:
        drawn: shape (k,).
        uniform: draws uniforms on a grid of 2^-53 in [0, 1), float64.

    Returns:
        float64 of shape (k,).
    """
    coarse, fine = uniform(2 * len(drawn)).cpu().numpy().reshape(2, -1)
    chance = (1 - coarse) - 2.0**-DIGITS * fine  # in (0, 1], and at least 2^-106
    lengths: Array = torch.special.ndtri(torch.from_numpy(OUTSIDE * chance)).numpy()
    return np.copysign(lengths, drawn, out=lengths)


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
