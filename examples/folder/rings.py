"""Rings: two noisy circles, one inside the other, in place of what you read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clipnoise.data.base import Examples, FourSizes, Splits, cut_rows
from clipnoise.data.rows import StoredRows
from clipnoise.data.signature import Signature
from clipnoise.fields import NonNegative

if TYPE_CHECKING:
    import numpy as np
    import torch
else:
    from clipnoise.lazy import np, torch  # so that listing datasets does not load torch

ROWS = 3000


@dataclass(frozen=True, kw_only=True)
class Rings(FourSizes):
    """Two circles with radius 1 and 2; the class is the circle.

    Attributes:
        spread: the standard deviation of a point around its place on the circle.
    """

    id: ClassVar[str] = "rings"
    title: ClassVar[str] = "Two rings"
    licence: ClassVar[str] = "public domain"
    source: ClassVar[str] = "made up"
    split: ClassVar[str] = "at random, from one file"
    preprocessing: ClassVar[str] = "none"
    prepared_with: ClassVar[tuple[str, ...]] = ("spread",)

    spread: NonNegative = 0.2

    def __post_init__(self) -> None:
        if sum(self.sizes().values()) > ROWS:
            raise ValueError(f"the sizes of all parts together must be at most {ROWS}")

    @property
    def signature(self) -> Signature:
        return Signature("features", (2,), 2)

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        draws = np.random.default_rng(0)
        labels = np.arange(ROWS) % 2
        angles = draws.uniform(0, 2 * np.pi, ROWS)
        circles = (1 + labels)[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        inputs = circles + self.spread * draws.normal(size=(ROWS, 2))
        self.write(cache, {"inputs": inputs.astype("float32"), "labels": labels})

    def load(self, cache: Path) -> Splits:
        arrays, provenance = self.read(cache)
        rows = cut_rows(ROWS, self.sizes(), self.split_seed)

        def take(part: str) -> Examples:
            labels = torch.from_numpy(arrays["labels"][rows[part].numpy()])
            return Examples(StoredRows(arrays["inputs"], rows[part]), labels)

        return Splits.build(take, self.sizes(), provenance)
