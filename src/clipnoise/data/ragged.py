"""Rows of different lengths, collected in a file while a dataset is prepared."""

from __future__ import annotations

import tempfile
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

from clipnoise.errors import UserError

if TYPE_CHECKING:
    import numpy as np


class Ragged:
    """Rows of numbers; the numbers lie in a nameless file, only the lengths in memory."""

    def __init__(self, folder: Path, dtype: str) -> None:
        """Start without rows.

        Args:
            folder: on whose disk the numbers lie meanwhile.
            dtype: of the numbers.

        Raises:
            UserError: the folder cannot be written.
        """
        self._folder, self._dtype, self._counts = folder, dtype, array("q", [0])
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (lives with the object)
        except OSError as error:
            raise self._unwritable(error) from None

    def __len__(self) -> int:
        return len(self._counts) - 1

    def append(self, row: np.ndarray) -> None:
        """Append a row of shape (length,).

        Raises:
            UserError: the disk is full.
        """
        try:
            self._file.write(row.astype(self._dtype, copy=False).tobytes())
        except OSError as error:
            raise self._unwritable(error) from None
        self._counts.append(len(row))

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return where each row begins, int64 of shape (n + 1,), and all numbers, memory-mapped.

        Raises:
            UserError: the disk is full.
        """
        import numpy as np

        starts = np.cumsum(np.frombuffer(self._counts, dtype="int64"))
        try:
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error) from None
        if not starts[-1]:
            return starts, np.zeros(0, self._dtype)
        return starts, np.memmap(self._file, self._dtype, mode="r")

    def _unwritable(self, error: OSError) -> UserError:
        return UserError(f"{self._folder}: cannot be written: {error.strerror or error}.")
