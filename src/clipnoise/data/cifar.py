"""CIFAR-10 and CIFAR-100, from their archives of pickled batches."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from clipnoise.data.images import Images, Pixels
from clipnoise.data.remote import RemoteFile
from clipnoise.errors import UserError

if TYPE_CHECKING:
    import numpy as np

SITE = "https://www.cs.toronto.edu/~kriz"
PIECE = 1 << 20  # bytes


@dataclass(frozen=True, kw_only=True)
class Cifar10(Images):
    """60,000 colour 32×32 images of ten classes of objects.

    Standardised as usual with torchvision (DP-AdamBC, Appendix A), with the means and deviations
    that Opacus' example uses.
    """

    id: ClassVar[str] = "cifar-10"
    title: ClassVar[str] = "CIFAR-10"
    licence: ClassVar[str] = "none stated; free for research, to be cited"
    source: ClassVar[str] = (
        "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, University of "
        "Toronto, 2009"
    )
    split: ClassVar[str] = "the published 50,000 and 10,000; validation and public from the 50,000"
    manual: ClassVar[str] = "no licence to accept; the archive for Python, not unpacked."
    files: ClassVar[tuple[RemoteFile, ...]] = (
        RemoteFile(
            "cifar-10-python.tar.gz",
            f"{SITE}/cifar-10-python.tar.gz",
            md5="c58f30108f718f92721af3b95e74349a",
        ),
    )
    shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)
    classes: ClassVar[int] = 10
    training_file: ClassVar[int] = 50_000
    test_file: ClassVar[int] = 10_000
    means: ClassVar[tuple[float, ...]] = (0.4914, 0.4822, 0.4465)
    deviations: ClassVar[tuple[float, ...]] = (0.2023, 0.1994, 0.2010)
    batches: ClassVar[dict[str, tuple[str, ...]]] = {
        "train": tuple(f"cifar-10-batches-py/data_batch_{number}" for number in range(1, 6)),
        "test": ("cifar-10-batches-py/test_batch",),
    }
    labels: ClassVar[str] = "labels"

    pixels: Pixels = "standardised"

    def raw_images(self, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        import numpy as np

        path = folder / self.files[0].name
        members = read_members(path, [name for names in self.batches.values() for name in names])
        read = {name: self._batch(path, name, content) for name, content in members.items()}
        return {
            part: (
                np.concatenate([read[name][0] for name in names]),
                np.concatenate([read[name][1] for name in names]),
            )
            for part, names in self.batches.items()
        }

    def _batch(self, path: Path, name: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return the images and labels of a batch."""
        import numpy as np

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


@dataclass(frozen=True, kw_only=True)
class Cifar100(Cifar10):
    """60,000 colour 32×32 images of a hundred classes of objects."""

    id: ClassVar[str] = "cifar-100"
    title: ClassVar[str] = "CIFAR-100"
    files: ClassVar[tuple[RemoteFile, ...]] = (
        RemoteFile(
            "cifar-100-python.tar.gz",
            f"{SITE}/cifar-100-python.tar.gz",
            md5="eb9058c3a382ffc7106e4002c42a8d85",
        ),
    )
    classes: ClassVar[int] = 100
    means: ClassVar[tuple[float, ...]] = (0.5071, 0.4865, 0.4409)
    deviations: ClassVar[tuple[float, ...]] = (0.2673, 0.2564, 0.2762)
    batches: ClassVar[dict[str, tuple[str, ...]]] = {
        "train": ("cifar-100-python/train",),
        "test": ("cifar-100-python/test",),
    }
    labels: ClassVar[str] = "fine_labels"


def read_members(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Read files from a compressed archive without unpacking it to disk.

    Args:
        path: a .tar.gz file.
        names: which files.

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
        import numpy as np

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

    Args:
        content: the pickle.
        where: what it is, for the message.

    Raises:
        UserError: it is damaged, or contains anything else.
    """
    try:
        return _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{where}: cannot be read ({error}).") from None
