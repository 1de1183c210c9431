"""Rows: examples stored more compactly than a dense tensor, made dense a batch at a time."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from clipnoise.files import writing
from clipnoise.lazy import Tensor, np, torch

SPARSE = ("starts", "columns", "values")  # names of the arrays of prepared `SparseRows`
BUCKET = 32  # ragged rows are padded to a multiple of this length


@dataclass(frozen=True)
class Rows(ABC):
    """Stands for a tensor of shape (n, …) of which only rows are needed at a time.

    Attributes:
        device: where the returned rows lie.
    """

    device: str = field(default="cpu", kw_only=True)

    @abstractmethod
    def __len__(self) -> int:
        """Return n."""

    @abstractmethod
    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        """Return some rows as a dense tensor.

        Args:
            chosen: indices, int64 of shape (b,), on any device; or a slice.

        Returns:
            Shape (b, …), a copy, on the device.
        """

    def seen(self, chosen: Tensor, key: int) -> Tensor:
        """Return some rows as a training step sees them: as they are, unless they are augmented.

        Args:
            chosen: as in `__getitem__`.
            key: of the run and the step, which decides the views; 64 bits.
        """
        return self[chosen]

    def to(self, device: str) -> Self:
        """Return the same rows, to be returned on another device."""
        return replace(self, device=device)


@dataclass(frozen=True)
class StoredRows(Rows):
    """Rows of an array that may lie in a file, transformed when they are taken.

    Attributes:
        array: shape (N, …); memory-mapped, or in memory.
        chosen: which of its rows these are, int64 of shape (n,).
        transform: applied to a tensor of taken rows, e.g. bytes to normalised floats; None leaves
            them as they are.
        augment: (taken rows, key, indices) → the views of them that a training step sees, before
            the transform; None for no augmentation.
    """

    array: np.ndarray
    chosen: Tensor
    transform: Callable[[Tensor], Tensor] | None = None
    augment: Callable[[Tensor, int, np.ndarray], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        return self._transformed(self._taken(chosen))

    def seen(self, chosen: Tensor, key: int) -> Tensor:
        if self.augment is None:
            return self[chosen]
        return self._transformed(self.augment(self._taken(chosen), key, chosen.cpu().numpy()))

    def _taken(self, chosen: Tensor | slice) -> Tensor:
        return torch.from_numpy(self.array[positions(self.chosen, chosen)])

    def _transformed(self, taken: Tensor) -> Tensor:
        moved = taken.to(self.device)
        return moved if self.transform is None else self.transform(moved)


@dataclass(frozen=True)
class SparseRows(Rows):
    """Rows of a sparse matrix in compressed rows (CSR), made dense, as float32, when taken.

    Attributes:
        starts: where each row begins in the other two, int64 of shape (N + 1,).
        columns: the column of each entry, integers of shape (entries,).
        values: each entry, shape (entries,).
        width: number of columns.
        chosen: which of its rows these are, int64 of shape (n,).
    """

    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    width: int
    chosen: Tensor

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        rows = positions(self.chosen, chosen)
        begins, counts = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        row = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        entries = np.repeat(begins, counts) + within
        places = torch.from_numpy(row * self.width + self.columns[entries].astype("int64"))
        dense = torch.zeros(len(rows) * self.width, dtype=torch.float32, device=self.device)
        values = torch.from_numpy(self.values[entries]).to(dense)
        return dense.scatter_(0, places.to(self.device), values).view(-1, self.width)


@dataclass(frozen=True)
class RaggedRows(Rows):
    """Rows of different lengths, one after the other in one array, padded with 0 when taken.

    A batch is as wide as its longest row, rounded up to a bucket, so that few shapes occur; longer
    rows than `length` are truncated.

    Attributes:
        starts: where each row begins in `values`, int64 of shape (N + 1,).
        values: the entries of all rows, integers of shape (entries,); memory-mapped, or in memory.
        chosen: which of its rows these are, int64 of shape (n,).
        length: the longest row that is returned.
    """

    starts: np.ndarray
    values: np.ndarray
    chosen: Tensor
    length: int

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        return torch.from_numpy(self.padded(positions(self.chosen, chosen))).to(self.device)

    def padded(self, rows: np.ndarray) -> np.ndarray:
        """Return rows of the array, padded, int64 of shape (b, width)."""
        begins = self.starts[rows]
        counts = np.minimum(self.starts[rows + 1] - begins, self.length)
        longest = int(counts.max(initial=1))
        width = min(self.length, -(-longest // BUCKET) * BUCKET)
        padded = np.zeros((len(rows), width), dtype="int64")
        real = np.arange(width) < counts[:, None]
        padded[real] = self.values[(begins[:, None] + np.arange(width))[real]]
        return padded


def positions(rows: Tensor, chosen: Tensor | slice) -> np.ndarray:
    """Return the positions in an array of chosen rows; indices may lie on any device."""
    places: np.ndarray = rows[chosen if isinstance(chosen, slice) else chosen.cpu()].numpy()
    return places


class RaggedWriter:
    """Collects rows of different lengths: numbers in temporary files, only lengths in memory."""

    def __init__(self, folder: Path, *dtypes: str) -> None:
        """Start without rows.

        Args:
            folder: on whose disk the temporary files lie.
            dtypes: of the numbers; several where a row has several numbers at each place.

        Raises:
            UserError: the folder cannot be written.
        """
        self._folder, self._dtypes, self._counts = folder, dtypes, array("q", [0])
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._files = [tempfile.TemporaryFile(dir=folder) for _ in dtypes]  # noqa: SIM115

    def __len__(self) -> int:
        return len(self._counts) - 1

    def append(self, *row: np.ndarray) -> None:
        """Append a row: numbers of each dtype, shape (length,). A full disk raises UserError."""
        with writing(self._folder):
            for file, dtype, numbers in zip(self._files, self._dtypes, row, strict=True):
                file.write(numbers.astype(dtype, copy=False).tobytes())
        self._counts.append(len(row[0]))

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Return where each row begins, int64 of shape (n + 1,), and all numbers, memory-mapped.

        A full disk raises UserError.
        """
        starts = np.cumsum(np.frombuffer(self._counts, dtype="int64"))
        with writing(self._folder):
            for file in self._files:
                file.flush()
        if not starts[-1]:
            return starts, *(np.zeros(0, dtype) for dtype in self._dtypes)
        stored = zip(self._files, self._dtypes, strict=True)
        return starts, *(np.memmap(file, dtype, mode="r") for file, dtype in stored)
