"""DP-LSSGD: neighbouring coordinates of the released gradient smooth each other."""

from __future__ import annotations

import math
from dataclasses import dataclass

from clipnoise.methods.base import (
    ClippedMean,
    NonNegative,
    PrivateMethod,
    Public,
    Released,
    State,
    Tensor,
)


def smoothed(tensor: Tensor, smoothing: float) -> Tensor:
    """Return (I − sL)⁻¹ times a tensor, flattened for it; the sum of its numbers stays the same.

    L is the second difference, whose eigenvalue is 2cos(2πk/n) − 2 at the frequency k.

    Args:
        tensor: of any shape, with n numbers.
        smoothing: s.
    """
    import torch

    n = tensor.numel()
    frequencies = torch.arange(n // 2 + 1, dtype=tensor.dtype, device=tensor.device)
    eigenvalues = 1 + 2 * smoothing * (1 - torch.cos(2 * math.pi / n * frequencies))
    smooth: Tensor = torch.fft.irfft(torch.fft.rfft(tensor.flatten()) / eigenvalues, n)
    return smooth.view_as(tensor)


@dataclass(frozen=True, kw_only=True)
class DPLSSGD(PrivateMethod):
    """θ ← θ − η (I − sL)⁻¹g̃ for each tensor of parameters, L the second difference along it.

    (Lx)_i = x_{i−1} − 2x_i + x_{i+1}, the last number of the flattened tensor next to the first.
    What varies slowly from one number to the next stays, and most of the noise does not. The option
    `smoothing` is s.

    Source: Wang et al. 2020 (DP-LSSGD, arXiv 1906.12056), as in the authors' code,
    BaoWangMath/DP-LSSGD, RDP-Accountant/lssgd_dp.py. (For a tensor of two numbers, that code counts
    one of the two neighbours alone; one of a single number it cannot smooth.)
    """

    id = "dp-lssgd"
    query = ClippedMean()

    smoothing: NonNegative = 0.5

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        change = -self.learning_rate * g
        for part in state.split(change):
            part.copy_(smoothed(part, self.smoothing))
        return change
