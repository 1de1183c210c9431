"""What synthetic datasets share whose numbers follow from their fields: drawn when they load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clipnoise.data.base import Dataset, Examples, OfFourSizes, Splits
from clipnoise.data.cache import read_manifest, write_arrays
from clipnoise.data.fetch import facts
from clipnoise.fields import Count, Natural
from clipnoise.seeds import derive

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np


@dataclass(frozen=True, kw_only=True)
class Drawn(Dataset):
    """Base of datasets that are drawn when they load; the cache holds a manifest only.

    Attributes:
        split_seed: another seed draws other examples.
    """

    licence: ClassVar[str] = "none needed: drawn by this package"
    source: ClassVar[str] = "drawn by this package"
    split: ClassVar[str] = "each part drawn by itself"
    preprocessing: ClassVar[str] = "none: drawn when loading, from the fields of the run spec"

    def prepare(self, cache: Path) -> None:
        write_arrays(cache / self.id, {}, facts(cache, self))

    def parts(self) -> Callable[[str], Examples]:
        """Return what draws a part: "train", "validation", "test" and "public", in this order."""
        raise NotImplementedError

    def load(self, cache: Path) -> Splits:
        provenance = read_manifest(cache / self.id, self.id).provenance()
        return Splits.taken(self.parts(), self.sizes(), provenance)


@dataclass(frozen=True, kw_only=True)
class DrawnOfOneSize(Drawn):
    """Base of drawn datasets whose parts follow from one size.

    Attributes:
        split_seed: another seed draws other examples.
        examples: the private examples; validation and test have a quarter of it each.
        public_examples: examples drawn besides the private ones.
    """

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


@dataclass(frozen=True, kw_only=True)
class DrawnByPart(DrawnOfOneSize):
    """Base of drawn datasets whose parts have nothing in common but the stream."""

    def draw(self, part: str, count: int, draws: np.random.Generator) -> Examples:
        """Draw the examples of a part.

        Args:
            part: "train", "validation", "test" or "public".
            count: how many.
            draws: the stream to draw from.
        """
        raise NotImplementedError

    def parts(self) -> Callable[[str], Examples]:
        import numpy as np

        sizes, draws = self.sizes(), np.random.default_rng(derive("split", self.split_seed))
        return lambda part: self.draw(part, sizes[part], draws)


@dataclass(frozen=True, kw_only=True)
class DrawnOfFourSizes(Drawn, OfFourSizes):
    """Base of drawn datasets with a size of its own for each part.

    Attributes:
        split_seed: another seed draws other examples.
        train_examples: the private examples.
        validation_examples, test_examples, public_examples: drawn besides them.
    """

    train_examples: Count = 1000
    validation_examples: Count = 200
    test_examples: Count = 200
    public_examples: Natural = 0
