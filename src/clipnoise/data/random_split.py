"""Datasets that are two arrays: what most data of one's own come to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from clipnoise.data.base import Examples, FourSizes, Splits, cut_rows
from clipnoise.data.rows import StoredRows
from clipnoise.lazy import np, torch


@dataclass(frozen=True, kw_only=True)
class RandomSplit(FourSizes):
    """Base of datasets that are two arrays, inputs and targets, whose rows are split at random.

    Which examples are private follows from positions and the split seed alone. The test set is the
    same for every split seed.

    Attributes:
        rows: how many examples there are: public, known before they are read.
    """

    needs = ("signature", "arrays")
    split = "at random, from one file"

    rows: ClassVar[int]

    def __post_init__(self) -> None:
        if sum(self.sizes().values()) > self.rows:
            raise ValueError(f"the sizes of all parts together must be at most {self.rows}")

    def arrays(self, cache: Path) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs and targets of all examples, shape (rows, …); asked for once.

        Args:
            cache: in which `raw_files` finds the files that are downloaded or put there by hand.
        """
        raise NotImplementedError

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        """Write both arrays, floats as float32.

        Raises:
            UserError: a raw file is missing or damaged.
            ValueError: an array has another number of rows than the class says.
        """
        inputs, targets = self.arrays(cache)
        for name, array in (("inputs", inputs), ("targets", targets)):
            if len(array) != self.rows:
                raise ValueError(f"arrays: expected {self.rows} {name}, got {len(array)}")
        if np.issubdtype(inputs.dtype, np.floating):
            inputs = inputs.astype("float32")
        self.write(cache, {"inputs": inputs, "targets": targets})

    def load(self, cache: Path) -> Splits:
        arrays, provenance = self.read(cache)
        rows = cut_rows(self.rows, self.sizes(), self.split_seed)

        def take(part: str) -> Examples:
            targets = torch.from_numpy(arrays["targets"][rows[part].numpy()])
            return Examples(StoredRows(arrays["inputs"], rows[part]), targets)

        return Splits.build(take, self.sizes(), provenance)
