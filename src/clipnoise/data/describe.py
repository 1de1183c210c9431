"""Describe the user's files: guess what a study has to say of them, or ask."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from clipnoise.data.columns import ColumnRule, may_lack
from clipnoise.data.own import Form, Own
from clipnoise.data.own_arrays import as_labels, labels_in, numbers_in, require_labels, words_of
from clipnoise.data.pictures import name_files, read_pictures
from clipnoise.data.tables import (
    USUAL,
    Layout,
    numbered_users,
    read_columns,
    read_columns_and_zeros,
)
from clipnoise.errors import UserError, unknown
from clipnoise.fields import to_plain
from clipnoise.lazy import np
from clipnoise.models.pretrained import Weights

BUCKETS, HASHED_IDS, LONGEST = 4096, 10_000, 512
SHARE = 10  # one in so many of the training examples is for validation
MOST_CLASSES = 100  # more different whole numbers may as well be numbers to predict
FEW = 10  # of so few rows, numbers that ascend say nothing
APART = 100  # ranges of columns that differ by more are remarked on
NUMBER_OF = re.compile(r"(.*[_ -])?(id|uid|uuid|key|index|idx|row|nr)|unnamed.*|", re.I)
ALWAYS = (
    *("name", "inputs", "target", "kind", "shape", "outputs"),
    *("training_file", "test_file", "validation_examples"),
)
Task = Literal["classification", "multi-label", "regression"]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a user says of their files; the rest is guessed.

    Attributes:
        name, target, channels, tokenizer, user, columns, layout: as options of the dataset.
        inputs: the arrays or columns that make up an example; none for all others.
        shape: of pictures in files, (channels, height, width), to which each is brought.
        kind, task: as options of the dataset; None guesses them.
        weights: the folder of pretrained weights.
    """

    name: str
    target: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    kind: Form | None = None
    task: Task | None = None
    channels: Literal["first", "last"] | None = None
    tokenizer: str | None = None
    user: str | None = None
    columns: Mapping[str, ColumnRule] = field(default_factory=dict)
    layout: Layout = USUAL
    weights: Path = Path("weights")


def describe(files: Mapping[str, Path], wanted: Wanted) -> tuple[Own, list[str]]:
    """Describe files, so that they can be prepared and trained on.

    Args:
        files: train and test, and validation where there is such a file.
        wanted: what the user says of them.

    Returns:
        The dataset, and remarks: what should be looked at before it is used.

    Raises:
        UserError: a file is damaged, or cannot be described without a choice; says which.
    """
    train = files["train"]
    read = {part: read_used(path, wanted) for part, path in files.items()}
    found = {part: columns for part, (columns, _) in read.items()}
    columns, zeros = read["train"]
    aside = {*wanted.target, wanted.user}
    inputs = wanted.inputs or tuple(name for name in columns if name not in aside)
    try:
        _require_apart(inputs, wanted)
        if not wanted.inputs:
            _ask_about(inputs, columns, wanted.user)
        values = {name: columns[name] for name in inputs}
        plain = {n: x for n, x in values.items() if n not in wanted.columns}
        kind = wanted.kind or (_kind(plain) if wanted.shape is None else "image")
        if kind == "image":
            _require_one_type(inputs, found)
        told = {
            "name": wanted.name,
            "inputs": inputs,
            "target": wanted.target[0] if len(wanted.target) == 1 else wanted.target,
            "kind": kind,
            "training_file": _count(columns),
            "test_file": _count(found["test"]),
            "columns": dict(wanted.columns),
            "layout": wanted.layout,
            **_shape(train, kind, values, wanted),
            **_task(wanted, columns, list(found.values())),
        }
        told |= _persons(train, columns, found, wanted)
        remarks = [*_remarks(values, wanted, zeros), *_repeated(found, (*inputs, *wanted.target))]
        return Own(**told), remarks
    except ValueError as error:
        raise UserError(f"{train}: {error}.") from None


def _require_apart(inputs: Sequence[str], wanted: Wanted) -> None:
    """Refuse an input that gives the answer away, and one that is given twice."""
    for name in inputs:
        if name in wanted.target:
            raise ValueError(f"{name} is the target, so it can be no input")
        if inputs.count(name) > 1:
            raise ValueError(f"--inputs has {name} twice")


