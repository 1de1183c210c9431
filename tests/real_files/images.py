"""IDX files, packages and pickled batches of few images, byte for byte in the real formats."""

from __future__ import annotations

import gzip
import io
import lzma
import pickle
import struct
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from clipnoise.data.base import dataset_class

IDX_SIZES = {"train": 60, "t10k": 20}
SMALL = {"validation_examples": 10, "test_examples": 15}


def made_up(count: int, classes: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return images uint8 (count, *shape), one pattern a class under noise, and their labels."""
    draws = np.random.default_rng(0)
    patterns = draws.integers(0, 200, (classes, *shape))
    labels = np.arange(count) % classes
    return (patterns[labels] + draws.integers(0, 56, (count, *shape))).astype("uint8"), labels


def idx(values: np.ndarray) -> bytes:
    """Return an array of bytes as an IDX file."""
    head = struct.pack(f">{1 + values.ndim}I", 0x0800 | values.ndim, *values.shape)
    return head + values.astype("uint8").tobytes()


def idx_files() -> dict[str, bytes]:
    """Return the four files of MNIST, or of Fashion-MNIST, by name."""
    images, labels = made_up(sum(IDX_SIZES.values()), 10, (28, 28))
    files, start = {}, 0
    for part, count in IDX_SIZES.items():
        rows = slice(start, start := start + count)
        for kind, values in (("images-idx3", images[rows]), ("labels-idx1", labels[rows])):
            files[f"{part}-{kind}-ubyte.gz"] = gzip.compress(idx(values), mtime=0)
    return files


def write_mnist(cache: Path) -> None:
    """Write the four files of MNIST."""
    folder = cache / "raw" / "mnist"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in idx_files().items():
        (folder / name).write_bytes(content)


def deb(members: Mapping[str, bytes]) -> bytes:
    """Return a package of Debian with some files, the same bytes each time."""
    data = lzma.compress(tar({f"./{name}": content for name, content in members.items()}))
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": lzma.compress(tar({})),
        "data.tar.xz": data,
    }
    written = b"!<arch>\n"
    for name, content in parts.items():
        written += f"{name:16}{0:<12}{0:<6}{0:<6}{'100644':8}{len(content):<10}`\n".encode()
        written += content + b"\n" * (len(content) % 2)
    return written


def write_fashion_mnist(cache: Path) -> None:
    """Write the package of Debian with the four files."""
    folder = cache / "raw" / "fashion-mnist"
    folder.mkdir(parents=True, exist_ok=True)
    files = {f"usr/share/datasets/fashion-mnist/{name}": it for name, it in idx_files().items()}
    (folder / dataset_class("fashion-mnist").files[0].name).write_bytes(deb(files))


class PythonTwo(pickle._Pickler):
    """Writes what Python 2 and its numpy wrote: text as bytes, and the old name of a module."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_text(self, text: str | bytes) -> None:
        content = text.encode("latin1") if isinstance(text, str) else text
        self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)  # type: ignore[attr-defined]
        self.memoize(text)  # type: ignore[attr-defined]

    dispatch[str] = dispatch[bytes] = save_text


def pickled(batch: Mapping[str, Any]) -> bytes:
    """Return a batch as Python 2 pickled it."""
    stream = io.BytesIO()
    PythonTwo(stream, protocol=2).dump(dict(batch))
    return stream.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def batch(rows: slice, images: np.ndarray, labels: np.ndarray, key: str) -> dict[str, Any]:
    """Return some images as a batch of CIFAR."""
    return {
        "data": images[rows].reshape(-1, 3072),
        key: labels[rows].tolist(),
        "filenames": [f"{number}.png" for number in range(len(labels[rows]))],
        "batch_label": "a batch",
    }


def archive(path: Path, members: Mapping[str, bytes]) -> None:
    """Write files into a compressed archive, as CIFAR's is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(tar(members), mtime=0))


def tar(members: Mapping[str, bytes]) -> bytes:
    """Return files in one, not compressed."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as stream:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            stream.addfile(member, io.BytesIO(content))
    return plain.getvalue()


def write_cifar_10(cache: Path) -> None:
    """Write the archive of CIFAR-10, with ten images a batch."""
    images, labels = made_up(60, 10, (3, 32, 32))
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    parts = {
        f"cifar-10-batches-py/{name}": pickled(batch(slice(s, s + 10), images, labels, "labels"))
        for s, name in zip(range(0, 60, 10), names, strict=True)
    }
    about = pickled({"label_names": list("abcdefghij"), "num_cases_per_batch": 10})
    path = cache / "raw" / "cifar-10" / "cifar-10-python.tar.gz"
    archive(path, {"cifar-10-batches-py/batches.meta": about, **parts})


def write_cifar_100(cache: Path) -> None:
    """Write the archive of CIFAR-100, with three images a class to train on."""
    images, labels = made_up(400, 100, (3, 32, 32))
    parts = {
        f"cifar-100-python/{name}": pickled(
            {**batch(rows, images, labels, "fine_labels"), "coarse_labels": [0] * 10}
        )
        for name, rows in (("test", slice(300, 400)), ("train", slice(300)))
    }
    archive(cache / "raw" / "cifar-100" / "cifar-100-python.tar.gz", parts)


RAW: dict[str, Callable[[Path], None]] = {
    "mnist": write_mnist,
    "fashion-mnist": write_fashion_mnist,
    "cifar-10": write_cifar_10,
    "cifar-100": write_cifar_100,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "mnist": {**SMALL, "train_examples": 40},
    "fashion-mnist": {**SMALL, "train_examples": 40},
    "cifar-10": {"train_examples": 30, "validation_examples": 10, "test_examples": 10},
    "cifar-100": {"train_examples": 280, "validation_examples": 10, "test_examples": 100},
}
