"""Datasets with a training file and a test file, and the parts that are cut from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.data.base import Dataset, Examples, Splits
from clipnoise.data.cache import read_arrays, read_manifest
from clipnoise.errors import UserError
from clipnoise.fields import Count, Natural
from clipnoise.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np
    from torch import Tensor


def cut_rows(
    there: int,
    sizes: Mapping[str, int],
    split_seed: int,
    order: tuple[str, ...] = ("train", "validation", "public"),
) -> dict[str, Tensor]:
    """Cut the rows of one file at random; the test set is the same for every split seed.

    Args:
        there: how many rows there are.
        sizes: of the parts; together at most all rows.
        split_seed: shuffles what is not in the test set.
        order: in which the other parts are cut from that.

    Returns:
        Which rows each part has, int64 of shape (size,).
    """
    import torch

    fixed = torch.randperm(there, generator=generator("split", 0))
    rest = fixed[sizes["test"] :]
    rest = rest[torch.randperm(len(rest), generator=generator("split", split_seed))]
    ends = [sizes[part] for part in order]
    *parts, _ = torch.split(rest, [*ends, len(rest) - sum(ends)])
    return {"test": fixed[: sizes["test"]], **dict(zip(order, parts, strict=True))}


@dataclass(frozen=True, kw_only=True)
class Partitioned(Dataset):
    """Base of datasets whose private, validation and public examples share one training file.

    Who is private follows from positions and seeds alone. The test set is the same for every split
    seed, so that nothing tuned under one seed has seen the test set of another.

    Attributes:
        training_file, test_file: examples that the real files hold.
        validation_file: the same, where the source has such a file; 0 where it has none.
        split_seed: which examples of the training file are for validation, training and public use.
        train_examples: how many of them are private; None takes all that are left.
        validation_examples: how many are for validation: of them, or of the validation file.
        public_examples: how many are treated as public.
        test_examples: how many of the test file are used, the same for every split; None takes all.
    """

    training_file: ClassVar[int]
    test_file: ClassVar[int]
    validation_file: ClassVar[int] = 0

    train_examples: Count | None = None
    validation_examples: Natural = 1000
    public_examples: Natural = 0
    test_examples: Count | None = None

    def __post_init__(self) -> None:
        aside = self._aside()
        if aside + (self.train_examples or 1) > self.training_file:
            raise ValueError(
                "train_examples, validation_examples and public_examples together must be at most "
                f"{self.training_file}"
            )
        if self.validation_file and self.validation_examples > self.validation_file:
            raise ValueError(f"validation_examples must be at most {self.validation_file}")
        if (self.test_examples or 1) > self.test_file:
            raise ValueError(f"test_examples must be at most {self.test_file}")

    def _aside(self) -> int:
        """Return how many examples of the training file are not private."""
        return self.public_examples + (0 if self.validation_file else self.validation_examples)

    def sizes(self) -> dict[str, int]:
        return {
            "train": self.train_examples or self.training_file - self._aside(),
            "validation": self.validation_examples,
            "test": self.test_examples or self.test_file,
            "public": self.public_examples,
        }

    def positions(self, there: Mapping[str, int]) -> dict[str, Tensor]:
        """Return which examples of its file each part has, int64 of shape (size,).

        Args:
            there: how many examples the prepared file of each part holds. Public examples come from
                the training file, and so do those for validation where they have no file.

        Raises:
            UserError: there are fewer than asked for.
        """
        import torch

        sizes = self.sizes()
        train, validation, public = (sizes[part] for part in ("train", "validation", "public"))
        own = 0 if self.validation_file else validation
        self.require(train + own + public, there["train"], "training")
        self.require(sizes["test"], there["test"], "test")
        self.require(validation, there["validation"], "validation")
        order = torch.randperm(there["train"], generator=generator("split", self.split_seed))
        fixed = {
            part: torch.randperm(there[part], generator=generator("split", 0))
            for part in ("validation", "test")
        }
        return {
            "train": order[own : own + train],
            "validation": order[:own] if own else fixed["validation"][:validation],
            "test": fixed["test"][: sizes["test"]],
            "public": order[len(order) - public :],
        }

    @property
    def test_part(self) -> str:
        """Which part of the source is the test set."""
        return "test"

    def cut(
        self, cache: Path, take: Callable[[dict[str, np.ndarray], str, Tensor], Examples]
    ) -> Splits:
        """Cut what is prepared into the parts.

        Args:
            cache: the folder of prepared datasets; `<part>_labels` has a row for each example.
            take: makes examples, from all arrays, the part of the source, and which of its rows.

        Raises:
            UserError: it is not prepared, or holds fewer examples than asked for.
        """
        folder = cache / self.prepared
        arrays = read_arrays(folder, self.invocation)
        files = {"train": "train", "public": "train", "test": self.test_part}
        files["validation"] = "validation" if self.validation_file else "train"
        there = {part: len(arrays[f"{file}_labels"]) for part, file in files.items()}
        positions = self.positions(there)
        return Splits.taken(
            lambda part: take(arrays, files[part], positions[part]),
            self.sizes(),
            read_manifest(folder, self.invocation).provenance(),
        )

    def require(self, asked: int, there: int, file: str) -> None:
        """Raise UserError where a prepared file holds fewer examples than asked for."""
        if asked > there:
            raise UserError(
                f"dataset.id: {self.id} asks for {asked} examples of the {file} file, but the "
                f"prepared one holds {there}; ask for fewer (train_examples, …) or prepare it anew."
            )
