"""Noise that is correlated across steps, computed step by step (DP-MF)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from clipnoise.privacy.noise.independent import IndependentNoise

if TYPE_CHECKING:
    from clipnoise.privacy.noise.strategies import Strategy


class CorrelatedNoise:
    """Row t of C⁻¹z at step t, for a strategy C with b bands.

    Forward substitution: y_t = (z_t − Σ_{s=t−b+1}^{t−1} C[t, s] y_s)/C[t, t]. It needs only the
    last b − 1 outputs, not z or C⁻¹: b vectors in memory for any number of steps (b = T for a dense
    strategy). Several draws per step are independent streams.

    Source: On Design Principles for Private Adaptive Optimizers, Algorithm 1; McKenna 2024,
    "Scaling up the Banded Matrix Factorization Mechanism", section 3.
    """

    def __init__(
        self, generator: torch.Generator | None, like: torch.Tensor, strategy: Strategy
    ) -> None:
        """Start the stream.

        Args:
            generator: a stream of random numbers on the device of `like`, used by nothing else;
                None draws from a cryptographic source.
            like: a tensor with the shape (d,), dtype and device of the parameters.
            strategy: C.
        """
        self._independent = IndependentNoise(generator, like)
        self._like = like
        self._strategy = strategy
        self._slots = strategy.bands - 1
        self._step = 0
        self._past: torch.Tensor | None = None  # y of step s in slot (s − 1) mod (b − 1)

    def next(self, draws: int = 1) -> list[torch.Tensor]:
        """Return the next step's noise, one tensor of shape (d,) per noisy released value.

        Raises:
            ValueError: no step is left, or `draws` changed after the first step.
        """
        if self._step == self._strategy.steps:
            raise ValueError(f"all {self._strategy.steps} steps of the strategy are taken")
        past = self._room(draws)
        self._step += 1
        row = self._strategy.row(self._step)
        normals = self._independent.next(draws)
        outputs = [self._substitute(z, y, row) for z, y in zip(normals, past, strict=True)]
        if self._slots:
            for y, output in zip(past, outputs, strict=True):
                y[(self._step - 1) % self._slots] = output
        return outputs

    def row_norm_squared(self, step: int) -> float:
        """Return ‖row t of C⁻¹‖², the variance of each coordinate at step t (counted from 1)."""
        if not 1 <= step <= self._strategy.steps:
            raise ValueError(f"step must lie in 1 … {self._strategy.steps}, got {step}")
        return float(self._strategy.squared_row_norms[step - 1])

    def get_state(self) -> dict[str, torch.Tensor]:
        """Return the position in the stream and the outputs that later ones depend on."""
        past = self._like.new_empty(0) if self._past is None else self._past[:, : self._step]
        return {
            **self._independent.get_state(),
            "step": torch.tensor(self._step),
            "past": past.clone(),
        }

    def set_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go to a saved position; the noise that follows is the same bit for bit."""
        self._independent.set_state(state)
        self._step = int(state["step"])
        self._past = None
        if self._step:
            saved = state["past"]
            self._room(len(saved))[:, : saved.shape[1]] = saved.to(self._like.device)

    def _room(self, draws: int) -> torch.Tensor:
        """Return the past outputs, shape (draws, b − 1, d), allocated at the first use."""
        if self._past is None:
            self._past = self._like.new_zeros((draws, self._slots, *self._like.shape))
        if len(self._past) != draws:
            raise ValueError(f"the stream began with {len(self._past)} draws per step, not {draws}")
        return self._past

    def _substitute(
        self, z: torch.Tensor, past: torch.Tensor, row: np.ndarray[tuple[int], np.dtype[np.float64]]
    ) -> torch.Tensor:
        """Solve row t of Cy = z for y_t."""
        known = len(row) - 1
        if known == 0:
            return z / float(row[0])
        weights = np.empty(known)
        steps = self._step - np.arange(1, known + 1)  # newest first, as in the row
        weights[(steps - 1) % self._slots] = row[1:]
        mixed = torch.as_tensor(weights, dtype=z.dtype, device=z.device) @ past[:known]
        return (z - mixed) / float(row[0])
