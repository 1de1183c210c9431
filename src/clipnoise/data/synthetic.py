"""Data drawn from a known distribution, of any size: for tests and for measuring speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from clipnoise.data.base import Examples
from clipnoise.data.drawn import DrawnOfOneSize
from clipnoise.data.signature import Signature
from clipnoise.fields import Count
from clipnoise.seeds import generator


@dataclass(frozen=True, kw_only=True)
class Synthetic(DrawnOfOneSize):
    """Points around one centre per class, with unit normal noise in every feature.

    Attributes:
        split_seed: another seed draws other centres and other points.
        features: length of an example.
        classes: number of centres.
        separation: expected distance of a centre from the origin.
    """

    id: ClassVar[str] = "synthetic"
    title: ClassVar[str] = "Synthetic mixture of normals"

    features: Count = 20
    classes: Count = 4
    separation: float = 3.0

    @property
    def signature(self) -> Signature:
        return Signature("features", (self.features,), self.classes)

    def parts(self) -> Callable[[str], Examples]:
        import torch

        sizes, stream = self.sizes(), generator("split", self.split_seed)
        centres = torch.randn(self.classes, self.features, generator=stream)
        centres *= self.separation / self.features**0.5

        def draw(part: str) -> Examples:
            targets = torch.randint(self.classes, (sizes[part],), generator=stream)
            noise = torch.randn(sizes[part], self.features, generator=stream)
            return Examples(centres[targets] + noise, targets)

        return draw
