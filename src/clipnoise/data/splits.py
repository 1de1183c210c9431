"""How a dataset is cut into private, validation, test and public examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.data.base import PARTS, Dataset, Examples, Splits
from clipnoise.errors import UserError
from clipnoise.fields import Count, Natural
from clipnoise.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np
    from torch import Tensor


def cut_rows(
    available: int,
    sizes: Mapping[str, int],
    split_seed: int,
    order: tuple[str, ...] = ("train", "validation", "public"),
) -> dict[str, Tensor]:
    """Cut the rows of one file at random; the test set is the same for every split seed.

    Args:
        available: the number of rows.
        sizes: of the parts; together at most all rows.
        split_seed: shuffles what is not in the test set.
        order: in which the other parts are cut from that.

    Returns:
        The rows of each part, int64 of shape (size,).
    """
    import torch

    fixed = torch.randperm(available, generator=generator("split", 0))
    rest = fixed[sizes["test"] :]
    rest = rest[torch.randperm(len(rest), generator=generator("split", split_seed))]
    ends = [sizes[part] for part in order]
    *parts, _ = torch.split(rest, [*ends, len(rest) - sum(ends)])
    return {"test": fixed[: sizes["test"]], **dict(zip(order, parts, strict=True))}


@dataclass(frozen=True, kw_only=True)
class FourSizes(Dataset):
    """Base of datasets with one option for the size of each part.

    Attributes:
        split_seed: which examples belong to which part.
        train_examples: number of private examples.
        validation_examples, test_examples, public_examples: sizes of the other parts.
    """

    train_examples: Count = 1000
    validation_examples: Natural = 200
    test_examples: Count = 200
    public_examples: Natural = 0

    def sizes(self) -> dict[str, int]:
        return {part: getattr(self, f"{part}_examples") for part in PARTS}


@dataclass(frozen=True, kw_only=True)
class Partitioned(Dataset):
    """Base of datasets whose private, validation and public examples share one training file.

    Which examples are private follows from positions and seeds alone. The test set is the same for
    every split seed, so that nothing tuned under one seed has seen the test set of another.

    Attributes:
        training_file, test_file: number of examples in the real files.
        validation_file: the same, where the source has such a file; 0 where it has none.
        split_seed: which examples of the training file are for validation, training and public use.
        train_examples: how many of them are private; None takes all that are left.
        validation_examples: for validation, from the validation file if there is one.
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
        if self._held_out() + (self.train_examples or 1) > self.training_file:
            raise ValueError(
                "train_examples, validation_examples and public_examples together must be at most "
                f"{self.training_file}"
            )
        if self.validation_file and self.validation_examples > self.validation_file:
            raise ValueError(f"validation_examples must be at most {self.validation_file}")
        if (self.test_examples or 1) > self.test_file:
            raise ValueError(f"test_examples must be at most {self.test_file}")

    def _held_out(self) -> int:
        """Return how many examples of the training file are not private."""
        return self.public_examples + (0 if self.validation_file else self.validation_examples)

    def sizes(self) -> dict[str, int]:
        train = self.train_examples or self.training_file - self._held_out()
        test = self.test_examples or self.test_file
        sizes = (train, self.validation_examples, test, self.public_examples)
        return dict(zip(PARTS, sizes, strict=True))

    def positions(self, available: Mapping[str, int]) -> dict[str, Tensor]:
        """Return the positions of each part's examples in its file, int64 of shape (size,).

        Args:
            available: number of examples in the prepared file of each part. Public examples come
                from the training file, and so do those for validation without a validation file.

        Raises:
            UserError: there are fewer than requested.
        """
        import torch

        sizes = self.sizes()
        train, validation, test, public = (sizes[part] for part in PARTS)
        held_out = 0 if self.validation_file else validation
        self.require(train + held_out + public, available["train"], "training")
        self.require(test, available["test"], "test")
        self.require(validation, available["validation"], "validation")
        order = torch.randperm(available["train"], generator=generator("split", self.split_seed))
        fixed = {
            part: torch.randperm(available[part], generator=generator("split", 0))
            for part in ("validation", "test")
        }
        return {
            "train": order[held_out : held_out + train],
            "validation": order[:held_out] if held_out else fixed["validation"][:validation],
            "test": fixed["test"][:test],
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
            take: makes examples from all arrays, the part of the source, and the chosen rows of it.

        Raises:
            UserError: it is not prepared, or holds fewer examples than requested.
        """
        arrays, provenance = self.read(cache)
        files = {"train": "train", "public": "train", "test": self.test_part}
        files["validation"] = "validation" if self.validation_file else "train"
        rows = self.positions({part: len(arrays[f"{file}_labels"]) for part, file in files.items()})
        return Splits.build(
            lambda part: take(arrays, files[part], rows[part]), self.sizes(), provenance
        )

    def require(self, requested: int, available: int, file: str) -> None:
        """Raise UserError where a prepared file holds fewer examples than requested."""
        if requested > available:
            raise UserError(
                f"dataset.id: {self.id} asks for {requested} examples of the {file} file, but the "
                f"prepared one holds {available}; ask for fewer (train_examples, …) or prepare it "
                "again."
            )
