"""Synthetic datasets of any size, drawn from known distributions when they are loaded.

Mixtures of normals, sparse linear and logistic regression, and images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clipnoise.data.base import PARTS, Dataset, Examples, Splits
from clipnoise.data.images import ImageTask, Scaled, examples, image_signature
from clipnoise.data.signature import Signature
from clipnoise.data.splits import FourSizes
from clipnoise.fields import Count, Natural, NonNegative, Probability
from clipnoise.seeds import derive, generator

if TYPE_CHECKING:
    import numpy as np
    import torch

CELLS = 4  # squares per side of a pattern
INK, NOISE = 160, 96  # upper bounds of pattern and noise; together they fill a byte
PIECE = 1024  # images drawn at once


@dataclass(frozen=True, kw_only=True)
class Drawn(Dataset):
    """Base of datasets that are drawn when loaded; the cache holds only a manifest.

    Attributes:
        split_seed: another seed draws other examples.
    """

    licence: ClassVar[str] = "none needed: drawn by this package"
    source: ClassVar[str] = "drawn by this package"
    split: ClassVar[str] = "each part drawn separately"
    preprocessing: ClassVar[str] = "none: drawn when loading, from the fields of the run spec"

    def prepare(self, cache: Path) -> None:
        self.write(cache, {})

    def parts(self) -> Callable[[str], Examples]:
        """Return a function that draws a part; it is called in the order of `Splits.build`."""
        raise NotImplementedError

    def load(self, cache: Path) -> Splits:
        return Splits.build(self.parts(), self.sizes(), self.read(cache)[1])


@dataclass(frozen=True, kw_only=True)
class DrawnOfOneSize(Drawn):
    """Base of drawn datasets with one option for all sizes.

    Attributes:
        split_seed: another seed draws other examples.
        examples: number of private examples; validation and test have a quarter of it each.
        public_examples: number of examples drawn besides the private ones.
    """

    examples: Count = 1000
    public_examples: Natural = 0

    def sizes(self) -> dict[str, int]:
        quarter = max(1, self.examples // 4)
        sizes = (self.examples, quarter, quarter, self.public_examples)
        return dict(zip(PARTS, sizes, strict=True))

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
class Synthetic(DrawnOfOneSize):
    """Points around one centre per class, with unit normal noise in every feature.

    Attributes:
        split_seed: another seed draws other centres and other points.
        features: number of features.
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


@dataclass(frozen=True, kw_only=True)
class SyntheticLinear(DrawnOfOneSize):
    """Features of 0 and 1; the first tenth are frequent but weak, the others rare but strong.

    The number to predict is the sum of the features times their weights, with normal noise.

    Attributes:
        features: their number; a tenth of them are frequent.
        frequent, rare: the probability that a feature of the group is 1.
        frequent_weight, rare_weight: the weight of a feature of the group.
        label_noise: standard deviation of the noise.

    Source: AdaDPS, section 4.1.
    """

    id: ClassVar[str] = "synthetic-linear"
    title: ClassVar[str] = "Synthetic sparse linear regression"

    features: Count = 500
    frequent: Probability = 0.9
    rare: Probability = 0.01
    frequent_weight: float = 0.01
    rare_weight: float = 1.0
    label_noise: NonNegative = 0.01

    @property
    def signature(self) -> Signature:
        return Signature("features", (self.features,), 1, "regression")

    def draw(self, part: str, count: int, draws: np.random.Generator) -> Examples:
        import numpy as np
        import torch

        first = np.arange(self.features) < self.features // 10
        frequency = np.where(first, self.frequent, self.rare)
        weights = np.where(first, self.frequent_weight, self.rare_weight)
        inputs = draws.random((count, self.features)) < frequency
        noise = self.label_noise * draws.standard_normal(count)
        numbers = (inputs @ weights + noise)[:, None]
        return Examples(torch.from_numpy(inputs).float(), torch.from_numpy(numbers).float())


@dataclass(frozen=True, kw_only=True)
class SyntheticLogistic(DrawnOfOneSize):
    """Normal features, most training examples all zero; the class is 1 with odds e^Σx.

    Validation, test and public examples are dense, as the paper's test examples are.

    Attributes:
        features: their number.
        zeros: the probability that a training example is all zero.

    Source: On Design Principles for Private Adaptive Optimizers, section 5.1 (one feature, 90%).
    """

    id: ClassVar[str] = "synthetic-logistic"
    title: ClassVar[str] = "Synthetic sparse logistic regression"

    features: Count = 1
    zeros: Probability = 0.9

    @property
    def signature(self) -> Signature:
        return Signature("features", (self.features,), 2)

    def draw(self, part: str, count: int, draws: np.random.Generator) -> Examples:
        import numpy as np
        import torch

        inputs = draws.standard_normal((count, self.features)).astype("float32")
        if part == "train":
            inputs[draws.random(count) < self.zeros] = 0
        classes = draws.random(count) < 1 / (1 + np.exp(-inputs.sum(axis=1)))
        return Examples(torch.from_numpy(inputs), torch.from_numpy(classes.astype("int64")))


@dataclass(frozen=True, kw_only=True)
class SyntheticImages(Drawn, FourSizes):
    """A pattern of 4×4 grey or coloured squares per class, under uniform noise in every pixel.

    Attributes:
        split_seed: another seed draws other patterns and other images.
        shape: (channels, height, width).
        classes: number of patterns.
        task: whether to predict the class of an image or the image itself.
    """

    id: ClassVar[str] = "synthetic-images"
    title: ClassVar[str] = "Synthetic images"
    preprocessing: ClassVar[str] = "bytes divided by 255; drawn when loading, from the run spec"

    validation_examples: Count = 200
    shape: tuple[Count, Count, Count] = (1, 28, 28)
    classes: Count = 10
    task: ImageTask = "classification"

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
