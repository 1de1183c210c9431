"""The contract of a dataset: fetch (network), prepare (into a cache), load (from the cache)."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Count, Natural
from clipnoise.plugins import lookup, plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from clipnoise.data.fetch import RemoteFile
    from clipnoise.data.rows import Rows
    from clipnoise.data.signature import Signature


@dataclass(frozen=True)
class Examples:
    """Examples of one split.

    Attributes:
        inputs: shape (n, …), dense or as rows that are made dense when taken.
        targets: shape (n, …), likewise; class indices int64 for classification.
    """

    inputs: Tensor | Rows
    targets: Tensor | Rows

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, chosen: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return the dense inputs and targets of some examples, each of shape (b, …)."""
        return self.inputs[chosen], self.targets[chosen]

    def dense(self) -> DenseExamples:
        """Return the same examples as plain tensors, all in memory."""
        return DenseExamples(*self.take(slice(None)))

    def to(self, device: str) -> Examples:
        """Return the same examples on a device."""
        return Examples(self.inputs.to(device), self.targets.to(device))


@dataclass(frozen=True)
class DenseExamples(Examples):
    """Examples as plain tensors."""

    inputs: Tensor
    targets: Tensor


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

    @classmethod
    def taken(
        cls,
        take: Callable[[str], Examples],
        sizes: Mapping[str, int],
        provenance: dict[str, str],
        users: Tensor | None = None,
    ) -> Splits:
        """Take each part once, in the order of the attributes; without a size nothing is public.

        Args:
            take: "train", "validation", "test" or "public" → the examples of that part.
            sizes: of the parts, as `Dataset.sizes` has them.
            provenance, users: as the attributes.
        """
        train, validation, test = (take(part) for part in ("train", "validation", "test"))
        public = take("public") if sizes["public"] else None
        return cls(train, validation, test, public, provenance, users)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Base of every dataset: a frozen dataclass with an `id` and its split options as fields.

    Attributes:
        split: how the parts are cut, in words.
        preprocessing: what becomes of an example on its way into a model, in words.
        files: what is downloaded, or put there by hand; none where the data come with a package.
        manual: what to do by hand before the files can be had: a licence, a login.
        raw: the folder of raw files, where datasets share one; empty for the id.
    """

    __pydantic_config__: ClassVar = STRICT
    id: ClassVar[str]
    title: ClassVar[str]
    licence: ClassVar[str]
    source: ClassVar[str]
    split: ClassVar[str]
    preprocessing: ClassVar[str]
    files: ClassVar[tuple[RemoteFile, ...]] = ()
    manual: ClassVar[str] = ""
    raw: ClassVar[str] = ""

    split_seed: Natural = 0

    @property
    def signature(self) -> Signature:
        """What an example looks like, and what is asked about it: public."""
        raise NotImplementedError

    @property
    def prepared(self) -> str:
        """Name of the folder in the cache; datasets that differ only in their splits share it."""
        return self.id

    @property
    def origin(self) -> str:
        """What its examples were cut from: two datasets of one origin may share some."""
        return self.raw or self.id

    def preparation(self) -> dict[str, Any]:
        """Return the options that decide what is prepared: with the id, enough to prepare it."""
        return {}

    @property
    def invocation(self) -> str:
        """What `clipnoise data prepare` is called with to prepare this."""
        options = self.preparation()
        if not options:
            return self.id
        return f"{self.id} --options {shlex.quote(json.dumps(options, separators=(',', ':')))}"

    def sizes(self) -> dict[str, int]:
        """Return the number of examples of each split: public, known before any download."""
        raise NotImplementedError

    def user_count(self) -> int | None:
        """Return N, the number of users whose the private examples are, or None: public."""
        return None

    def degree_bound(self) -> int | None:
        """Return K, how many other private examples can contain one, or None: public.

        For graph data an example is a node with its sampled in-neighbours; K bounds its out-degree.
        """
        return None

    def caveat(self) -> str | None:
        """Return why no ε of a run on these examples is a guarantee, in words, or None.

        Statistics of private examples that went into what the model sees, for one.
        """
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


@dataclass(frozen=True, kw_only=True)
class OfFourSizes(Dataset):
    """Base of datasets that are asked for a size of each part.

    Attributes:
        split_seed: which examples go where.
        train_examples: the private examples.
        validation_examples, test_examples, public_examples: of the other parts.
    """

    train_examples: Count
    validation_examples: Natural
    test_examples: Count
    public_examples: Natural = 0

    def sizes(self) -> dict[str, int]:
        return {
            "train": self.train_examples,
            "validation": self.validation_examples,
            "test": self.test_examples,
            "public": self.public_examples,
        }


def dataset_class(name: str, *, file: str | None = None) -> type[Dataset]:
    """Return the dataset class of an id, or raise UserError naming the nearest one."""
    return lookup("clipnoise.data", Dataset, "dataset", name, file=file)
