"""Datasets that are two arrays: what most data of one's own come to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from clipnoise.data.base import Examples, FourSizes, Splits, cut_rows
from clipnoise.data.rows import StoredRows
from clipnoise.errors import UserError, reason
from clipnoise.lazy import np, torch
from clipnoise.plugins import place_of


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
            raise ValueError(
                f"the sizes of all parts together must be at most {self.rows}, the rows that there "
                "are"
            )

    def arrays(self, cache: Path) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs and targets of all examples, shape (rows, …); asked for once.

        Args:
            cache: in which `raw_files` finds the files that are downloaded or put there by hand.
        """
        raise NotImplementedError

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        """Write both arrays, floats as float32.

        Raises:
            UserError: a raw file is missing or damaged, or the arrays are not what the class says.
        """
        try:
            inputs, targets = map(np.asarray, self.arrays(cache))
            self._require_declared(inputs, targets)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{place_of(type(self))}: arrays: {reason(error)}") from error
        if np.issubdtype(inputs.dtype, np.floating):
            inputs = inputs.astype("float32")
        self.write(cache, {"inputs": inputs, "targets": targets})

    def _require_declared(self, inputs: np.ndarray, targets: np.ndarray) -> None:
        """Raise ValueError where arrays are not what `rows` and `signature` say of them."""
        said = self.signature
        for name, array in (("inputs", inputs), ("targets", targets)):
            if array.dtype.kind not in "biuf":
                raise ValueError(f"{name} must be numbers, got {array.dtype}")
            if array.shape[:1] != (self.rows,):
                raise ValueError(f"expected {self.rows} {name}, got an array of {array.shape}")
            if not np.isfinite(array).all():
                row = int(np.argwhere(~np.isfinite(array))[0][0])
                raise ValueError(f"{name} must be finite; row {row} is not")
        if inputs.shape[1:] != said.shape:
            raise ValueError(f"inputs have shape {inputs.shape[1:]}, but signature {said.shape}")
        if said.task_name == "classification":
            whole = targets.dtype.kind in "iu" and targets.ndim == 1
            if not whole or targets.min() < 0 or targets.max() >= said.outputs:
                raise ValueError(f"targets must be whole numbers from 0 to {said.outputs - 1}")

    def load(self, cache: Path) -> Splits:
        arrays, provenance = self.read(cache)
        rows = cut_rows(self.rows, self.sizes(), self.split_seed)

        def take(part: str) -> Examples:
            targets = torch.from_numpy(arrays["targets"][rows[part].numpy()])
            return Examples(StoredRows(arrays["inputs"], rows[part]), targets)

        return Splits.build(take, self.sizes(), provenance)
