"""Rows: examples kept in a smaller form than a dense tensor, made dense a batch at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

BUCKET = 32  # ragged rows are filled up to a multiple of it


class Rows(ABC):
    """What stands for a tensor of shape (n, …) where only its rows are asked for.

    Attributes:
        device: where the rows that are handed out lie.
    """

    device: str

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

    @abstractmethod
    def to(self, device: str) -> Rows:
        """Return the same rows, handed out on another device."""


@dataclass(frozen=True)
class StoredRows(Rows):
    """Rows of an array that may lie in a file, transformed when they are taken.

    Attributes:
        array: shape (N, …); memory-mapped, or in memory.
        chosen: which of its rows these are, int64 of shape (n,).
        transform: what makes a tensor of taken rows the rows that are handed out, e.g. bytes to
            normalised floats; None leaves them as they are.
    """

    array: np.ndarray
    chosen: Tensor
    transform: Callable[[Tensor], Tensor] | None = None
    device: str = "cpu"

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        import torch

        taken = torch.from_numpy(self.array[_positions(self.chosen, chosen)]).to(self.device)
        return taken if self.transform is None else self.transform(taken)

    def to(self, device: str) -> StoredRows:
        return replace(self, device=device)


@dataclass(frozen=True)
class SparseRows(Rows):
    """Rows of a sparse matrix in compressed rows (CSR), filled up with zeros when taken.

    Attributes:
        starts: where each row begins in the other two, int64 of shape (N + 1,).
        columns: the column of each entry, integers of shape (entries,).
        values: each entry, shape (entries,).
        width: number of columns.
        chosen: which of its rows these are, int64 of shape (n,).
        dtype: of the rows that are handed out.
    """

    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    width: int
    chosen: Tensor
    dtype: torch.dtype
    device: str = "cpu"

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        import numpy as np
        import torch

        rows = _positions(self.chosen, chosen)
        begins, counts = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        row = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        entries = np.repeat(begins, counts) + within
        places = torch.from_numpy(row * self.width + self.columns[entries].astype("int64"))
        dense = torch.zeros(len(rows) * self.width, dtype=self.dtype, device=self.device)
        values = torch.from_numpy(self.values[entries]).to(self.device, self.dtype)
        return dense.scatter_(0, places.to(self.device), values).view(-1, self.width)

    def to(self, device: str) -> SparseRows:
        return replace(self, device=device)


@dataclass(frozen=True)
class RaggedRows(Rows):
    """Rows of different lengths, one after the other in one array, filled up with 0 when taken.

    What is taken is as long as its longest row, rounded up to a bucket, so that few shapes occur;
    rows beyond `length` are cut off.

    Attributes:
        starts: where each row begins in `values`, int64 of shape (N + 1,).
        values: the entries of all rows, integers of shape (entries,); memory-mapped, or in memory.
        chosen: which of its rows these are, int64 of shape (n,).
        length: the longest that is handed out.
    """

    starts: np.ndarray
    values: np.ndarray
    chosen: Tensor
    length: int
    device: str = "cpu"

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        import torch

        return torch.from_numpy(self.padded(self.positions(chosen))).to(self.device)

    def positions(self, chosen: Tensor | slice) -> np.ndarray:
        """Return which rows of the array are asked for, int64 of shape (b,)."""
        return _positions(self.chosen, chosen)

    def padded(self, rows: np.ndarray) -> np.ndarray:
        """Return some rows of the array, int64 of shape (b, width)."""
        import numpy as np

        begins = self.starts[rows]
        counts = np.minimum(self.starts[rows + 1] - begins, self.length)
        longest = int(counts.max(initial=1))
        width = min(self.length, -(-longest // BUCKET) * BUCKET)
        padded = np.zeros((len(rows), width), dtype="int64")
        real = np.arange(width) < counts[:, None]
        padded[real] = self.values[(begins[:, None] + np.arange(width))[real]]
        return padded

    def to(self, device: str) -> RaggedRows:
        return replace(self, device=device)


def _positions(rows: Tensor, chosen: Tensor | slice) -> np.ndarray:
    """Return which rows of an array are asked for."""
    found = rows[chosen if isinstance(chosen, slice) else chosen.cpu()]
    positions: np.ndarray = found.numpy()
    return positions
