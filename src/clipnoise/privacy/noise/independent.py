"""Noise that is independent across steps, and what every source of noise provides."""

from __future__ import annotations

from typing import Protocol

import torch

from clipnoise.privacy.draws import Draws
from clipnoise.resumable import Resumable


class NoiseSource(Resumable, Protocol):
    """A stream of noise, one entry per step, in order.

    At step t a source returns row t of C⁻¹z for its strategy matrix C: z_t itself for independent
    noise, a mixture of z_1 … z_t for correlated noise. For methods the only difference is the
    variance, which is `row_norm_squared(t)` times that of independent noise.
    """

    def next(self, draws: int = 1) -> list[torch.Tensor]:
        """Return the next step's noise, one tensor of shape (d,) per noisy released value."""
        ...

    def row_norm_squared(self, step: int) -> float:
        """Return ‖row t of C⁻¹‖², the variance of each coordinate at step t (counted from 1)."""
        ...


class IndependentNoise:
    """z_t ~ N(0, I_d), fresh at every step and for every released value (DP-SGD).

    Drawn in one call, in the dtype and on the device of the parameters. The usual caveat applies:
    floating-point normals are close to, but not exactly, the real-valued ones that accountants
    assume (on a CPU, float32 normals never exceed about 6).
    """

    def __init__(self, generator: torch.Generator | None, like: torch.Tensor) -> None:
        """Start the stream.

        Args:
            generator: a stream of random numbers on the device of `like`, used by nothing else;
                None draws from a cryptographic source.
            like: a tensor with the shape (d,), dtype and device of the parameters.
        """
        self._draws = Draws(generator)
        self._like = like.new_empty(0)
        self._shape = like.shape

    def next(self, draws: int = 1) -> list[torch.Tensor]:
        """Return the next step's noise: `draws` independent standard normal tensors."""
        return list(self._draws.normals((draws, *self._shape), self._like).unbind())

    def row_norm_squared(self, step: int) -> float:
        """Return 1: every coordinate has unit variance at every step."""
        return 1.0

    def get_state(self) -> dict[str, torch.Tensor]:
        """Return the position in the stream, for a checkpoint; a cryptographic source has none."""
        return self._draws.get_state()

    def set_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go to a saved position; the noise that follows is the same bit for bit.

        Raises:
            ValueError: the noise comes from a cryptographic source, which has no positions.
        """
        self._draws.set_state(state)
