"""NewPlugin: two clouds of points, in place of what you read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clipnoise.data.base import Examples, FourSizes, Splits, cut_rows
from clipnoise.data.rows import StoredRows
from clipnoise.data.signature import Signature
from clipnoise.lazy import np, torch  # so that listing datasets does not load torch

ROWS = 2000


@dataclass(frozen=True, kw_only=True)
class NewPlugin(FourSizes):
    """Two clouds of points, one for each class."""

    id = "new-plugin"
    title = "NewPlugin"
    licence = "yours"
    source = "made up"
    split = "at random, from one file"
    preprocessing = "none"

    def __post_init__(self) -> None:
        if sum(self.sizes().values()) > ROWS:
            raise ValueError(f"the sizes of all parts together must be at most {ROWS}")

    @property
    def signature(self) -> Signature:
        return Signature("features", (2,), 2)

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        draws = np.random.default_rng(0)
        labels = np.arange(ROWS) % 2
        inputs = draws.normal(size=(ROWS, 2)) + 2 * labels[:, None]
        self.write(cache, {"inputs": inputs.astype("float32"), "labels": labels})

    def load(self, cache: Path) -> Splits:
        arrays, provenance = self.read(cache)
        rows = cut_rows(ROWS, self.sizes(), self.split_seed)

        def take(part: str) -> Examples:
            labels = torch.from_numpy(arrays["labels"][rows[part].numpy()])
            return Examples(StoredRows(arrays["inputs"], rows[part]), labels)

        return Splits.build(take, self.sizes(), provenance)
