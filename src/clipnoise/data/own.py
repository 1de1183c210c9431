"""A user's own data: two files in a folder, described by the options of the dataset."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from clipnoise.data.base import ExampleGroups, Examples, Partitioned
from clipnoise.data.columns import ColumnRule, may_lack
from clipnoise.data.images import Scaled
from clipnoise.data.pictures import digest_of_pictures, name_files, read_pictures
from clipnoise.data.remote import digest
from clipnoise.data.rows import SPARSE, RaggedWriter, Rows, SparseRows, StoredRows
from clipnoise.data.several import Several
from clipnoise.data.signature import CATEGORIES, NUMBERS, Input, Kind, Signature
from clipnoise.data.tables import (
    DECIMAL_COMMA,
    USUAL,
    Layout,
    numbered_users,
    own_file,
    read_columns,
)
from clipnoise.data.text import Tokenizer
from clipnoise.errors import UserError, nearest
from clipnoise.fields import Count, Natural, to_plain, unhashed_at
from clipnoise.lazy import Tensor, np, torch
from clipnoise.privacy.units import User

logger = logging.getLogger(__name__)

CUT = (
    *("split_seed", "train_examples", "validation_examples", "validation_per_class"),
    *("public_examples", "test_examples"),
)
Form = Literal["features", "image", "tokens", "text", "words", "table"]
TEXTS = ("text", "words")
MISSING, MOST_GROUPS = "missing", 50  # of groups of test examples
PREPROCESSING = "bytes of images divided by 255; tokens padded with 0"
Labels = tuple[str | int, ...]
LARGEST = 1e18  # squares of larger numbers are infinite in float32, and so are their norms
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
            if part == "test" and self.groups is not None:
                arrays |= _numbered_groups(path, self.groups, self.layout)
            raw[path.name] = {"sha256": digest(path, "sha256"), "checked against": "nothing"}
            if self.kind == "image" and name_files(files_of := columns[self.inputs[0]]):
                sha256 = digest_of_pictures(path.parent, files_of)
                raw[f"pictures of {path.name}"] = {"sha256": sha256, "checked against": "nothing"}
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
        if self.kind in ("tokens", *TEXTS) and len(columns) != 1:
            raise ValueError(f"inputs of {self.kind} are one array or one column")
        if self.kind == "words":
            return self._counts(columns[0], cache)
        if self.kind == "text":
            columns = [list(self._ids(columns[0], weights))]
        if SEEN_AS[self.kind] == "tokens":
            return {"inputs": self._tokens(columns[0])}
        if self.kind == "table":
            numbers = {name: one for name, one in inputs.items() if name not in self._categorical}
            return {NUMBERS: self._numbers(numbers), CATEGORIES: self._categories(inputs)}
        if self.kind == "image" and name_files(columns[0]):
            if len(columns) != 1:
                raise ValueError("pictures in files are one column of names")
            return {"inputs": read_pictures(path.parent, columns[0], self.shape)}
        if self.kind == "image":
            return {"inputs": self._images(path, self._joined(inputs))}
        return {"inputs": self._numbers(inputs)}

    def _joined(self, inputs: Mapping[str, Any]) -> np.ndarray:
        """Return arrays, or columns by their rules, as one array of shape (n, …)."""
        arrays = [self.columns[name].numbers(name, values) if name in self.columns
                  else numbers_in(values, name)
                  for name, values in inputs.items()]  # fmt: skip
        return arrays[0] if len(arrays) == 1 else np.column_stack(arrays)

    def _numbers(self, inputs: Mapping[str, Any]) -> np.ndarray:
        """Return inputs as float32 of shape (n, *shape)."""
        joined = self._joined(inputs)
        if math.prod(joined.shape[1:]) != math.prod(self.shape):
            raise ValueError(f"inputs of shape {joined.shape[1:]}, but {self.shape} is declared")
        return _finite("inputs", joined.reshape(-1, *self.shape))

    def _categories(self, inputs: Mapping[str, Any]) -> np.ndarray:
        """Return the ids of the columns with categories, int32 of shape (n, columns).

        The ids of a column follow those of the column before it.
        """
        rules = [self.columns[name] for name in self._categorical]
        first = np.cumsum([0, *(rule.width for rule in rules[:-1])])
        ids = [rule.ids(name, inputs[name])
               for name, rule in zip(self._categorical, rules, strict=True)]  # fmt: skip
        joined: np.ndarray = np.column_stack(ids) + first
        return joined.astype("int32")

    def _images(self, path: Path, images: np.ndarray) -> np.ndarray:
        """Return images with their channels first, as bytes or floats."""
        channels, height, width = self.shape
        first, last = (channels, height, width), (height, width, channels)
        stored = last if self.channels == "last" else first
        either = {first, last, (height, width)} if channels == 1 else set()
        if images.shape[1:] not in {stored, (math.prod(stored),), *either}:
            where = f" with channels {self.channels}" if self.channels else ""
            raise ValueError(f"images of shape {images.shape[1:]}, but {stored}{where} is declared")
        images = images.reshape(-1, *stored)
        images = np.moveaxis(images, -1, 1) if self.channels == "last" else images
        if images.dtype.kind in "iu":
            _require_range("the pixel", images, 256)
            return images.astype("uint8")
        if images.max(initial=0) > 1:
            logger.warning(
                "%s: pixels are floats of up to %g, and are left as they are. Whole numbers from 0 "
                "to 255 would be scaled to [0, 1].", path, images.max()
            )  # fmt: skip
        return _finite("inputs", images)

    def _tokens(self, rows: Any) -> np.ndarray:
        """Return token ids, int32 of shape (n, longest), padded with 0."""
        assert self.vocabulary is not None
        padded = np.zeros((len(rows), *self.shape), dtype="int64")
        for number, row in enumerate(rows):
            ids = numbers_in(row, f"row {number}") if len(row) else np.zeros(0, "int64")
            if ids.ndim != 1 or ids.dtype.kind not in "iu" or len(ids) > len(padded[number]):
                raise ValueError(f"row {number} is not a list of up to {self.shape[0]} token ids")
            padded[number, : len(ids)] = ids
        _require_range("the token id", padded, self.vocabulary)
        return padded.astype("int32")

    def _ids(self, texts: Any, weights: Path) -> Iterator[np.ndarray]:
        """Yield the token ids of each text, of its hashed words if there is no tokenizer."""
        longest, vocabulary = self.shape[0], self.vocabulary or 0
        found = words_of(texts)
        if self.tokenizer is None:
            for words in found:
                yield 1 + _hashed(words[:longest], vocabulary - 1)
        else:
            tokenizer = Tokenizer(self.tokenizer, weights, longest, vocabulary)
            yield from tokenizer.encode((text,) for text, _ in zip(texts, found, strict=True))

    def _counts(self, texts: Any, cache: Path) -> dict[str, np.ndarray]:
        """Return the hashed words of all texts, and how often each occurs, as sparse rows."""
        bags = RaggedWriter(cache, "int32", "float32")
        for words in words_of(texts):
            places, counts = np.unique(_hashed(words, self.shape[0]), return_counts=True)
            bags.append(places, counts / max(len(words), 1))
        return dict(zip(SPARSE, bags.arrays(), strict=True))

    def _targets(self, columns: Mapping[str, Any]) -> np.ndarray:
        """Return targets as stored."""
        if self.task == "classification":
            (name,) = self.targets
            numbers = self._numbered(name, columns[name])
            if numbers.dtype.kind == "f" and (numbers == np.round(numbers)).all():
                numbers = numbers.astype("int64")
            if numbers.ndim != 1 or numbers.dtype.kind not in "iub":
                raise ValueError(f"{name} must hold one whole number per example")
            _require_range("the label", numbers, self.outputs)
            return numbers.astype("int64")
        called, several = ", ".join(self.targets), len(self.targets) > 1
        arrays = [numbers_in(columns[name], name) for name in self.targets]
        numbers = np.column_stack(arrays) if several else arrays[0]
        wanted = (len(numbers), self.outputs)
        if numbers.shape != wanted and (numbers.ndim != 1 or self.outputs != 1):
            raise ValueError(f"{called} has shape {numbers.shape}, but {wanted} is declared")
        floats = _finite(called, numbers.reshape(wanted))
        if self.task == "multi-label" and not ((floats == 0) | (floats == 1)).all():
            raise ValueError(f"{called} must hold 0 and 1 only")
        return floats

    def _numbered(self, name: str, labels: Any) -> np.ndarray:
        """Return labels as numbers: their places among the classes, where these are named."""
        require_labels(name, labels)
        if not self.classes:
            if any(isinstance(label, str) for label in labels):
                raise ValueError(
                    f"{name} holds text: name its classes in the study, in the order in "
                    f"which they are to be numbered: classes: [{', '.join(labels_in(labels)[:9])}]"
                )
            return numbers_in(labels, name)
        place = {str(label): number for number, label in enumerate(self.classes)}
        for label in labels_in(labels):
            if label not in place:
                allowed = ", ".join(place)
                raise ValueError(
                    f"the label {label!r} is no class.{nearest(label, place)} classes: {allowed}"
                )
        return np.array([place[text] for text in as_labels(labels)])

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


def _numbered_groups(path: Path, column: str, layout: Layout) -> dict[str, np.ndarray]:
    """Return the names of the groups of a file, and the number of each row's group.

    A row without a value is in a group of its own.

    Raises:
        UserError: the column holds no names and no whole numbers, or too many different ones.
    """
    (values,) = read_columns(path, (column,), layout=layout, may_lack=(column,)).values()
    rows = [MISSING if one is None or one == "" or one != one else one for one in values]
    names, numbers = np.unique(as_labels(np.array(rows, dtype=object)), return_inverse=True)
    if len(names) > MOST_GROUPS or any(isinstance(one, float) and one % 1 for one in rows):
        raise UserError(
            f"{path}: groups: {column} has {len(names):,} different values. Give a column of names "
            f"or whole numbers, at most {MOST_GROUPS} of them."
        )
    return {"group_names": names, "test_groups": numbers.astype("int64")}


def labels_in(values: Any) -> list[str]:
    """Return the different labels of a column, as text, in order."""
    kinds = np.unique(np.asarray(values))
    return as_labels(kinds)


def as_labels(values: Any) -> list[str]:
    """Return labels as text; the whole number 2 and the float 2.0 are the label 2."""
    return [str(int(one)) if _is_whole(one) else str(one) for one in np.asarray(values).tolist()]


def _is_whole(value: object) -> bool:
    return isinstance(value, float) and value.is_integer()


def require_labels(name: str, labels: Any) -> None:
    """Raise ValueError where a label is missing: it is no class of its own."""
    for row, label in enumerate(labels):
        if label is None or label == "" or label != label:
            raise ValueError(f"{name}: a missing label in row {row}")


def words_of(texts: Any) -> Iterator[list[str]]:
    """Yield the words of each text, in lower case; anything but text raises ValueError."""
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"row {number} is no text")
        yield re.findall(r"\w+(?:'\w+)?", text.lower())


def _hashed(words: list[str], count: int) -> np.ndarray:
    """Return a number from 0 to count − 1 for each word, the same everywhere."""
    return np.array([zlib.crc32(word.encode()) % count for word in words], dtype="int64")


def _wide(taken: Tensor) -> Tensor:
    """Widen token ids to int64, which embeddings take; leave floats."""
    return taken if taken.is_floating_point() else taken.long()


def numbers_in(values: Any, name: str) -> np.ndarray:
    """Return the numbers of a column as an array; anything else raises ValueError."""
    try:
        numbers = np.asarray(values)
    except ValueError:
        raise ValueError(
            f"{name} holds lists of different lengths where each must have the same"
        ) from None
    if numbers.dtype.kind not in "iufb":
        first = next(iter(values), "")
        if isinstance(first, str) and DECIMAL_COMMA.fullmatch(first):
            hint = f". Where {first!r} is a number, give the layout: decimal: ','"
        elif isinstance(first, str):
            hint = ", not text: give the categories of the column, from a public list"
        else:
            hint = f", got {numbers.dtype}"
        raise ValueError(f"{name}: expected numbers{hint}")
    return numbers


def _finite(name: str, values: np.ndarray) -> np.ndarray:
    """Return numbers as float32; one that is not finite, or too large, raises ValueError."""
    narrow = values.astype("float32")
    if not (np.abs(narrow) < LARGEST).all():
        raise ValueError(f"{name} must be finite and below {LARGEST:g} in size, but some are not")
    return narrow


def _require_range(name: str, values: np.ndarray, count: int) -> None:
    """Raise ValueError unless whole numbers are between 0 and count − 1."""
    wrong = values[(values < 0) | (values >= count)]
    if wrong.size:
        raise ValueError(f"{name} {wrong.flat[0]}; allowed are 0 to {count - 1}")
