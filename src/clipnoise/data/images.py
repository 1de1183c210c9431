"""What datasets of images share: kept as bytes, memory-mapped, made floats when taken."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.data.base import Dataset, Examples, Splits
from clipnoise.data.cache import read_arrays, read_manifest, write_arrays
from clipnoise.data.fetch import facts, require_raw
from clipnoise.data.rows import StoredRows
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.fields import Count, Natural
from clipnoise.seeds import generator

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Pixels = Literal["unit", "standardised"]
Asked = Literal["classification", "reconstruction"]


@dataclass(frozen=True)
class Scaled:
    """Makes bytes floats: between 0 and 1, then less the mean over the deviation of a channel.

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
    images: np.ndarray, labels: np.ndarray, rows: Tensor, task: Asked, scaled: Scaled
) -> Examples:
    """Return some images with what is asked about them.

    Args:
        images: uint8 of shape (N, channels, height, width), possibly in a file.
        labels: integers of shape (N,).
        rows: which of them, int64 of shape (n,).
        task: what is asked.
        scaled: what makes the bytes floats.
    """
    import torch

    inputs = StoredRows(images, rows, scaled)
    if task == "reconstruction":
        return Examples(inputs, StoredRows(images, rows, replace(scaled, flat=True)))
    return Examples(inputs, torch.from_numpy(labels[rows.numpy()].astype("int64")))


def image_signature(shape: tuple[int, int, int], classes: int, task: Asked) -> Signature:
    """Return what images look like, and what is asked about them."""
    outputs = math.prod(shape) if task == "reconstruction" else classes
    return Signature("image", shape, outputs, task)


@dataclass(frozen=True, kw_only=True)
class Images(Dataset):
    """Base of the datasets of images with a training file and a test file.

    Who is private follows from positions and seeds alone. Validation and public examples are cut
    from the training file; the test set is the same for every split seed. There is no
    augmentation: the papers name none, and a private step pays for one gradient of an example,
    whatever view of it that is.

    Attributes:
        split_seed: which examples of the training file are for validation, training and public use.
        train_examples: how many of them are private; None takes all that are left.
        validation_examples: how many are for validation.
        public_examples: how many are treated as public.
        test_examples: how many of the test file are used, the same for every split; None takes all.
        pixels: "unit" scales to [0, 1]; "standardised" then takes off the mean of each channel of
            the published training file and divides by its deviation, taken as public knowledge.
        task: what is asked about an image: its class, or itself.
    """

    shape: ClassVar[tuple[int, int, int]]
    classes: ClassVar[int]
    training_file: ClassVar[int]
    test_file: ClassVar[int]
    means: ClassVar[tuple[float, ...]]
    deviations: ClassVar[tuple[float, ...]]
    preprocessing: ClassVar[str] = (
        "bytes divided by 255; optionally standardised by channel; no augmentation"
    )

    train_examples: Count | None = None
    validation_examples: Count = 5000
    public_examples: Natural = 0
    test_examples: Count | None = None
    pixels: Pixels = "unit"
    task: Asked = "classification"

    def __post_init__(self) -> None:
        aside = self.validation_examples + self.public_examples
        if aside + (self.train_examples or 1) > self.training_file:
            raise ValueError(
                "train_examples, validation_examples and public_examples together must be at most "
                f"{self.training_file}"
            )
        if self.task == "reconstruction" and self.pixels != "unit":
            raise ValueError("pixels must be unit for reconstruction: outputs are between 0 and 1")
        if (self.test_examples or 1) > self.test_file:
            raise ValueError(f"test_examples must be at most {self.test_file}")

    @property
    def signature(self) -> Signature:
        return image_signature(self.shape, self.classes, self.task)

    def sizes(self) -> dict[str, int]:
        aside = self.validation_examples + self.public_examples
        return {
            "train": self.train_examples or self.training_file - aside,
            "validation": self.validation_examples,
            "test": self.test_examples or self.test_file,
            "public": self.public_examples,
        }

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
        """Write all images and labels, whatever the split: its options apply when loading."""
        folder = require_raw(cache, self)
        arrays = {}
        for part, (images, labels) in self.raw_images(folder).items():
            self._check(folder, part, images, labels)
            arrays[f"{part}_images"] = images
            arrays[f"{part}_labels"] = labels.astype("uint8")
        write_arrays(cache / self.prepared, arrays, facts(cache, self))

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
        import torch

        arrays, sizes = read_arrays(cache / self.prepared, self.id), self.sizes()
        train, validation, public = (sizes[part] for part in ("train", "validation", "public"))
        there = {part: len(arrays[f"{part}_labels"]) for part in ("train", "test")}
        self._require("training", train + validation + public, there["train"])
        self._require("test", sizes["test"], there["test"])
        order = torch.randperm(there["train"], generator=generator("split", self.split_seed))
        fixed = torch.randperm(there["test"], generator=generator("split", 0))
        standardised = self.pixels == "standardised"
        scaled = Scaled(self.means, self.deviations) if standardised else Scaled()

        def take(part: str, rows: Tensor) -> Examples:
            images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
            return examples(images, labels, rows, self.task, scaled)

        return Splits(
            train=take("train", order[validation : validation + train]),
            validation=take("train", order[:validation]),
            test=take("test", fixed[: sizes["test"]]),
            public=take("train", order[len(order) - public :]) if public else None,
            provenance=read_manifest(cache / self.prepared, self.id).provenance(),
        )

    def _require(self, file: str, asked: int, there: int) -> None:
        if asked > there:
            raise UserError(
                f"dataset.id: {self.id} asks for {asked} examples of the {file} file, but the "
                f"prepared one holds {there}; ask for fewer (train_examples, …) or prepare it anew."
            )
