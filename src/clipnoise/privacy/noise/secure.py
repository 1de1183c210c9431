"""Randomness from a cryptographic source, which cannot be reproduced."""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING

import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

PAIRS = 2**16  # pairs of normals drawn at a time, few enough for the cache
DIGITS = 53  # binary digits of a float64


def secure_normals(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Draw independent standard normals from a cryptographic stream.

    The stream is ChaCha20 under a key that the operating system draws for this call and that is
    discarded after it, so no number follows from any other. Box and Muller's transform turns
    uniforms of 53 bits into normals of up to 8.5 in float64, which are rounded to the dtype of
    `like`. Drawn on the CPU, then moved.

    Args:
        shape: of the result.
        like: a tensor with its dtype and device.

    Returns:
        The normals, of that shape, dtype and device.
    """
    stream = _stream()
    numbers = torch.empty(math.prod(shape), dtype=like.dtype)
    for start in range(0, len(numbers), 2 * PAIRS):
        piece = numbers[start : start + 2 * PAIRS]
        piece.copy_(_box_muller(stream, (len(piece) + 1) // 2)[: len(piece)])
    return numbers.view(shape).to(like.device)


def _box_muller(stream: CipherContext, pairs: int) -> torch.Tensor:
    """Return 2·pairs standard normals in float64."""
    uniform = 1 - _uniforms(stream, 2 * pairs)  # (0, 1], so that the logarithm is finite
    radius = uniform[:pairs].log_().mul_(-2).sqrt_()
    angle = uniform[pairs:].mul_(2 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])


def secure_uniforms(count: int) -> torch.Tensor:
    """Draw independent uniforms from a cryptographic stream of its own, as `secure_normals` does.

    Args:
        count: how many.

    Returns:
        Multiples of 2^-53 in [0, 1), float64 of shape (count,).
    """
    return _uniforms(_stream(), count)


def _stream() -> CipherContext:
    return Cipher(ChaCha20(secrets.token_bytes(32), bytes(16)), mode=None).encryptor()


def _uniforms(stream: CipherContext, count: int) -> torch.Tensor:
    if count == 0:
        return torch.empty(0, dtype=torch.float64)
    drawn = bytearray(stream.update(bytes(8 * count)))
    bits = torch.frombuffer(drawn, dtype=torch.int64) & (2**DIGITS - 1)
    uniforms: torch.Tensor = bits.double() * 2.0**-DIGITS
    return uniforms
