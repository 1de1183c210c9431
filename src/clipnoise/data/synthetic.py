"""Data drawn from a known distribution, of any size: for tests and for measuring speed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from clipnoise.data.base import Dataset, Examples, Splits
from clipnoise.data.cache import read_manifest, write_arrays
from clipnoise.data.fetch import facts
from clipnoise.data.signature import Signature
from clipnoise.fields import Count, Natural
from clipnoise.seeds import generator


@dataclass(frozen=True, kw_only=True)
class Synthetic(Dataset):
    """Points around one centre per class, with unit normal noise in every feature.

    The numbers follow from the fields, so loading draws them and the cache holds a manifest only.

    Attributes:
        split_seed: another seed draws other centres and other points.
        examples: the private examples; validation and test have a quarter of it each.
        public_examples: examples drawn besides the private ones.
        features: length of an example.
        classes: number of centres.
        separation: expected distance of a centre from the origin.
    """

    id: ClassVar[str] = "synthetic"
    title: ClassVar[str] = "Synthetic mixture of normals"
    licence: ClassVar[str] = "none needed: drawn by this package"
    source: ClassVar[str] = "drawn by this package"
    split: ClassVar[str] = "each part drawn by itself"
    preprocessing: ClassVar[str] = "none: drawn when loading, from the fields of the run spec"

    examples: Count = 1000
    public_examples: Natural = 0
    features: Count = 20
    classes: Count = 4
    separation: float = 3.0

    @property
    def signature(self) -> Signature:
        return Signature("features", (self.features,), self.classes)

    def sizes(self) -> dict[str, int]:
        quarter = max(1, self.examples // 4)
        return {
            "train": self.examples,
            "validation": quarter,
            "test": quarter,
            "public": self.public_examples,
        }

    def prepare(self, cache: Path) -> None:
        write_arrays(cache / self.id, {}, facts(cache, self))

    def load(self, cache: Path) -> Splits:
        import torch

        provenance = read_manifest(cache / self.id, self.id).provenance()
        stream = generator("split", self.split_seed)
        centres = torch.randn(self.classes, self.features, generator=stream)
        centres *= self.separation / self.features**0.5

        def draw(count: int) -> Examples:
            targets = torch.randint(self.classes, (count,), generator=stream)
            noise = torch.randn(count, self.features, generator=stream)
            return Examples(centres[targets] + noise, targets)

        parts = {name: draw(count) for name, count in self.sizes().items()}
        return Splits(
            train=parts["train"],
            validation=parts["validation"],
            test=parts["test"],
            public=parts["public"] if self.public_examples else None,
            provenance=provenance,
        )
