"""Images drawn from a known distribution, of any size: what stands in for real ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.data.drawn import DrawnOfFourSizes
from clipnoise.data.images import Asked, Scaled, examples, image_signature
from clipnoise.data.signature import Signature
from clipnoise.fields import Count
from clipnoise.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from clipnoise.data.base import Examples

CELLS = 4  # a pattern has this many squares a side
INK, NOISE = 160, 96  # below which both are drawn; together they fill a byte
PIECE = 1024  # images drawn at once


@dataclass(frozen=True, kw_only=True)
class SyntheticImages(DrawnOfFourSizes):
    """A pattern of 4×4 grey or coloured squares for each class, under uniform noise in every pixel.

    Attributes:
        split_seed: another seed draws other patterns and other images.
        shape: (channels, height, width).
        classes: number of patterns.
        task: what is asked about an image: its class, or itself.
    """

    id: ClassVar[str] = "synthetic-images"
    title: ClassVar[str] = "Synthetic images"
    preprocessing: ClassVar[str] = "bytes divided by 255; drawn when loading, from the run spec"

    shape: tuple[Count, Count, Count] = (1, 28, 28)
    classes: Count = 10
    task: Asked = "classification"

    @property
    def signature(self) -> Signature:
        return image_signature(self.shape, self.classes, self.task)

    def parts(self) -> Callable[[str], Examples]:
        import torch

        sizes = self.sizes()
        images, labels = (drawn.numpy() for drawn in self._drawn())
        cut = torch.split(torch.arange(len(labels)), list(sizes.values()))
        rows = dict(zip(sizes, cut, strict=True))
        return lambda part: examples(images, labels, rows[part], self.task, Scaled())

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
