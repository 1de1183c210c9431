"""The contract of a dataset: fetch (network), prepare (into a cache), load (from the cache)."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from clipnoise.data.cache import read_arrays, read_manifest, write_arrays
from clipnoise.data.remote import RawFiles, RemoteFile
from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Natural
from clipnoise.plugins import lookup, plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from torch import Tensor

    from clipnoise.data.rows import Rows
    from clipnoise.data.signature import Signature


PARTS = ("train", "validation", "test", "public")


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
    """A dataset, split into four parts that share no example.

    Attributes:
        train: the private examples; their number is the accountant's n.
        validation: for tuning; taken from the training file, never from the test set.
        test: for reported numbers only.
        public: examples without a privacy claim, or None.
        provenance: where each part came from, as plain data for the result file.
        users: the user of each private example, int64 of shape (n,) with values 0 … N−1; None where
            examples have no user ids.
    """

    train: Examples
    validation: Examples
    test: Examples
    public: Examples | None
    provenance: dict[str, str]
    users: Tensor | None = None

    @classmethod
    def build(
        cls,
        take: Callable[[str], Examples],
        sizes: Mapping[str, int],
        provenance: dict[str, str],
        users: Tensor | None = None,
    ) -> Splits:
        """Take each part once, in the order of the attributes, which random draws depend on.

        Args:
            take: one of `PARTS` → the examples of that part.
            sizes: of the parts, as `Dataset.sizes` returns them; nothing is public at size 0.
            provenance, users: as the attributes.
        """
        train, validation, test = (take(part) for part in PARTS[:3])
        public = take("public") if sizes["public"] else None
        return cls(train, validation, test, public, provenance, users)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Base of every dataset: a frozen dataclass with an `id` and its split options as fields.

    Attributes:
        split: how the parts are cut, in words.
        preprocessing: how an example is changed before a model sees it, in words.
        files: what is downloaded or put in place by hand; empty where the data come with a package.
        manual: what to do by hand before the files can be had: a licence, a login.
        raw: the folder of raw files, where datasets share one; empty for the id.
        prepared_with: names of the options that decide what is prepared.
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
    prepared_with: ClassVar[tuple[str, ...]] = ()

    split_seed: Natural = 0

    @property
    def signature(self) -> Signature:
        """What an example looks like, and the task: public."""
        raise NotImplementedError

    def sizes(self) -> dict[str, int]:
        """Return the number of examples of each of `PARTS`: public, known before any download."""
        raise NotImplementedError

    def prepare(self, cache: Path) -> None:
        """Write the dataset into the cache, deterministically and atomically."""
        raise NotImplementedError

    def load(self, cache: Path) -> Splits:
        """Read the splits from the cache, memory-mapped.

        Raises:
            UserError: the cache does not hold the dataset; the message says how to prepare it.
        """
        raise NotImplementedError

    @property
    def origin(self) -> str:
        """What its examples were cut from: two datasets of one origin may share some."""
        return self.raw or self.id

    def user_count(self) -> int | None:
        """Return N, the number of users who own the private examples, or None: public."""
        return None

    def degree_bound(self) -> int | None:
        """Return K, how many other private examples can contain one, or None: public.

        For graph data an example is a node with its sampled in-neighbours; K bounds its out-degree.
        """
        return None

    def caveat(self) -> str | None:
        """Return why no ε of a run on these examples is a guarantee, in words, or None.

        For instance because the preprocessing uses statistics of private examples.
        """
        return None

    def require_users(self, method: str) -> int:
        """Return N for a method that protects users.

        Raises:
            UserError: the examples have no user ids; names the datasets with users.
        """
        count = self.user_count()
        if count is None:
            known = plugins("clipnoise.data", Dataset)
            fitting = [name for name, kind in known.items() if kind().user_count() is not None]
            raise UserError(
                f"dataset.id: {method} protects users, but the examples of {self.id} have no user "
                f"ids. Datasets with users: {', '.join(fitting)}."
            )
        return count

    def preparation(self) -> dict[str, Any]:
        """Return the options that decide what is prepared: with the id, enough to prepare it."""
        return {name: getattr(self, name) for name in self.prepared_with}

    @property
    def prepared(self) -> str:
        """Name of the folder in the cache; datasets that differ only in their splits share it."""
        options = "-".join(str(value) for value in self.preparation().values())
        return f"{self.id}@{options}" if options else self.id

    @property
    def invocation(self) -> str:
        """The arguments with which `clipnoise data prepare` prepares this dataset."""
        options = self.preparation()
        if not options:
            return self.id
        return f"{self.id} --options {shlex.quote(json.dumps(options, separators=(',', ':')))}"

    def raw_files(self, cache: Path) -> RawFiles:
        """Return its raw files, present or not, in `<cache>/raw/<raw, or the id>/`."""
        return RawFiles(
            folder=cache / "raw" / (self.raw or self.id),
            files=self.files,
            manual=self.manual,
            command=f"clipnoise data {{}} {self.id} --cache {cache}",
            instead=f"clipnoise data prepare {self.id} --unverified --cache {cache}",
        )

    def write(self, cache: Path, arrays: Mapping[str, np.ndarray], **facts: Any) -> None:
        """Write prepared arrays into the cache, with a manifest.

        Args:
            cache: the folder of prepared datasets.
            arrays: by name.
            facts: what the manifest records besides what it records of every dataset.

        Raises:
            UserError: a raw file is missing, or the cache cannot be written.
        """
        raw = {
            name: {"sha256": file.sha256, "checked against": file.checked}
            for name, file in self.raw_files(cache).compare().items()
        }
        manifest = {
            "dataset": self.id,
            "title": self.title,
            "source": self.source,
            "licence": self.licence,
            "split": self.split,
            "preprocessing": self.preprocessing,
            **({"raw files": raw} if raw else {}),
        }
        write_arrays(cache / self.prepared, arrays, {**manifest, **facts})

    def read(self, cache: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Return the prepared arrays by name, memory-mapped, and the provenance of the dataset.

        Raises:
            UserError: it is not prepared, or is damaged; the message says how to prepare it.
        """
        folder = cache / self.prepared
        arrays = read_arrays(folder, self.invocation)
        return arrays, read_manifest(folder, self.invocation).provenance()


def dataset_class(name: str, *, file: str | None = None) -> type[Dataset]:
    """Return the dataset class of an id, or raise UserError naming the nearest one."""
    return lookup("clipnoise.data", Dataset, "dataset", name, file=file)
