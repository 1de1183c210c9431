"""Noise of one's own: each step takes back a part of the noise of the steps before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from clipnoise.fields import Count
from clipnoise.privacy.noise import OwnNoise

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True, kw_only=True)
class SquareRootNoise(OwnNoise):
    """The first coefficients of (1 − x)^-½, 1, 1/2, 3/8, …, as the bands of C.

    With T of them C is the square root of the prefix-sum matrix.

    Attributes:
        width: b, how many coefficients there are.

    Source: Kalinin and Lampert 2024, "Banded Square Root Matrix Factorization for Differentially
    Private Model Training", without momentum and weight decay.
    """

    id: ClassVar[str] = "square-root"

    width: Count = 8

    def entries(self, steps: int) -> ArrayLike:
        k = np.arange(1, self.width)
        return np.cumprod(np.concatenate([[1.0], (2 * k - 1) / (2 * k)]))
