"""Random numbers for sampling and noise, from a seeded generator or a cryptographic source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from clipnoise.privacy.noise.secure import secure_normals, secure_uniforms

if TYPE_CHECKING:
    from torch import Tensor


class Draws:
    """A stream of random numbers that nothing else uses, and its position for a checkpoint."""

    def __init__(self, generator: torch.Generator | None) -> None:
        """Start the stream.

        Args:
            generator: where the numbers come from; None stands for ChaCha20 under keys from the
                operating system, which cannot be reproduced.
        """
        self.generator = generator

    def uniform(self, count: int) -> Tensor:
        """Return independent uniforms on a grid of 2^-53 in [0, 1), float64 of shape (count,)."""
        if self.generator is None:
            return secure_uniforms(count)
        return torch.rand(count, generator=self.generator, dtype=torch.float64)

    def permutation(self, count: int) -> Tensor:
        """Return a random order of 0 … count−1, int64."""
        if self.generator is None:
            return secure_uniforms(count).argsort()
        return torch.randperm(count, generator=self.generator)

    def integers(self, below: int, count: int) -> Tensor:
        """Return independent integers in 0 … below−1, int64 of shape (count,)."""
        if self.generator is None:
            return (secure_uniforms(count) * below).long()
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
