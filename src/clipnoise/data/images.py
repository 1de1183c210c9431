"""What datasets of images share: stored as bytes, memory-mapped, turned into floats when taken."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.data.base import Examples, Splits
from clipnoise.data.rows import StoredRows
from clipnoise.data.signature import Signature
from clipnoise.data.splits import Partitioned
from clipnoise.errors import UserError
from clipnoise.fields import Count

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Pixels = Literal["unit", "standardised"]
ImageTask = Literal["classification", "reconstruction"]


@dataclass(frozen=True)
class Scaled:
    """Turns bytes into floats between 0 and 1, then standardises each channel.

    Attributes:
        flat: whether an image becomes a vector.
    """

    means: tuple[float, ...] = (0.0,)
    deviations: tuple[float, ...] = (1.0,)
    flat: bool = False

    def __call__(self, images: Tensor) -> Tensor:
        units = images.float() / 255
        means, deviations = (
            units.new_tensor(values).view(-1, 1, 1) for values in (self.means, self.deviations)
        )
        scaled = (units - means) / deviations
        return scaled.flatten(1) if self.flat else scaled


def examples(
    images: np.ndarray, labels: np.ndarray, rows: Tensor, task: ImageTask, scaled: Scaled
) -> Examples:
    """Return images with their targets.

    Args:
        images: uint8 of shape (N, channels, height, width), possibly in a file.
        labels: integers of shape (N,).
        rows: the chosen ones, int64 of shape (n,).
        task: whether targets are the labels or the images.
        scaled: turns the bytes into floats.
    """
    import torch

    inputs = StoredRows(images, rows, scaled)
    if task == "reconstruction":
        return Examples(inputs, StoredRows(images, rows, replace(scaled, flat=True)))
    return Examples(inputs, torch.from_numpy(labels[rows.numpy()].astype("int64")))


def image_signature(shape: tuple[int, int, int], classes: int, task: ImageTask) -> Signature:
    """Return the signature of images, whose targets are labels or the images."""
    outputs = math.prod(shape) if task == "reconstruction" else classes
    return Signature("image", shape, outputs, task)


@dataclass(frozen=True, kw_only=True)
class Images(Partitioned):
    """Base of the datasets of images with a training file and a test file.

    There is no augmentation: the papers name none, and a private step pays for one gradient per
    example, whichever view of it is used.

    Attributes:
        shape: (channels, height, width).
        classes: number of labels.
        means, deviations: of each channel, over the published training file.
        pixels: "unit" scales to [0, 1]; "standardised" then subtracts the means and divides by the
            deviations, which count as public knowledge.
        task: whether to predict the class of an image or the image itself.
    """

    shape: ClassVar[tuple[int, int, int]]
    classes: ClassVar[int]
    means: ClassVar[tuple[float, ...]]
    deviations: ClassVar[tuple[float, ...]]
    preprocessing: ClassVar[str] = (
        "bytes divided by 255; optionally standardised by channel; no augmentation"
    )

    validation_examples: Count = 5000
    pixels: Pixels = "unit"
    task: ImageTask = "classification"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task == "reconstruction" and self.pixels != "unit":
            raise ValueError("pixels must be unit for reconstruction: outputs are between 0 and 1")

    @property
    def signature(self) -> Signature:
        return image_signature(self.shape, self.classes, self.task)

    def raw_images(self, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Read the raw files.

        Args:
            folder: where they lie.

        Returns:
            For "train" and "test": images uint8 of shape (n, channels, height, width), and labels,
            integers of shape (n,).

        Raises:
            UserError: a file is damaged or is not of its format.
        """
        raise NotImplementedError

    def prepare(self, cache: Path) -> None:
        """Write all images and labels: the options of the split apply when loading."""
        folder = self.raw_files(cache).require()
        arrays = {}
        for part, (images, labels) in self.raw_images(folder).items():
            self._check(folder, part, images, labels)
            arrays[f"{part}_images"] = images
            arrays[f"{part}_labels"] = labels.astype("uint8")
        self.write(cache, arrays)

    def _check(self, folder: Path, part: str, images: np.ndarray, labels: np.ndarray) -> None:
        where = f"{folder}: the {part} split"
        if images.shape[1:] != self.shape:
            raise UserError(f"{where} holds images of {images.shape[1:]}, expected {self.shape}.")
        if len(images) != len(labels):
            raise UserError(f"{where} holds {len(images)} images, but {len(labels)} labels.")
        wrong = labels[(labels < 0) | (labels >= self.classes)]
        if len(wrong):
            raise UserError(
                f"{where} holds the label {wrong[0]}; allowed are 0 to {self.classes - 1}."
            )

    def load(self, cache: Path) -> Splits:
        standardised = self.pixels == "standardised"
        scaled = Scaled(self.means, self.deviations) if standardised else Scaled()

        def take(arrays: dict[str, np.ndarray], file: str, rows: Tensor) -> Examples:
            images, labels = arrays[f"{file}_images"], arrays[f"{file}_labels"]
            return examples(images, labels, rows, self.task, scaled)

        return self.cut(cache, take)
