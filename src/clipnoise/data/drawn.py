"""What synthetic datasets share whose numbers follow from their fields: drawn when they load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clipnoise.data.base import Dataset, Examples, Splits
from clipnoise.data.cache import read_manifest, write_arrays
from clipnoise.data.fetch import facts
from clipnoise.fields import Count, Natural
from clipnoise.seeds import derive

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class Drawn(Dataset):
    """Base of datasets that are drawn when they load; the cache holds a manifest only.

    Attributes:
        split_seed: another seed draws other examples.
        examples: the private examples; validation and test have a quarter of it each.
        public_examples: examples drawn besides the private ones.
    """

    licence: ClassVar[str] = "none needed: drawn by this package"
    source: ClassVar[str] = "drawn by this package"
    split: ClassVar[str] = "each part drawn by itself"
    preprocessing: ClassVar[str] = "none: drawn when loading, from the fields of the run spec"

    examples: Count = 1000
    public_examples: Natural = 0

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

    def draw(self, part: str, count: int, draws: np.random.Generator) -> Examples:
        """Draw the examples of a part.

        Args:
            part: "train", "validation", "test" or "public".
            count: how many.
            draws: the stream to draw from.
        """
        raise NotImplementedError

    def load(self, cache: Path) -> Splits:
        import numpy as np

        provenance = read_manifest(cache / self.id, self.id).provenance()
        draws = np.random.default_rng(derive("split", self.split_seed))
        parts = {part: self.draw(part, count, draws) for part, count in self.sizes().items()}
        return Splits(
            train=parts["train"],
            validation=parts["validation"],
            test=parts["test"],
            public=parts["public"] if self.public_examples else None,
            provenance=provenance,
        )