def read_used(path: Path, wanted: Wanted) -> tuple[dict[str, Any], list[str]]:
    """Read the columns that are used, and which of them have numbers with leading zeros.

    A column that is not used may hold whatever it holds.

    Raises:
        UserError: the file is damaged, lacks such a column, or a value in it is missing.
    """
    said = (*wanted.inputs, *wanted.target, *([wanted.user] if wanted.user else ()))
    columns, zeros = read_columns_and_zeros(
        path,
        said if wanted.inputs else None,
        layout=wanted.layout,
        may_lack=may_lack(wanted.columns),
    )
    for name in (*said, *wanted.columns):
        if name not in columns:
            raise unknown("column", name, columns, file=str(path))
    return columns, zeros


def require_one_length(path: Path) -> None:
    """Refuse an archive that cannot be cut by rows.

    Raises:
        UserError: it is damaged, or its arrays have different lengths.
    """
    if path.suffix == ".npz":
        lengths = {name: len(values) for name, values in read_columns(path).items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
            raise UserError(
                f"{path}: cannot be cut by rows, because its arrays have different lengths: "
                f"{listed}. Save only arrays with a row for each example."
            )


def _require_one_type(inputs: Sequence[str], found: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse images that are bytes in one file and floats in another, of which bytes are scaled."""
    for name in inputs:
        types = {part: str(getattr(each[name], "dtype", "")) for part, each in found.items()}
        if len(set(types.values())) > 1:
            listed = ", ".join(f"{kind} in {part}" for part, kind in types.items())
            raise ValueError(f"{name} must have one type in all files, but is {listed}")


def _repeated(found: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> Iterator[str]:
    """Yield how many rows of other files are those of the training file, if these are many.

    Rows of few categories are equal by chance: as often as within the training file.
    """
    rows = {part: _rows([columns[name] for name in names]) for part, columns in found.items()}
    known = Counter(rows.pop("train"))
    chance = sum(n for n in known.values() if n > 1) / known.total()
    for part, others in rows.items():
        same = sum(row in known for row in others)
        if same > 2 * chance * len(others):
            yield (
                f"{same:,} of the {len(others):,} rows of {part} are in train, too: results on "
                "them say little about new examples."
            )


def _rows(columns: Sequence[Any]) -> list[int]:
    """Return a hash of each row of some columns: millions of rows would not fit as they are."""
    plain = (
        (each.tobytes() if getattr(each, "ndim", 0) else str(each) for each in column)
        for column in columns
    )
    return list(map(hash, zip(*plain, strict=False)))


def _count(columns: Mapping[str, Any]) -> int:
    return len(next(iter(columns.values())))


def block(dataset: Own) -> dict[str, Any]:
    """Return what a study says of a described dataset: what is not a default, and the sizes."""
    plain = to_plain(dataset)
    usual = to_plain(Own())
    said = {key: value for key, value in plain.items() if value != usual[key]}
    said |= {"columns": {name: _said(rule, ColumnRule()) for name, rule in dataset.columns.items()}
             } if dataset.columns else {}  # fmt: skip
    said |= {"layout": _said(dataset.layout, USUAL)} if dataset.layout != USUAL else {}
    ordered = {key: plain[key] for key in ALWAYS}
    return {"id": dataset.id, **ordered, **said}


def _said(value: Any, usual: Any) -> dict[str, Any]:
    plain = to_plain(value)
    return {one.name: plain[one.name] for one in fields(value)
            if getattr(value, one.name) != getattr(usual, one.name)}  # fmt: skip


def _ask_about(inputs: Sequence[str], columns: Mapping[str, Any], user: str | None) -> None:
    """Raise ValueError for columns that seem to number rows or persons, and so predict nothing."""
    asked = [name for name in inputs if _numbers_rows(columns[name]) or NUMBER_OF.fullmatch(name)]
    if asked:
        whose = "" if user else ", or with --user the column that says whose a row is"
        raise ValueError(
            f"{', '.join(map(repr, asked))}: numbers of rows or of persons? Say with --inputs "
            f"which columns make up an example{whose}"
        )


def _numbers_rows(values: Any) -> bool:
    """Return whether a column is whole numbers that rise from row to row."""
    whole = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu"
    return whole and len(values) >= FEW and bool((np.diff(values) > 0).all())


def _persons(
    train: Path, columns: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]], wanted: Wanted
) -> dict[str, Any]:
    """Return the options that say whose the examples are, and which file validates."""
    if wanted.user is None:
        return {}
    if "validation" not in found:
        raise ValueError(
            "with --user, the validation examples are those of a third file, called validation; "
            "--split makes it"
        )
    count = _count(found["validation"])
    users = len(numbered_users(train, columns[wanted.user])[1])
    return {
        "user": wanted.user,
        "users": users,
        "validation_file": count,
        "validation_examples": count,
        "validation_per_class": (),
    }


def _remarks(values: Mapping[str, Any], wanted: Wanted, zeros: Sequence[str]) -> Iterator[str]:
    """Yield what the files show and the description does not."""
    numbers = {name: column for name, column in values.items() if name not in wanted.columns}
    short = [name for name in (*numbers, *wanted.target) if name in zeros]
    if short:
        yield (
            f"{', '.join(short)}: numbers with leading zeros are read without them. If they are "
            "names, such as postal codes, give their categories with --columns."
        )
    sizes = {
        name: float(np.abs(column).max())
        for name, column in numbers.items()
        if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "iuf"
    }
    if len(sizes) > 1:
        low, high = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
        if sizes[high] > APART * max(sizes[low], 1e-12):
            yield (
                f"{high} is more than {APART} times as large as {low}. Give ranges that are known "
                f"without the data: --columns '{{{high}: {{range: [0, …]}}}}'."
            )


def _kind(inputs: Mapping[str, Any]) -> Form:
    """Guess what inputs are; those that could be several things, or nothing, raise ValueError."""
    if not inputs:
        return "features"
    texts = [name for name, values in inputs.items() if isinstance(values[0], str)]
    if texts and len(inputs) > 1:
        raise ValueError(
            f"{', '.join(texts)} {'hold' if len(texts) > 1 else 'holds'} text, and other inputs "
            "are there, too: say with --inputs "
            "which columns of numbers, or which one column of text, make up an example; or give "
            f"public categories: --columns '{{{texts[0]}: {{categories: […]}}}}'"
        )
    if texts:
        return "words"
    (first, *_) = inputs.values()
    if len(inputs) == 1 and getattr(first, "ndim", 0) in (3, 4):
        return "image"
    lengths = {len(row) for row in first} if isinstance(first, list) else set()
    return "tokens" if len(lengths) > 1 else "features"


def _shape(train: Path, kind: Form, inputs: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
    """Return the options that say what an example looks like."""
    (first, *_) = inputs.values()
    files = kind == "image" and name_files(first)
    if wanted.shape is not None and not files:
        raise ValueError("--shape is for pictures in files, whose names are the one input")
    if files:
        if wanted.shape is None:
            raise ValueError(
                "pictures in files: say to which size each is brought, --shape 3 32 32 for colours "
                "or --shape 1 32 32 for grey, in rows and columns"
            )
        read_pictures(train.parent, first[:1], wanted.shape)
        return {"shape": wanted.shape, "channels": None if wanted.shape[0] == 1 else "last"}
    if kind == "image":
        return _image(numbers_in(first, "inputs").shape[1:], wanted.channels)
    if kind == "words":
        return {"shape": (BUCKETS,)}
    if kind == "tokens":
        rows = [numbers_in(row, "inputs") for row in first if len(row)]
        longest, largest = max(map(len, rows)), max(int(row.max()) for row in rows)
        return {"shape": (longest,), "vocabulary": largest + 1}
    if kind == "text":
        longest = max(len(words) for words in words_of(first))
        vocabulary = HASHED_IDS
        if wanted.tokenizer is not None:
            vocabulary = Weights(wanted.tokenizer, wanted.weights).config()["vocab_size"]
            longest *= 2  # a word may be several tokens
        shape = (max(1, min(longest, LONGEST)),)
        return {"shape": shape, "vocabulary": vocabulary, "tokenizer": wanted.tokenizer}
    if kind == "table":
        return _table(inputs, wanted.columns)
    return {"shape": (_width(inputs, wanted.columns),)}


def _width(inputs: Mapping[str, Any], rules: Mapping[str, ColumnRule]) -> int:
    """Return how many numbers some columns become."""
    widths = [
        rules[name].numbers(name, values).shape[1]
        if name in rules
        else math.prod(numbers_in(values, name).shape[1:])
        for name, values in inputs.items()
    ]
    return sum(widths)


def _table(inputs: Mapping[str, Any], rules: Mapping[str, ColumnRule]) -> dict[str, Any]:
    hot = {name: rule for name, rule in rules.items() if rule.categories}
    for name, rule in hot.items():
        rule.ids(name, inputs[name])
    numbers = {name: values for name, values in inputs.items() if name not in hot}
    vocabulary = sum(rule.width for rule in hot.values())
    return {"shape": (max(1, _width(numbers, rules)),), "vocabulary": max(1, vocabulary)}


def _image(shape: tuple[int, ...], channels: Literal["first", "last"] | None) -> dict[str, Any]:
    if len(shape) < 2:
        raise ValueError(f"an image has rows and columns, but inputs have the shape {shape}")
    if len(shape) == 2 or 1 in (shape[0], shape[-1]):
        sides = shape if len(shape) == 2 else shape[1:] if shape[0] == 1 else shape[:-1]
        return {"shape": (1, *sides)}
    if channels is None:
        raise ValueError(
            f"images of shape {shape}: say whether the colours of a pixel come --channels first "
            "or --channels last"
        )
    first = shape if channels == "first" else (shape[-1], *shape[:-1])
    return {"shape": first, "channels": channels}


def _task(
    wanted: Wanted, training: Mapping[str, Any], everything: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the options that say what is to be predicted, and how many validate."""
    validation = max(1, _count(training) // SHARE)
    arrays = [np.asarray(training[name]) for name in wanted.target]
    for name in wanted.target:
        if arrays[0].ndim == 1:
            require_labels(name, training[name])
    targets = arrays[0] if len(arrays) == 1 else np.column_stack(arrays)
    task = wanted.task or _guessed_task(wanted.target[0], targets)
    if task != "classification":
        if targets.dtype.kind not in "iufb":
            raise ValueError(
                f"{' and '.join(wanted.target)} must be numbers for {task}; text is predicted by "
                "--task classification, one column at a time"
            )
        outputs = targets.shape[1] if targets.ndim == 2 else 1
        return {"task": task, "outputs": outputs, "validation_examples": validation}
    (name,) = wanted.target
    labels = labels_in([label for columns in everything for label in columns[name]])
    whole = targets.dtype.kind in "iuf"
    labels = sorted(labels, key=int) if whole else labels
    counted = Counter(as_labels(targets))
    numbered = whole and labels == [str(number) for number in range(len(labels))]
    return {
        "outputs": max(2, len(labels)),
        "classes": () if numbered else tuple(labels),
        "validation_examples": validation,
        "validation_per_class": _shares([counted[label] for label in labels], validation),
    }


def _guessed_task(name: str, targets: Any) -> Task:
    """Guess the task from the targets; whole numbers in great number could be either."""
    if targets.ndim == 2:
        return "multi-label" if bool(np.isin(targets, (0, 1)).all()) else "regression"
    if targets.dtype.kind not in "iuf":
        return "classification"
    if targets.dtype.kind == "f" and not (targets == np.round(targets)).all():
        return "regression"
    kinds = len(np.unique(targets))
    if kinds > MOST_CLASSES:
        raise ValueError(
            f"{name} holds {kinds:,} different whole numbers: say whether they are numbers to "
            "predict, --task regression, or classes, --task classification"
        )
    return "classification"


def _shares(counts: list[int], total: int) -> tuple[int, ...]:
    """Divide a total in proportion to counts; the largest remainders are rounded up."""
    exact = [total * count / sum(counts) for count in counts]
    shares = [math.floor(share) for share in exact]
    order = sorted(range(len(counts)), key=lambda place: shares[place] - exact[place])
    for place in order[: total - sum(shares)]:
        shares[place] += 1
    return tuple(shares)
