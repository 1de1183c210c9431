"""The contract of a dataset: fetch (network), prepare (into a cache), load (from the cache)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Natural
from clipnoise.plugins import lookup, plugins

if TYPE_CHECKING:
    from torch import Tensor

Task = Literal["classification"]


@dataclass(frozen=True)
class Examples:
    """Examples of one split.

    Attributes:
        inputs: shape (n, …).
        targets: shape (n, …); class indices int64 for classification.
    """

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Splits:
    """A dataset, split. The four parts share no example.

    Attributes:
        train: the private examples; n of the accountant is its length.
        validation: for tuning; part of the training file, never of the test set.
        test: for reported numbers only.
        public: examples without a privacy claim, or None.
        provenance: where each part came from, as plain data for the result file.
        users: whose each private example is, int64 of shape (n,) with values 0 … N−1; None where
            examples belong to nobody.
    """

    train: Examples
    validation: Examples
    test: Examples
    public: Examples | None
    provenance: dict[str, str]
    users: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Base of every dataset: a frozen dataclass with an `id` and its split options as fields."""

    __pydantic_config__: ClassVar = STRICT
    id: ClassVar[str]
    title: ClassVar[str]
    task: ClassVar[Task] = "classification"
    licence: ClassVar[str]
    source: ClassVar[str]
    example_shape: ClassVar[tuple[int, ...]]
    classes: ClassVar[int]

    split_seed: Natural = 0

    def sizes(self) -> dict[str, int]:
        """Return the number of examples of each split: public, known before any download."""
        raise NotImplementedError

    def user_count(self) -> int | None:
        """Return N, the number of users whose the private examples are, or None: public."""
        return None

    def require_users(self, method: str) -> int:
        """Return N for a method that protects users.

        Raises:
            UserError: the examples belong to nobody; names the datasets with users.
        """
        count = self.user_count()
        if count is None:
            known = plugins("clipnoise.data", Dataset)
            fitting = [name for name, kind in known.items() if kind().user_count() is not None]
            raise UserError(
                f"dataset.id: {method} protects users, but the examples of {self.id} belong to "
                f"nobody. Datasets with users: {', '.join(fitting)}."
            )
        return count

    def prepare(self, cache: Path) -> None:
        """Write the dataset into the cache, deterministically and atomically."""
        raise NotImplementedError

    def load(self, cache: Path) -> Splits:
        """Read the splits from the cache, memory-mapped.

        Raises:
            UserError: the cache does not hold the dataset; the message says how to prepare it.
        """
        raise NotImplementedError


def dataset_class(name: str, *, file: str | None = None) -> type[Dataset]:
    """Return the dataset class of an id, or raise UserError naming the nearest one."""
    return lookup("clipnoise.data", Dataset, "dataset", name, file=file)
