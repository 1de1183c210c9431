"""Sparse bags of words with tags and users, of any size: what stands in for Stack Overflow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from clipnoise.data.base import Dataset, Examples, Splits
from clipnoise.data.cache import read_arrays, read_manifest, write_arrays
from clipnoise.data.fetch import facts
from clipnoise.data.partition import cut_rows
from clipnoise.data.ragged import Ragged
from clipnoise.data.rows import Rows, SparseRows
from clipnoise.data.signature import Signature
from clipnoise.fields import Count, Natural

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

PIECE = 4096  # rows drawn at once
MOST = 2**16


@dataclass(frozen=True, kw_only=True)
class SyntheticSparse(Dataset):
    """Shares of words in short texts; common words follow Zipf's law, rare ones tell the tags.

    Every user has a favourite tag. Prepared once: loading only cuts.

    Attributes:
        split_seed: which examples are in which part.
        examples: private and public ones; validation and test have a quarter of it each.
        public_examples: how many of them are public.
        features: how many words there are.
        tags: how many tags there are.
        words: expected words of an example.
        users: whose the examples are; 0 for nobody's.
        target: "tags" asks for all tags of an example, "tag" for the first.
    """

    id: ClassVar[str] = "synthetic-sparse"
    title: ClassVar[str] = "Synthetic bags of words with tags"
    licence: ClassVar[str] = "none needed: drawn by this package"
    source: ClassVar[str] = "drawn by this package"
    split: ClassVar[str] = "cut at random"
    preprocessing: ClassVar[str] = "the share of each word in an example; kept sparse"

    examples: Count = 1000
    public_examples: Natural = 0
    features: Count = 500
    tags: Count = 10
    words: Count = 20
    users: Natural = 20
    target: Literal["tag", "tags"] = "tags"

    def __post_init__(self) -> None:
        if max(self.features, self.tags) > MOST:
            raise ValueError(f"features and tags must be at most {MOST}")
        if self.public_examples >= self.examples:
            raise ValueError(f"public_examples must be below examples, {self.examples}")
        if self.features < 4 * self.tags:
            raise ValueError("features must be at least four times tags")

    @property
    def signature(self) -> Signature:
        if self.target == "tag":
            return Signature("features", (self.features,), self.tags)
        return Signature("features", (self.features,), self.tags, "multi-label")

    @property
    def prepared(self) -> str:
        return f"{self.id}@" + "-".join(str(value) for value in self.preparation().values())

    @property
    def origin(self) -> str:
        return self.prepared  # each is drawn by itself

    def preparation(self) -> dict[str, Any]:
        names = ("examples", "features", "tags", "words", "users")
        return {name: getattr(self, name) for name in names}

    def sizes(self) -> dict[str, int]:
        quarter = max(1, self.examples // 4)
        return {
            "train": self.examples - self.public_examples,
            "validation": quarter,
            "test": quarter,
            "public": self.public_examples,
        }

    def user_count(self) -> int | None:
        return self.users or None

    def prepare(self, cache: Path) -> None:
        """Draw all examples, piece by piece."""
        import numpy as np

        draws, total = np.random.default_rng(0), sum(self.sizes().values())
        kinds = {"columns": "uint16", "values": "float32", "tags": "uint16"}
        rows = {name: Ragged(cache, kind) for name, kind in kinds.items()}
        users = draws.integers(max(self.users, 1), size=total).astype("int32")
        for start in range(0, total, PIECE):
            self._draw(users[start : start + PIECE], draws, rows)
        arrays = {name: ragged.arrays()[1] for name, ragged in rows.items()}
        arrays["starts"], arrays["tag_starts"] = (rows[n].arrays()[0] for n in ("columns", "tags"))
        arrays["users"] = users
        write_arrays(cache / self.prepared, arrays, facts(cache, self))

    def _draw(self, users: np.ndarray, draws: np.random.Generator, rows: dict[str, Ragged]) -> None:
        """Draw one example for each entry of users, and append it."""
        import numpy as np

        count, common = len(users), self.features // 2
        tags = draws.integers(self.tags, size=(count, 3))
        tags[:, 0] = np.where(draws.random(count) < 0.5, users % self.tags, tags[:, 0])
        lengths = 1 + draws.poisson(self.words - 1, size=count)
        row = np.repeat(np.arange(count), lengths)
        ranks = 1 / np.arange(1, common + 1)
        column = draws.choice(common, size=len(row), p=ranks / ranks.sum())
        each = (self.features - common) // self.tags
        own = tags[row, draws.integers(3, size=len(row))]
        telling = common + own * each + draws.integers(each, size=len(row))
        column = np.where(draws.random(len(row)) < 0.3, telling, column)
        entries, counts = np.unique(row * self.features + column, return_counts=True)
        owner, place = np.divmod(entries, self.features)
        ends = np.searchsorted(owner, np.arange(1, count))
        shares = counts / lengths[owner]
        for columns, values, mine in zip(
            np.split(place, ends), np.split(shares, ends), tags, strict=True
        ):
            rows["columns"].append(columns)
            rows["values"].append(values)
            rows["tags"].append(np.array(list(dict.fromkeys(mine.tolist()))))

    def load(self, cache: Path) -> Splits:
        import torch

        folder, sizes = cache / self.prepared, self.sizes()
        arrays = read_arrays(folder, self.invocation)
        rows = cut_rows(sum(sizes.values()), sizes, self.split_seed)

        def take(part: str) -> Examples:
            chosen = rows[part]
            starts, columns, values = (arrays[name] for name in ("starts", "columns", "values"))
            inputs = SparseRows(starts, columns, values, self.features, chosen, torch.float32)
            return Examples(inputs, self._targets(arrays, chosen))

        owners = torch.from_numpy(arrays["users"][rows["train"].numpy()].astype("int64"))
        provenance = read_manifest(folder, self.invocation).provenance()
        return Splits.taken(take, sizes, provenance, owners if self.users else None)

    def _targets(self, arrays: dict[str, np.ndarray], chosen: Tensor) -> Tensor | Rows:
        import numpy as np
        import torch

        starts, tags = arrays["tag_starts"], arrays["tags"]
        if self.target == "tag":
            return torch.from_numpy(tags[starts[chosen.numpy()]].astype("int64"))
        ones = np.broadcast_to(np.uint8(1), tags.shape)
        return SparseRows(starts, tags, ones, self.tags, chosen, torch.float32)
