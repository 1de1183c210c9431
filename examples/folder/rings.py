"""Rings: two noisy circles, one inside the other, in place of what you read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clipnoise.data.random_split import RandomSplit
from clipnoise.data.signature import Signature
from clipnoise.fields import NonNegative

if TYPE_CHECKING:
    import numpy as np
else:
    from clipnoise.lazy import np  # so that listing datasets does not load NumPy


@dataclass(frozen=True, kw_only=True)
class Rings(RandomSplit):
    """Two circles with radius 1 and 2; the class is the circle.

    Attributes:
        spread: the standard deviation of a point around its place on the circle.
    """

    id: ClassVar[str] = "rings"
    title: ClassVar[str] = "Two rings"
    licence: ClassVar[str] = "public domain"
    source: ClassVar[str] = "made up"
    preprocessing: ClassVar[str] = "none"
    rows: ClassVar[int] = 3000
    prepared_with: ClassVar[tuple[str, ...]] = ("spread",)

    spread: NonNegative = 0.2

    @property
    def signature(self) -> Signature:
        return Signature("features", (2,), 2)

    def arrays(self, cache: Path) -> tuple[np.ndarray, np.ndarray]:
        draws = np.random.default_rng(0)
        labels = np.arange(self.rows) % 2
        angles = draws.uniform(0, 2 * np.pi, self.rows)
        circles = (1 + labels)[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        return circles + self.spread * draws.normal(size=(self.rows, 2)), labels
