"""The description of a user's own files, as a study needs it; and a test file cut from one file."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from clipnoise.data.own import (
    SOURCES,
    Own,
    labels_in,
    numbers_in,
    read_columns,
    read_table,
    words_of,
)
from clipnoise.errors import UserError, unknown
from clipnoise.fields import to_plain
from clipnoise.lazy import np
from clipnoise.models.pretrained import Weights

Form = Literal["features", "image", "tokens", "text", "words"]
BUCKETS, HASHED_IDS, LONGEST = 4096, 10_000, 512
SHARE = 10  # one in so many of the training examples is for validation
ALWAYS = (
    *("name", "inputs", "target", "kind", "shape", "outputs"),
    *("training_file", "test_file", "validation_examples"),
)


def describe(
    train: Path,
    test: Path,
    *,
    name: str,
    target: str,
    inputs: tuple[str, ...] = (),
    kind: Form | None = None,
    channels: Literal["first", "last"] | None = None,
    tokenizer: str | None = None,
    weights: Path = Path("weights"),
) -> Own:
    """Describe two files, so that they can be prepared and trained on.

    Args:
        train, test: CSV, Parquet or NumPy archives.
        name: of the folder that they lie in.
        target: the array or column to predict.
        inputs: those that make up an example; none for all others.
        kind: as an option of the dataset; None guesses it from the inputs.
        channels: where images have the colours of a pixel.
        tokenizer: of a text, below the weights folder.
        weights: the folder of pretrained weights.

    Raises:
        UserError: a file is damaged, or cannot be described without a choice; says which.
    """
    columns, tested = read_columns(train), read_columns(test)
    for one in (target, *inputs):
        if one not in columns or one not in tested:
            raise unknown("column", one, columns.keys() & tested.keys(), file=str(train))
    inputs = inputs or tuple(one for one in columns if one != target)
    values = [columns[one] for one in inputs]
    try:
        kind = kind or _kind(dict(zip(inputs, values, strict=True)))
        everything = [*columns[target], *tested[target]]
        options = {
            **_shape(kind, values, channels, tokenizer, weights),
            **_task(columns[target], everything),
        }
        return Own(
            name=name,
            inputs=inputs,
            target=target,
            kind=kind,
            training_file=len(columns[target]),
            test_file=len(tested[target]),
            **options,
        )
    except ValueError as error:
        raise UserError(f"{train}: {error}.") from None


def block(dataset: Own) -> dict[str, Any]:
    """Return what a study says of a described dataset: what is not a default, and the sizes."""
    plain = to_plain(dataset)
    defaults = {field.name: field.default for field in fields(Own)}
    said = {key: value for key, value in plain.items() if getattr(dataset, key) != defaults[key]}
    ordered = {key: plain[key] for key in ALWAYS}
    return {"id": dataset.id, **ordered, **said}


def _kind(inputs: dict[str, Any]) -> Form:
    """Guess what inputs are; those that could be several things, or nothing, raise ValueError."""
    texts = [name for name, values in inputs.items() if isinstance(values[0], str)]
    if texts and len(inputs) > 1:
        raise ValueError(
            f"{', '.join(texts)} hold text, and other inputs are there, too: say with --inputs "
            "which columns of numbers, or which one column of text, make up an example"
        )
    if texts:
        return "words"
    (first, *_) = inputs.values()
    if len(inputs) == 1 and getattr(first, "ndim", 0) in (3, 4):
        return "image"
    lengths = {len(row) for row in first} if isinstance(first, list) else set()
    return "tokens" if len(lengths) > 1 else "features"


def _shape(
    kind: Form,
    values: list[Any],
    channels: Literal["first", "last"] | None,
    tokenizer: str | None,
    weights: Path,
) -> dict[str, Any]:
    """Return the options that say what an example looks like."""
    if kind == "image":
        return _image(numbers_in(values[0]).shape[1:], channels)
    if kind == "words":
        return {"shape": (BUCKETS,)}
    if kind == "tokens":
        rows = [numbers_in(row) for row in values[0] if len(row)]
        longest, largest = max(map(len, rows)), max(int(row.max()) for row in rows)
        return {"shape": (longest,), "vocabulary": largest + 1}
    if kind == "text":
        longest = max(len(words) for words in words_of(values[0]))
        vocabulary = HASHED_IDS
        if tokenizer is not None:
            vocabulary = Weights(tokenizer, weights / tokenizer).config()["vocab_size"]
            longest *= 2  # a word may be several tokens
        shape = (max(1, min(longest, LONGEST)),)
        return {"shape": shape, "vocabulary": vocabulary, "tokenizer": tokenizer}
    arrays = [numbers_in(column) for column in values]
    return {"shape": (sum(math.prod(array.shape[1:]) for array in arrays),)}


def _image(shape: tuple[int, ...], channels: Literal["first", "last"] | None) -> dict[str, Any]:
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


def _task(training: Any, everything: list[Any]) -> dict[str, Any]:
    """Return the options that say what is to be predicted, and how many validate."""
    validation = max(1, len(training) // SHARE)
    targets = np.asarray(training)
    if targets.ndim == 2:
        tags = bool(np.isin(targets, (0, 1)).all())
        task = "multi-label" if tags else "regression"
        return {"task": task, "outputs": targets.shape[1], "validation_examples": validation}
    if targets.dtype.kind == "f":
        return {"task": "regression", "outputs": 1, "validation_examples": validation}
    labels = labels_in(everything)
    whole = targets.dtype.kind in "iu"
    labels = sorted(labels, key=int) if whole else labels
    counted = Counter(map(str, training))
    shares = _shares([counted[label] for label in labels], validation)
    numbered = whole and labels == [str(number) for number in range(len(labels))]
    return {
        "outputs": max(2, len(labels)),
        "classes": () if numbered else tuple(labels),
        "validation_examples": validation,
        "validation_per_class": shares,
    }


def _shares(counts: list[int], total: int) -> tuple[int, ...]:
    """Divide a total in proportion to counts; the largest remainders are rounded up."""
    exact = [total * count / sum(counts) for count in counts]
    shares = [math.floor(share) for share in exact]
    order = sorted(range(len(counts)), key=lambda place: shares[place] - exact[place])
    for place in order[: total - sum(shares)]:
        shares[place] += 1
    return tuple(shares)


def cut_off(path: Path, share: float, folder: Path) -> tuple[Path, Path]:
    """Divide a file at random into a training and a test file, the same ones each time.

    Args:
        path: a CSV or Parquet file, or a NumPy archive.
        share: of the rows that become the test file.
        folder: where the two files are written.

    Returns:
        The training file and the test file.

    Raises:
        UserError: the file is damaged, or there are such files already.
    """
    parts = tuple(folder / f"{part}{path.suffix}" for part in SOURCES)
    if there := [part for part in parts if part.exists()]:
        raise UserError(f"{there[0]}: is there already; describe it instead, or delete it.")
    folder.mkdir(parents=True, exist_ok=True)
    table = read_columns(path) if path.suffix == ".npz" else read_table(path)
    count = len(next(iter(table.values()))) if isinstance(table, dict) else len(table)
    order = np.random.default_rng(0).permutation(count)
    tested = round(share * count)
    with tempfile.TemporaryDirectory(
        dir=folder, prefix="."
    ) as unfinished:  # or half a file may stay
        for part, rows in zip(parts, (order[tested:], order[:tested]), strict=True):
            _write_rows(table, np.sort(rows), Path(unfinished, part.name))
        for part in parts:
            Path(unfinished, part.name).replace(part)
    return parts[0], parts[1]


def _write_rows(table: Any, rows: np.ndarray, path: Path) -> None:
    """Write some rows of arrays by name, or of a table of pyarrow."""
    from pyarrow import csv, parquet  # type: ignore[import-untyped]

    if isinstance(table, dict):
        np.savez(path, **{name: values[rows] for name, values in table.items()})
    else:
        write = csv.write_csv if path.suffix == ".csv" else parquet.write_table
        write(table.take(rows), path)
