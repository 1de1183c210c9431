"""MNIST and Fashion-MNIST, from their IDX files."""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clipnoise.data.images import Images
from clipnoise.data.remote import RemoteFile
from clipnoise.errors import UserError

if TYPE_CHECKING:
    import numpy as np

BYTES = 0x08  # the code of unsigned bytes in an IDX file


def _files(folder: str, *md5: str) -> tuple[RemoteFile, ...]:
    """Return the images and labels for training, then those for testing."""
    names = [
        f"{part}-{kind}-ubyte.gz"
        for part in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    ]
    return tuple(
        RemoteFile(name, f"{folder}/{name}", md5=checksum)
        for name, checksum in zip(names, md5, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class Mnist(Images):
    """70,000 grey 28×28 images of handwritten digits.

    The papers scale pixels to [0, 1] (AdaDPS, Appendix B).
    """

    id: ClassVar[str] = "mnist"
    title: ClassVar[str] = "MNIST"
    licence: ClassVar[str] = "CC BY-SA 3.0"
    source: ClassVar[str] = (
        "Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-based learning applied to document "
        "recognition, Proceedings of the IEEE 86, 1998; the copy that torchvision uses"
    )
    split: ClassVar[str] = "the published 60,000 and 10,000; validation and public from the 60,000"
    manual: ClassVar[str] = "no licence to accept; the IDX files, compressed as they are."
    files: ClassVar[tuple[RemoteFile, ...]] = _files(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    )
    shape: ClassVar[tuple[int, int, int]] = (1, 28, 28)
    classes: ClassVar[int] = 10
    training_file: ClassVar[int] = 60_000
    test_file: ClassVar[int] = 10_000
    means: ClassVar[tuple[float, ...]] = (0.1307,)
    deviations: ClassVar[tuple[float, ...]] = (0.3081,)

    def raw_images(self, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        images, labels, test_images, test_labels = (
            read_idx(folder / file.name, axes)
            for file, axes in zip(self.files, (3, 1, 3, 1), strict=True)
        )
        return {"train": (images[:, None], labels), "test": (test_images[:, None], test_labels)}


@dataclass(frozen=True, kw_only=True)
class FashionMnist(Mnist):
    """70,000 grey 28×28 images of clothes."""

    id: ClassVar[str] = "fashion-mnist"
    title: ClassVar[str] = "Fashion-MNIST"
    licence: ClassVar[str] = "MIT"
    source: ClassVar[str] = (
        "H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking "
        "machine learning algorithms, arXiv:1708.07747, 2017"
    )
    files: ClassVar[tuple[RemoteFile, ...]] = _files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    )
    means: ClassVar[tuple[float, ...]] = (0.2860,)
    deviations: ClassVar[tuple[float, ...]] = (0.3530,)


def read_idx(path: Path, axes: int) -> np.ndarray:
    """Read a compressed IDX file of bytes.

    Args:
        path: a file that ends in .gz.
        axes: how many axes it must have.

    Returns:
        uint8, read-only.

    Raises:
        UserError: it is damaged or not of this format.
    """
    import numpy as np

    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: truncated or damaged ({error}).") from None
    start = 4 * (1 + axes)
    magic, *shape = struct.unpack(f">{1 + axes}I", content[:start].ljust(start, b"\0"))
    if magic != BYTES << 8 | axes:
        raise UserError(f"{path}: not an IDX file of bytes with {axes} axes.")
    values = np.frombuffer(content, dtype=np.uint8, offset=min(start, len(content)))
    if len(values) != np.prod(shape):
        raise UserError(f"{path}: holds {len(values)} bytes, but its header says {shape}.")
    return values.reshape(shape)
