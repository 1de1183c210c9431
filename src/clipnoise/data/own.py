"""A user's own data: two files in a folder, described by the options of the dataset."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from clipnoise.data.base import ExampleGroups, Examples, Partitioned
from clipnoise.data.columns import ColumnRule, may_lack
from clipnoise.data.images import Scaled
from clipnoise.data.own_arrays import (
    as_categories,
    as_counts,
    as_images,
    as_numbers,
    as_tokens,
    finite,
    ids_of,
    joined,
    numbered_groups,
    numbered_labels,
    numbers_in,
    require_range,
)
from clipnoise.data.pictures import digest_of_pictures, name_files, read_pictures
from clipnoise.data.remote import digest
from clipnoise.data.rows import SPARSE, Rows, SparseRows, StoredRows
from clipnoise.data.several import Several
from clipnoise.data.signature import CATEGORIES, NUMBERS, Input, Kind, Signature
from clipnoise.data.tables import (
    USUAL,
    Layout,
    numbered_users,
    own_file,
    read_columns,
)
from clipnoise.errors import UserError
from clipnoise.fields import Count, Natural, to_plain, unhashed_at
from clipnoise.lazy import Tensor, np, torch
from clipnoise.privacy.units import User

CUT = (
    *("split_seed", "train_examples", "validation_examples", "validation_per_class"),
    *("public_examples", "test_examples"),
)
Form = Literal["features", "image", "tokens", "text", "words", "table"]
TEXTS = ("text", "words")
PREPROCESSING = "bytes of images divided by 255; tokens padded with 0"
Labels = tuple[str | int, ...]
SEEN_AS: dict[Form, Kind] = {
    "features": "features", "image": "image", "tokens": "tokens", "text": "tokens",
    "words": "features", "table": "several",
}  # fmt: skip


def _without_booleans(values: Any) -> Any:
    """Refuse what YAML makes of `no` and `yes`, which no file holds."""
    if isinstance(values, list | tuple) and any(isinstance(one, bool) for one in values):
        raise ValueError("YAML reads no, yes, off and on as false and true: write them in quotes")
    return values


@dataclass(frozen=True, kw_only=True)
class Own(Partitioned):
    """A training file and a test file, as CSV, TSV, Parquet or NumPy archives.

    They lie in `<cache>/raw/<name>` and are called train and test, with suffix .csv, .tsv, .parquet
    or .npz; a third one, validation, is optional. What the options say about them is public: a
    study is planned from it without the data, and the files are checked against it when they are
    prepared.

    Attributes:
        name: of the folder.
        inputs: the arrays or columns that make up an example: several of one number each, or one
            of lists, of arrays or of text.
        target: the array or column to predict; of tags and numbers, also several columns.
        kind: "features": numbers; "image": bytes 0 to 255, scaled to [0, 1], or floats as they
            are, or names of files of pictures, which are resized to `shape`, in grey or colour;
            "tokens": ids from 1, padded with 0 to the longest sequence; "text": ids of its tokens;
            "words": how often each hashed word occurs in a text, divided by its words; "table":
            numbers, and beside them the ids of the columns with categories, for a model that has a
            vector for each.
        shape: of an example: (features,), (channels, height, width), (longest,) for tokens and
            text, (hashed words,), (numbers,) of a table.
        channels: whether the file has the colours of a pixel "first" or "last", after its row and
            column; for images of several channels only.
        outputs: number of classes, tags or numbers to predict.
        classes: the labels in the file, in the order in which they are numbered; empty where they
            are the numbers from 0.
        task: what the target is: a class; tags as 0 and 1; or numbers.
        vocabulary: number of token ids, including 0; of a table, the ids of all its categories and
            of their missing values; for no other kind.
        tokenizer: of a text: the folder of a model below the weights folder; None hashes its words.
        training_file: examples in the training file.
        test_file: examples in the test file.
        validation_file: examples in the validation file; 0 where validation examples are cut from
            the training file.
        user: the array or column that says whose an example is: a method can then protect users
            with all their examples. No user is in two files.
        users: how many users the training file has: N, as public as n.
        columns: what becomes of a column of features or of a table; the others are numbers as they
            are.
        layout: how text files are written.
        groups: the array or column of the test file by whose values results on test examples are
            told apart; it is public, and need not be an input.
        validation_per_class: how many of the validation examples are of each class. This is as
            public as every size, and so no private example decides which others are private.
    """

    id = "own"
    title = "Your own data"
    licence = "yours"
    source = "your files"
    split = "your two files; validation and public from the training file"

    name: str = "own"
    inputs: tuple[str, ...] = ("inputs",)
    target: str | tuple[str, ...] = "target"
    kind: Form = "features"
    shape: tuple[Count, ...] = (1,)
    channels: Literal["first", "last"] | None = None
    outputs: Count = 2
    classes: Annotated[Labels, BeforeValidator(_without_booleans)] = ()
    task: Literal["classification", "multi-label", "regression"] = "classification"
    vocabulary: Count | None = None
    tokenizer: str | None = None
    training_file: Count = 1000  # type: ignore[misc]
    test_file: Count = 200  # type: ignore[misc]
    validation_file: Natural = 0  # type: ignore[misc]
    user: str | None = None
    users: Count | None = None
    columns: Mapping[str, ColumnRule] = field(default_factory=dict, hash=False)
    layout: Layout = USUAL
    groups: Annotated[str | None, unhashed_at(None)] = None
    validation_examples: Count = 100
    validation_per_class: tuple[Natural, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        image, ids = self.kind == "image", self.kind in ("tokens", "text", "table")
        many = sum(rule.width for rule in self.columns.values() if rule.categories)
        axes = 3 if image else 1
        coloured = image and len(self.shape) == 3 and self.shape[0] > 1
        classifies, named = self.task == "classification", len(self.classes)
        counts = self.validation_per_class
        sums = (len(counts), sum(counts)) == (self.outputs, self.validation_examples)
        cut = self.public_examples or self.train_examples
        cut = cut or (not self.validation_file and self.validation_examples)
        shared = [name for name in self.targets if name in self.inputs]
        unused = [name for name in self.columns if name not in self.inputs]
        for wrong, message in (
            (not re.fullmatch(r"[A-Za-z0-9_-]+", self.name),
             f"name must consist of letters, digits, - and _, got {self.name!r}"),
            (len(self.shape) != axes,
             f"shape must have {axes} numbers for {self.kind}, got {self.shape}"),
            (coloured and self.channels is None,
             "channels must say where the file has the colours of a pixel, first or last"),
            (self.channels is not None and not image, "channels is for images only"),
            ((self.vocabulary is None) == ids,
             "vocabulary must be given for tokens, text and tables, and for no other kind"),
            (self.kind == "table" and not self._categorical,
             "a table has columns with categories; without them, its kind is features"),
            (self.kind == "table" and self.vocabulary != many,
             f"vocabulary must be {many}, the categories of the table and their missing values"),
            (self.kind == "table" and len(self._categorical) == len(self.inputs),
             "a table has columns of numbers, too; with categories alone, its kind is features"),
            (self.tokenizer is not None and self.kind != "text", "tokenizer is for text only"),
            (named not in (0, self.outputs), f"classes are {named}, but outputs is {self.outputs}"),
            (named and not classifies, "classes are for classification only"),
            (len(set(map(str, self.classes))) < named, "classes must differ"),
            (counts and not (sums and classifies),
             "validation_per_class must have a number for each class, with validation_examples as "
             "their sum"),
            (counts and self.validation_file,
             "validation_per_class is for validation examples of the training file"),
            (shared, f"{' and '.join(shared)}: both an input and a target, which would be its own "
             "answer"),
            ((self.user is None) != (self.users is None), "user and users go together"),
            (self.user is not None and self.user in (*self.inputs, *self.targets),
             f"{self.user} says whose an example is, so it can be neither input nor target"),
            (self.user is not None and cut,
             "with users, validation examples come from a file of their own (validation_file), or "
             "there are none, and train_examples and public_examples are not given: a cut by rows "
             "would divide users"),
            (self.groups is not None and not classifies, "groups is for classification only"),
            (self.groups is not None and self.groups in (*self.targets, self.user),
             f"groups: {self.groups} is a target or the user"),
            (unused, f"columns: {', '.join(unused)}: no such input. "
             f"Allowed: {', '.join(self.inputs)}"),
            (self.columns and self.kind not in ("features", "table"),
             "columns is for features and tables only"),
            (len(self.targets) > 1 and (classifies or len(self.targets) != self.outputs),
             "several targets are the tags or the numbers to predict, as many as outputs says"),
        ):  # fmt: skip
            if wrong:
                raise ValueError(message)

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns to predict."""
        return (self.target,) if isinstance(self.target, str) else self.target

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(map(str, self.classes))

    @property
    def _categorical(self) -> tuple[str, ...]:
        """The columns with categories."""
        rules = self.columns
        return tuple(name for name in self.inputs if name in rules and rules[name].categories)

    @property
    def preprocessing(self) -> str:  # type: ignore[override]
        each = "id" if self.kind == "table" else "number"
        rules = [f"{name}: {rule.words(each)}" for name, rule in self.columns.items()]
        return "; ".join([PREPROCESSING, *rules])

    def user_unit(self) -> User | None:
        return None if self.users is None else User(count=self.users)

    @property
    def signature(self) -> Signature:
        kind = SEEN_AS[self.kind]
        if self.kind == "table":
            ids = Input(CATEGORIES, (len(self._categorical),), self.vocabulary)
            parts = (Input(NUMBERS, self.shape), ids)
            return Signature(kind, (), self.outputs, self.task, parts=parts)
        meaning = (self.tokenizer or "hashed words") if self.kind in TEXTS else ""
        return Signature(kind, self.shape, self.outputs, self.task, self.vocabulary, meaning)

    @property
    def prepared(self) -> str:
        text = json.dumps(self.preparation(), sort_keys=True)
        return f"own@{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def origin(self) -> str:
        return f"own@{self.name}"

    def preparation(self) -> dict[str, Any]:
        described = {
            name: value
            for name, value in to_plain(self).items()
            if name not in CUT and not (name == "groups" and value is None)
        }
        return {**described, "validation_examples": 1}  # the default may be more than there are

    def shuffled(self, labels: np.ndarray) -> Tensor:
        """Return the rows of the training file, those for validation first.

        Where classes have their shares, these are the first rows of each class: removing a private
        example, which is none of them, changes nothing else.
        """
        order = super().shuffled(labels)
        chosen = torch.zeros(len(order), dtype=torch.bool)
        for label, count in enumerate(self.validation_per_class):
            rows = torch.from_numpy(labels[order.numpy()] == label).nonzero()[:, 0]
            self.require(count, len(rows), f"class {label} of the training")
            chosen[rows[:count]] = True
        return torch.cat([order[chosen], order[~chosen]])

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        arrays: dict[str, np.ndarray] = {}
        raw: dict[str, dict[str, str]] = {}
        files = {"train": self.training_file, "test": self.test_file}
        files |= {"validation": self.validation_file} if self.validation_file else {}
        names = (*self.inputs, *self.targets, *([self.user] if self.user else ()))
        owners: dict[str, Any] = {}
        kinds: dict[str, bool] = {}
        for part, count in files.items():
            path = own_file(cache / "raw" / self.name, part)
            columns = read_columns(path, names, layout=self.layout, may_lack=may_lack(self.columns))
            try:
                for name, values in columns.items():
                    if len(values) != count:
                        raise ValueError(
                            f"{len(values):,} rows of {name}, but {count:,} are declared"
                        )
                arrays[f"{part}_labels"] = self._targets(columns)
                inputs = {name: columns[name] for name in self.inputs}
                found = self._prepared(path, inputs, cache, weights or cache.parent / "weights")
                arrays |= {f"{part}_{name}": values for name, values in found.items()}
            except ValueError as error:
                raise UserError(f"{path}: {error}.") from None
            if self.user is not None:
                owners[part] = numbered_users(path, columns[self.user])
                kinds[part] = np.asarray(columns[self.user]).dtype.kind in "iu"
            if part == "test" and self.groups is not None:
                arrays |= numbered_groups(path, self.groups, self.layout)
            raw[path.name] = {"sha256": digest(path, "sha256"), "checked against": "nothing"}
            if self.kind == "image" and name_files(files_of := columns[self.inputs[0]]):
                sha256 = digest_of_pictures(path.parent, files_of)
                raw[f"pictures of {path.name}"] = {"sha256": sha256, "checked against": "nothing"}
        if len(set(kinds.values())) > 1:  # 007 would be 7 in one file alone
            numbers = [part for part, whole in kinds.items() if whole]
            raise UserError(
                f"{self.name}: the column {self.user} has whole numbers alone in the file "
                f"{numbers[0]}, but not in all files, so users could not be told apart. Write each "
                "user as a text in all of them, such as u007."
            )
        if owners:
            arrays["train_users"] = self._owners(owners)
        self.write(cache, arrays, **{"raw files": raw})

    def _owners(self, found: Mapping[str, tuple[np.ndarray, list[str]]]) -> np.ndarray:
        """Return the user of each row of the training file, int64 of shape (n,).

        Raises:
            UserError: a user has rows in two files, or there are more or fewer than declared.
        """
        seen: dict[str, str] = {}
        for part, (_, names) in found.items():
            for name in names:
                if seen.setdefault(name, part) != part:
                    raise UserError(
                        f"{self.name}: the user {name!r} has rows in the files {seen[name]} and "
                        f"{part}. All rows of a user belong into one file: `clipnoise data "
                        "describe --user --split` cuts a file in this way."
                    )
        numbers, names = found["train"]
        if len(names) != self.users:
            raise UserError(
                f"{self.name}: the training file has {len(names):,} users, but {self.users:,} are "
                "declared."
            )
        return numbers

    def _prepared(
        self, path: Path, inputs: Mapping[str, Any], cache: Path, weights: Path
    ) -> dict[str, np.ndarray]:
        """Return inputs as stored: one array of shape (n, *shape), or counts of hashed words."""
        columns = list(inputs.values())
        longest, vocabulary = self.shape[0], self.vocabulary or 0
        if self.kind in ("tokens", *TEXTS) and len(columns) != 1:
            raise ValueError(f"inputs of {self.kind} are one array or one column")
        if self.kind == "words":
            return as_counts(columns[0], self.shape[0], cache)
        if self.kind == "text":
            ids = ids_of(columns[0], longest, vocabulary, self.tokenizer, weights)
            columns = [list(ids)]
        if SEEN_AS[self.kind] == "tokens":
            return {"inputs": as_tokens(columns[0], longest, vocabulary)}
        if self.kind == "table":
            chosen = {name: inputs[name] for name in self._categorical}
            numbers = {name: one for name, one in inputs.items() if name not in chosen}
            return {
                NUMBERS: as_numbers(joined(numbers, self.columns), self.shape),
                CATEGORIES: as_categories(chosen, self.columns),
            }
        if self.kind == "image" and name_files(columns[0]):
            if len(columns) != 1:
                raise ValueError("pictures in files are one column of names")
            return {"inputs": read_pictures(path.parent, columns[0], self.shape)}
        values = joined(inputs, self.columns)
        if self.kind == "image":
            return {"inputs": as_images(path, values, self.shape, self.channels)}
        return {"inputs": as_numbers(values, self.shape)}

    def _targets(self, columns: Mapping[str, Any]) -> np.ndarray:
        """Return targets as stored."""
        if self.task == "classification":
            (name,) = self.targets
            numbers = numbered_labels(name, columns[name], self.classes)
            if numbers.dtype.kind == "f" and (numbers == np.round(numbers)).all():
                numbers = numbers.astype("int64")
            if numbers.ndim != 1 or numbers.dtype.kind not in "iub":
                raise ValueError(f"{name} must hold one whole number per example")
            require_range("the label", numbers, self.outputs)
            return numbers.astype("int64")
        called, several = ", ".join(self.targets), len(self.targets) > 1
        arrays = [numbers_in(columns[name], name) for name in self.targets]
        numbers = np.column_stack(arrays) if several else arrays[0]
        wanted = (len(numbers), self.outputs)
        if numbers.shape != wanted and (numbers.ndim != 1 or self.outputs != 1):
            raise ValueError(f"{called} has shape {numbers.shape}, but {wanted} is declared")
        floats = finite(called, numbers.reshape(wanted))
        if self.task == "multi-label" and not ((floats == 0) | (floats == 1)).all():
            raise ValueError(f"{called} must hold 0 and 1 only")
        return floats

    def examples_of(self, arrays: dict[str, np.ndarray], part: str, rows: Tensor) -> Examples:
        return Examples(
            self.inputs_of(arrays, part, rows), StoredRows(arrays[f"{part}_labels"], rows)
        )

    def groups_of(
        self, arrays: Mapping[str, np.ndarray], part: str, rows: Tensor
    ) -> ExampleGroups | None:
        if self.groups is None:
            return None
        names, numbers = tuple(arrays["group_names"].tolist()), arrays["test_groups"]
        return ExampleGroups(names, torch.from_numpy(numbers[rows.numpy()]))

    def inputs_of(self, arrays: dict[str, np.ndarray], part: str, rows: Tensor) -> Rows | Several:
        if self.kind == "table":
            names = (NUMBERS, CATEGORIES)
            stored = {name: StoredRows(arrays[f"{part}_{name}"], rows, _wide) for name in names}
            return Several(stored)
        if self.kind == "words":
            starts, columns, values = (arrays[f"{part}_{name}"] for name in SPARSE)
            return SparseRows(starts, columns, values, self.shape[0], rows)
        found = arrays[f"{part}_inputs"]
        return StoredRows(found, rows, Scaled() if found.dtype == "uint8" else _wide)

    def inputs_in(self, path: Path, weights: Path) -> Rows | Several:
        """Return the inputs of another file as a model sees them; it needs no target.

        Raises:
            UserError: the file is damaged, or its inputs are not as they were described.
        """
        columns = read_columns(
            path, self.inputs, layout=self.layout, may_lack=may_lack(self.columns)
        )
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = self._prepared(path, columns, Path(folder), weights)
            except ValueError as error:
                raise UserError(f"{path}: {error}.") from None
            arrays = {f"new_{name}": np.array(values) for name, values in found.items()}
        count = len(next(iter(columns.values())))
        return self.inputs_of(arrays, "new", torch.arange(count))


def _wide(taken: Tensor) -> Tensor:
    """Widen token ids to int64, which embeddings take; leave floats."""
    return taken if taken.is_floating_point() else taken.long()
