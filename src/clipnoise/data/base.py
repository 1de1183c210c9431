"""The contract of a dataset: fetch (network), prepare (into a cache), load (from the cache)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from clipnoise.data.cache import read_arrays, read_manifest, write_arrays
from clipnoise.data.remote import RawFiles, RemoteFile
from clipnoise.data.rows import Rows, StoredRows
from clipnoise.data.several import Inputs, Several
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Count, Natural
from clipnoise.lazy import Tensor, np, torch
from clipnoise.plugins import lookup, plugins
from clipnoise.privacy.units import Example, Unit, User
from clipnoise.seeds import generator

PARTS = ("train", "validation", "test", "public")


@dataclass(frozen=True)
class Examples:
    """Examples of one split.

    Attributes:
        inputs: shape (n, …), dense or as rows that are made dense when taken; or several of these.
        targets: shape (n, …), likewise; class indices int64 for classification.
    """

    inputs: Inputs | Rows
    targets: Tensor | Rows

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, chosen: Tensor | slice) -> tuple[Inputs, Tensor]:
        """Return the dense inputs and targets of some examples, each of shape (b, …)."""
        return self.inputs[chosen], self.targets[chosen]

    def seen(self, chosen: Tensor, key: int) -> tuple[Inputs, Tensor]:
        """Return some examples as a training step sees them: as for `Rows.seen`."""
        inputs = self.inputs
        if isinstance(inputs, Rows | Several):
            return inputs.seen(chosen, key), self.targets[chosen]
        return inputs[chosen], self.targets[chosen]

    def dense(self) -> DenseExamples:
        """Return the same examples, of one input each, as plain tensors, all in memory."""
        inputs, targets = self.take(slice(None))
        assert not isinstance(inputs, Several)
        return DenseExamples(inputs, targets)

    def to(self, device: str) -> Examples:
        """Return the same examples on a device."""
        return Examples(self.inputs.to(device), self.targets.to(device))


@dataclass(frozen=True)
class DenseExamples(Examples):
    """Examples as plain tensors, of one input each."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class ExampleGroups:
    """To which group of people or things each test example belongs, by a public column.

    Attributes:
        names: of the groups.
        of: the number of each example's group, int64 of shape (n,).
    """

    names: tuple[str, ...]
    of: Tensor


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
        groups: those of the test examples, for results by group; None without any.
    """

    train: Examples
    validation: Examples
    test: Examples
    public: Examples | None
    provenance: dict[str, str]
    users: Tensor | None = None
    groups: ExampleGroups | None = None

    @classmethod
    def build(
        cls,
        take: Callable[[str], Examples],
        sizes: Mapping[str, int],
        provenance: dict[str, str],
        users: Tensor | None = None,
        groups: ExampleGroups | None = None,
    ) -> Splits:
        """Take each part once, in the order of the attributes, which random draws depend on.

        Args:
            take: one of `PARTS` → the examples of that part.
            sizes: of the parts, as `Dataset.sizes` returns them; nothing is public at size 0.
            provenance, users, groups: as the attributes.
        """
        train, validation, test = (take(part) for part in PARTS[:3])
        public = take("public") if sizes["public"] else None
        return cls(train, validation, test, public, provenance, users, groups)


@dataclass(frozen=True)
class TokenCounts:
    """How often each feature, or token id, occurs in public text.

    Attributes:
        occurrences: int64 of shape (features,).
        texts_with: in how many texts each occurs, int64 of shape (features,).
        texts: the number of texts.
    """

    occurrences: np.ndarray
    texts_with: np.ndarray
    texts: int

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the counts as arrays to be prepared; `Dataset.token_counts` reads them."""
        return {
            "public_counts": np.stack([self.occurrences, self.texts_with]).astype("int64"),
            "public_texts": np.array([self.texts], "int64"),
        }


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Base of every dataset: a frozen dataclass with an `id` and its split options as fields.

    A class with a `reader` in place of an `id` reads files whose facts a YAML file gives:
    `clipnoise.data.described`.

    Attributes:
        split: how the parts are cut, in words.
        preprocessing: how an example is changed before a model sees it, in words.
        files: what is downloaded or put in place by hand; empty where the data come with a package.
        manual: what to do by hand before the files can be had: a licence, a login.
        pieces: the files, or the members of an archive, that make up each part of the source.
        raw: the folder of raw files, where datasets share one; empty for the id.
        cut_from: the dataset whose examples these are, too; empty where there is none.
        prepared_with: names of the options that decide what is prepared.
        facts: what a YAML file says of it.
        described_in: that file.
    """

    __pydantic_config__: ClassVar = STRICT
    needs: ClassVar[tuple[str, ...]] = ("signature", "sizes", "prepare", "load")
    id: ClassVar[str]
    title: ClassVar[str]
    licence: ClassVar[str]
    source: ClassVar[str]
    split: ClassVar[str]
    preprocessing: ClassVar[str]
    files: ClassVar[tuple[RemoteFile, ...]] = ()
    manual: ClassVar[str] = ""
    pieces: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    raw: ClassVar[str] = ""
    cut_from: ClassVar[str] = ""
    prepared_with: ClassVar[tuple[str, ...]] = ()
    reader: ClassVar[str] = ""
    facts: ClassVar[Mapping[str, Any]] = {}
    described_in: ClassVar[Path | None] = None

    split_seed: Natural = 0

    @property
    def signature(self) -> Signature:
        """What an example looks like, and the task: public."""
        raise NotImplementedError

    def sizes(self) -> dict[str, int]:
        """Return the number of examples of each of `PARTS`: public, known before any download."""
        raise NotImplementedError

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        """Write the dataset into the cache, deterministically and atomically.

        Args:
            cache: the folder of prepared datasets.
            weights: of pretrained models, whose tokenizers some need; None for `weights` beside it.

        Raises:
            UserError: a raw file or the tokenizer is missing or damaged.
        """
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
        return self.cut_from or self.raw or self.id

    @property
    def class_names(self) -> tuple[str, ...]:
        """What its classes are called, where they have names: public."""
        return ()

    def unit(self) -> Unit:
        """Return what an example is, as a unit that is drawn, clipped and protected: public."""
        return Example(count=self.sizes()["train"])

    def user_unit(self) -> User | None:
        """Return the users who own the private examples, or None: public."""
        return None

    def caveat(self) -> str | None:
        """Return why no ε of a run on these examples is a guarantee, in words, or None.

        For instance because the preprocessing uses statistics of private examples.
        """
        return None

    def counted_in(self) -> str | None:
        """Return the public text in which its tokens are counted, in words, or None.

        It holds no private example: side information that it gives costs no ε.
        """
        return None

    def token_counts(self, cache: Path) -> TokenCounts:
        """Return how often each feature, or token id, occurs in the text of `counted_in`.

        Raises:
            UserError: it is not prepared, or was prepared without counts.
        """
        arrays, _ = self.read(cache)
        if "public_counts" not in arrays:
            raise UserError(
                f"{cache / self.prepared}: holds no counts of public text. Prepare it again: "
                f"clipnoise data prepare {self.invocation} --cache {cache}"
            )
        occurrences, texts_with = arrays["public_counts"]
        return TokenCounts(occurrences, texts_with, int(arrays["public_texts"][0]))

    def without_users(self, method: str) -> UserError:
        """Return the error that a method protects users; it names the datasets that have some."""
        known = plugins("clipnoise.data", Dataset)
        fitting = [name for name, kind in known.items() if kind().user_unit() is not None]
        return UserError(
            f"dataset.id: {method} protects users, but the examples of {self.id} have no user ids. "
            f"Datasets with users: {', '.join(fitting)}."
        )

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

    def require_pieces(self, *parts: str) -> None:
        """Raise ValueError where no file makes up one of these parts of the source."""
        for part in parts:
            if not self.pieces.get(part):
                raise ValueError(f"files: none is of the part {part!r}")

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
        names = ("title", "source", "licence", "split", "preprocessing")
        manifest = {"dataset": self.id, **{name: getattr(self, name) for name in names}}
        manifest |= {"raw files": raw} if raw else {}
        write_arrays(cache / self.prepared, arrays, manifest | facts)

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
        persons: whose the training file is, each the user of their examples; 0 without such ids.
        split_seed: which examples of the training file are for validation, training and public use.
        train_examples: how many of them are private; None takes all that are left.
        validation_examples: for validation, from the validation file if there is one.
        public_examples: how many are treated as public.
        test_examples: how many of the test file are used, the same for every split; None takes all.
    """

    training_file: ClassVar[int]
    test_file: ClassVar[int]
    validation_file: ClassVar[int] = 0
    persons: ClassVar[int] = 0

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

    def user_unit(self) -> User | None:
        if not self.persons:
            return None
        shared = {"public": "public_examples: 0"} if self.sizes()["public"] else {}
        return User(count=self.persons, shared=shared)

    def shuffled(self, labels: np.ndarray) -> Tensor:
        """Return the rows of the training file, shape (n,), as parts are cut: validation first.

        Args:
            labels: of the training file, shape (n, …).
        """
        return torch.randperm(len(labels), generator=generator("split", self.split_seed))

    def positions(self, available: Mapping[str, int], order: Tensor) -> dict[str, Tensor]:
        """Return the positions of each part's examples in its file, int64 of shape (size,).

        Args:
            available: number of examples in the prepared file of each part. Public examples come
                from the training file, and so do those for validation without a validation file.
            order: of the training file, int64 of shape (available["train"],).

        Raises:
            UserError: there are fewer than requested.
        """
        train, validation, test, public = (self.sizes()[part] for part in PARTS)
        held_out = 0 if self.validation_file else validation
        self.require(train + held_out + public, available["train"], "training")
        self.require(test, available["test"], "test")
        self.require(validation, available["validation"], "validation")
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

    def load(self, cache: Path) -> Splits:
        """Cut what is prepared into the parts.

        `<part>_labels` has a row for each example; `train_users`, if it is there, the user of each.

        Raises:
            UserError: it is not prepared, or holds fewer examples than requested.
        """
        arrays, provenance = self.read(cache)
        files = {"train": "train", "public": "train", "test": self.test_part}
        files["validation"] = "validation" if self.validation_file else "train"
        available = {part: len(arrays[f"{file}_labels"]) for part, file in files.items()}
        rows = self.positions(available, self.shuffled(arrays["train_labels"]))
        owners = arrays.get("train_users")
        users = None if owners is None else torch.from_numpy(owners[rows["train"].numpy()])

        def take(part: str) -> Examples:
            return self.examples_of(arrays, files[part], rows[part])

        groups = self.groups_of(arrays, files["test"], rows["test"])
        return Splits.build(take, self.sizes(), provenance, users, groups)

    def groups_of(
        self, arrays: Mapping[str, np.ndarray], part: str, rows: Tensor
    ) -> ExampleGroups | None:
        """Return the groups of test examples; the arguments are those of `examples_of`."""
        return None

    def examples_of(self, arrays: dict[str, np.ndarray], part: str, rows: Tensor) -> Examples:
        """Return some examples of what is prepared; by default their labels are classes.

        Args:
            arrays: all that are prepared, by name.
            part: of the source.
            rows: the chosen rows of that part, int64 of shape (n,).
        """
        labels = torch.from_numpy(arrays[f"{part}_labels"][rows.numpy()].astype("int64"))
        return Examples(self.inputs_of(arrays, part, rows), labels)

    def inputs_of(self, arrays: dict[str, np.ndarray], part: str, rows: Tensor) -> Rows | Several:
        """Return their inputs; by default the rows of `<part>_inputs`."""
        return StoredRows(arrays[f"{part}_inputs"], rows)

    def require(self, requested: int, available: int, file: str) -> None:
        """Raise UserError where a prepared file holds fewer examples than requested."""
        if requested > available:
            raise UserError(
                f"dataset.id: {self.id} asks for {requested} examples of the {file} file, but the "
                f"prepared one holds {available}; ask for fewer (train_examples, …) or prepare it "
                "again."
            )
