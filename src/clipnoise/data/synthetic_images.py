"""Images drawn from a known distribution, of any size: what stands in for real ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clipnoise.data.base import Dataset, Splits
from clipnoise.data.cache import read_manifest, write_arrays
from clipnoise.data.fetch import facts
from clipnoise.data.images import Asked, Scaled, examples, image_signature
from clipnoise.data.signature import Signature
from clipnoise.fields import Count, Natural
from clipnoise.seeds import generator

if TYPE_CHECKING:
    import torch

CELLS = 4  # a pattern has this many squares a side
INK, NOISE = 160, 96  # below which both are drawn; together they fill a byte
PIECE = 1024  # images drawn at once


@dataclass(frozen=True, kw_only=True)
class SyntheticImages(Dataset):
    """A pattern of 4×4 grey or coloured squares for each class, under uniform noise in every pixel.

    The numbers follow from the fields, so loading draws them, as bytes, and the cache holds a
    manifest only.

    Attributes:
        split_seed: another seed draws other patterns and other images.
        train_examples: the private examples.
        validation_examples: drawn besides them, as are the other two.
        test_examples: the same.
        public_examples: the same.
        shape: (channels, height, width).
        classes: number of patterns.
        task: what is asked about an image: its class, or itself.
    """

    id: ClassVar[str] = "synthetic-images"
    title: ClassVar[str] = "Synthetic images"
    licence: ClassVar[str] = "none needed: drawn by this package"
    source: ClassVar[str] = "drawn by this package"
    split: ClassVar[str] = "each part drawn by itself"
    preprocessing: ClassVar[str] = "bytes divided by 255; drawn when loading, from the run spec"

    train_examples: Count = 1000
    validation_examples: Count = 200
    test_examples: Count = 200
    public_examples: Natural = 0
    shape: tuple[Count, Count, Count] = (1, 28, 28)
    classes: Count = 10
    task: Asked = "classification"

    @property
    def signature(self) -> Signature:
        return image_signature(self.shape, self.classes, self.task)

    def sizes(self) -> dict[str, int]:
        return {
            "train": self.train_examples,
            "validation": self.validation_examples,
            "test": self.test_examples,
            "public": self.public_examples,
        }

    def prepare(self, cache: Path) -> None:
        write_arrays(cache / self.id, {}, facts(cache, self))

    def load(self, cache: Path) -> Splits:
        import torch

        provenance = read_manifest(cache / self.id, self.id).provenance()
        images, labels = self._drawn()
        rows = torch.split(torch.arange(len(labels)), list(self.sizes().values()))
        train, validation, test, public = (
            examples(images.numpy(), labels.numpy(), part, self.task, Scaled()) for part in rows
        )
        return Splits(
            train=train,
            validation=validation,
            test=test,
            public=public if self.public_examples else None,
            provenance=provenance,
        )

    def _drawn(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw images, uint8 (n, channels, height, width), and labels, int64 (n,), of all parts."""
        import torch
        from torch.nn.functional import interpolate

        stream = generator("split", self.split_seed)
        channels, height, width = self.shape
        cells = torch.rand(self.classes, channels, CELLS, CELLS, generator=stream)
        patterns = (interpolate(cells, (height, width)) * INK).to(torch.uint8)
        labels = torch.randint(self.classes, (sum(self.sizes().values()),), generator=stream)
        images = torch.empty(len(labels), *self.shape, dtype=torch.uint8)
        pieces = zip(torch.split(images, PIECE), torch.split(labels, PIECE), strict=True)
        for some, chosen in pieces:
            some.random_(NOISE, generator=stream).add_(patterns[chosen])
        return images, labels
