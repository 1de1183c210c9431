"""A user's own data: two files in a folder, described by the options of the dataset."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from clipnoise.data.base import Examples, Partitioned
from clipnoise.data.images import Scaled
from clipnoise.data.remote import digest
from clipnoise.data.rows import SPARSE, RaggedWriter, Rows, SparseRows, StoredRows
from clipnoise.data.signature import Kind, Signature
from clipnoise.data.text import Tokenizer
from clipnoise.errors import UserError, nearest, unknown
from clipnoise.fields import Count, Natural, to_plain
from clipnoise.lazy import Tensor, np, torch
from clipnoise.models.pretrained import Weights

logger = logging.getLogger(__name__)

FORMS = (".csv", ".parquet", ".npz")
SOURCES = ("train", "test")
CUT = (
    *("split_seed", "train_examples", "validation_examples", "validation_per_class"),
    *("public_examples", "test_examples"),
)
Form = Literal["features", "image", "tokens", "text", "words"]
TEXTS = ("text", "words")
LARGEST = 1e18  # squares of larger numbers are infinite in float32, and so are their norms
SEEN_AS: dict[Form, Kind] = {
    "features": "features", "image": "image", "tokens": "tokens", "text": "tokens",
    "words": "features",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Own(Partitioned):
    """A training file and a test file, as CSV, Parquet or NumPy archives.

    They lie in `<cache>/raw/<name>` and are called train and test, with suffix .csv, .parquet or
    .npz. What the options say about them is public: a study is planned from it without the data,
    and the files are checked against it when they are prepared.

    Attributes:
        name: of the folder.
        inputs: the arrays or columns that make up an example: several of one number each, or one
            of lists, of arrays or of text.
        target: the array or column to predict.
        kind: "features": numbers; "image": bytes 0 to 255, scaled to [0, 1], or floats as they
            are; "tokens": ids from 1, padded with 0 to the longest sequence; "text": ids of its
            tokens; "words": how often each hashed word occurs in a text, divided by its words.
        shape: of an example: (features,), (channels, height, width), (longest,) for tokens and
            text, (hashed words,).
        channels: whether the file has the colours of a pixel "first" or "last", after its row and
            column; for images of several channels only.
        outputs: number of classes, tags or numbers to predict.
        classes: the labels in the file, in the order in which they are numbered; empty where they
            are the numbers from 0.
        task: what the target is: a class; tags as 0 and 1; or numbers.
        vocabulary: number of token ids, including 0; for tokens and text only.
        tokenizer: of a text: the folder of a model below the weights folder; None hashes its words.
        training_file: examples in the training file.
        test_file: examples in the test file.
        validation_per_class: how many of the validation examples are of each class. This is as
            public as every size, and so no private example decides which others are private.
    """

    id = "own"
    title = "Your own data"
    licence = "yours"
    source = "your files"
    split = "your two files; validation and public from the training file"
    preprocessing = "bytes of images divided by 255; tokens padded with 0"

    name: str = "own"
    inputs: tuple[str, ...] = ("inputs",)
    target: str = "target"
    kind: Form = "features"
    shape: tuple[Count, ...] = (1,)
    channels: Literal["first", "last"] | None = None
    outputs: Count = 2
    classes: tuple[str | int, ...] = ()
    task: Literal["classification", "multi-label", "regression"] = "classification"
    vocabulary: Count | None = None
    tokenizer: str | None = None
    training_file: Count = 1000  # type: ignore[misc]
    test_file: Count = 200  # type: ignore[misc]
    validation_examples: Count = 100
    validation_per_class: tuple[Natural, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        image, tokens = self.kind == "image", self.kind in ("tokens", "text")
        axes = 3 if image else 1
        coloured = image and len(self.shape) == 3 and self.shape[0] > 1
        classifies, named = self.task == "classification", len(self.classes)
        counts = self.validation_per_class
        sums = (len(counts), sum(counts)) == (self.outputs, self.validation_examples)
        for wrong, message in (
            (not re.fullmatch(r"[A-Za-z0-9_-]+", self.name),
             f"name must consist of letters, digits, - and _, got {self.name!r}"),
            (len(self.shape) != axes,
             f"shape must have {axes} numbers for {self.kind}, got {self.shape}"),
            (coloured and self.channels is None,
             "channels must say where the file has the colours of a pixel, first or last"),
            (self.channels is not None and not image, "channels is for images only"),
            ((self.vocabulary is None) == tokens,
             "vocabulary must be given for tokens and text, and for no other kind"),
            (self.tokenizer is not None and self.kind != "text", "tokenizer is for text only"),
            (named not in (0, self.outputs), f"classes are {named}, but outputs is {self.outputs}"),
            (named and not classifies, "classes are for classification only"),
            (len(set(map(str, self.classes))) < named, "classes must differ"),
            (counts and not (sums and classifies),
             "validation_per_class must have a number for each class, with validation_examples as "
             "their sum"),
        ):  # fmt: skip
            if wrong:
                raise ValueError(message)

    @property
    def signature(self) -> Signature:
        kind = SEEN_AS[self.kind]
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
        described = {name: value for name, value in to_plain(self).items() if name not in CUT}
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
        declared = dict(zip(SOURCES, (self.training_file, self.test_file), strict=True))
        for part, count in declared.items():
            path = own_file(cache / "raw" / self.name, part)
            columns = read_columns(path, (*self.inputs, self.target))
            try:
                for name, values in columns.items():
                    if len(values) != count:
                        raise ValueError(
                            f"{len(values):,} rows of {name}, but {count:,} are declared"
                        )
                arrays[f"{part}_labels"] = self._targets(columns[self.target])
                inputs = [columns[name] for name in self.inputs]
                found = self._prepared(path, inputs, cache, weights or cache.parent / "weights")
                arrays |= {f"{part}_{name}": values for name, values in found.items()}
            except ValueError as error:
                raise UserError(f"{path}: {error}.") from None
            raw[path.name] = {"sha256": digest(path, "sha256"), "checked against": "nothing"}
        self.write(cache, arrays, **{"raw files": raw})

    def _prepared(
        self, path: Path, columns: list[Any], cache: Path, weights: Path
    ) -> dict[str, np.ndarray]:
        """Return inputs as stored: one array of shape (n, *shape), or counts of hashed words."""
        if self.kind in ("tokens", *TEXTS) and len(columns) != 1:
            raise ValueError(f"inputs of {self.kind} are one array or one column")
        if self.kind == "words":
            return self._counts(columns[0], cache)
        if self.kind == "text":
            columns = [list(self._ids(columns[0], weights))]
        if SEEN_AS[self.kind] == "tokens":
            return {"inputs": self._tokens(columns[0])}
        arrays = [numbers_in(column) for column in columns]
        joined = arrays[0] if len(arrays) == 1 else np.column_stack(arrays)
        if self.kind == "image":
            return {"inputs": self._images(path, joined)}
        if math.prod(joined.shape[1:]) != math.prod(self.shape):
            raise ValueError(f"inputs of shape {joined.shape[1:]}, but {self.shape} is declared")
        return {"inputs": _finite("inputs", joined.reshape(-1, *self.shape))}

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
            ids = numbers_in(row) if len(row) else np.zeros(0, "int64")
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

    def _targets(self, targets: Any) -> np.ndarray:
        """Return targets as stored."""
        if self.task == "classification":
            numbers = self._numbered(targets)
            if numbers.ndim != 1 or numbers.dtype.kind not in "iub":
                raise ValueError(f"{self.target} must hold one whole number per example")
            _require_range("the label", numbers, self.outputs)
            return numbers.astype("int64")
        numbers, wanted = numbers_in(targets), (len(targets), self.outputs)
        if numbers.shape != wanted and (numbers.ndim != 1 or self.outputs != 1):
            raise ValueError(f"{self.target} has shape {numbers.shape}, but {wanted} is declared")
        floats = _finite(self.target, numbers.reshape(wanted))
        if self.task == "multi-label" and not ((floats == 0) | (floats == 1)).all():
            raise ValueError(f"{self.target} must hold 0 and 1 only")
        return floats

    def _numbered(self, labels: Any) -> np.ndarray:
        """Return labels as numbers: their places among the classes, where these are named."""
        if not self.classes:
            if any(isinstance(label, str) for label in labels):
                raise ValueError(
                    f"{self.target} holds text: name its classes in the study, in the order in "
                    f"which they are to be numbered: classes: [{', '.join(labels_in(labels)[:9])}]"
                )
            return numbers_in(labels)
        place = {str(label): number for number, label in enumerate(self.classes)}
        for label in labels_in(labels):
            if label not in place:
                allowed = ", ".join(place)
                raise ValueError(
                    f"the label {label!r} is no class.{nearest(label, place)} classes: {allowed}"
                )
        return np.array([place[str(label)] for label in labels])

    def examples_of(self, arrays: dict[str, np.ndarray], part: str, rows: Tensor) -> Examples:
        return Examples(
            self.inputs_of(arrays, part, rows), StoredRows(arrays[f"{part}_labels"], rows)
        )

    def inputs_of(self, arrays: dict[str, np.ndarray], part: str, rows: Tensor) -> Rows:
        if self.kind == "words":
            starts, columns, values = (arrays[f"{part}_{name}"] for name in SPARSE)
            return SparseRows(starts, columns, values, self.shape[0], rows)
        stored = arrays[f"{part}_inputs"]
        return StoredRows(stored, rows, Scaled() if stored.dtype == "uint8" else _wide)


def own_file(folder: Path, part: str) -> Path:
    """Return the file of a part, in whichever form it is there.

    Raises:
        UserError: there is none, or there are several.
    """
    names = [f"{part}{form}" for form in FORMS]
    paths = [folder / name for name in names if (folder / name).is_file()]
    if len(paths) != 1:
        raise UserError(f"{folder}: expected one file {' or '.join(names)}, found {len(paths)}.")
    return paths[0]


def labels_in(values: Any) -> list[str]:
    """Return the different labels of a column, as text, in order."""
    return [str(label) for label in np.unique(np.asarray(values))]


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


def numbers_in(values: Any) -> np.ndarray:
    """Return numbers as an array; lists of different lengths raise ValueError."""
    try:
        numbers = np.asarray(values)
    except ValueError:
        raise ValueError("lists of different lengths where each must have the same") from None
    if numbers.dtype.kind not in "iufb":
        raise ValueError(f"expected numbers, got {numbers.dtype}")
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


def read_columns(path: Path, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Read arrays of an archive, or columns of a table: arrays of numbers, or lists.

    Args:
        path: a file whose suffix is one of FORMS.
        names: which ones, in order; None for all.

    Raises:
        UserError: the file is damaged, or lacks one of them, or has a missing value.
    """
    if path.suffix != ".npz":
        table = read_table(path)
        return {name: _column(path, table, name)
                for name in _known("column", names, table.column_names, path)}  # fmt: skip
    try:
        with np.load(path, allow_pickle=False) as archive:
            chosen = _known("array", names, archive.files, path)
            _require_memory(path, archive.zip)
            return {name: np.atleast_1d(archive[name]) for name in chosen}
    except (*BROKEN, MemoryError) as error:
        raise UserError(f"{path}: truncated, damaged or not of plain arrays ({error}).") from None


BROKEN = (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)


def _require_memory(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse an archive, before it is read, that unpacks to more than the machine's memory."""
    unpacked = sum(member.file_size for member in archive.infolist())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if unpacked > memory:
        raise UserError(
            f"{path}: unpacks to {unpacked / 1e9:,.1f} GB, but this machine has "
            f"{memory / 1e9:,.1f} GB of memory."
        )


def _column(path: Path, table: Any, name: str) -> Any:
    import pyarrow  # type: ignore[import-untyped]

    column = table.column(name)
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise UserError(f"{path}: {name}: a missing value in row {row}.")
    plain = pyarrow.types.is_primitive(column.type)
    return column.to_numpy() if plain else column.to_pylist()


def _known(
    kind: str, names: tuple[str, ...] | None, there: list[str], path: Path
) -> tuple[str, ...]:
    for name in names or ():
        if name not in there:
            raise unknown(kind, name, there, file=str(path))
    return tuple(there) if names is None else names


def read_table(path: Path) -> Any:
    """Return a CSV or Parquet file as a table of pyarrow.

    Raises:
        UserError: the file is damaged.
    """
    import pyarrow
    from pyarrow import csv, parquet

    try:
        return csv.read_csv(path) if path.suffix == ".csv" else parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: not such a table, or truncated or damaged ({error}).") from None


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
        name, target, channels, tokenizer: as options of the dataset.
        inputs: the arrays or columns that make up an example; none for all but the target.
        kind: as an option of the dataset; None guesses it from the inputs.
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
        return Own(
            name=name,
            inputs=inputs,
            target=target,
            kind=kind,
            training_file=len(columns[target]),
            test_file=len(tested[target]),
            **_shape(kind, values, channels, tokenizer, weights),
            **_task(columns[target], everything),
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
            vocabulary = Weights(tokenizer, weights).config()["vocab_size"]
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
        folder: where the two files that it returns are written.

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
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as unfinished:  # no half of a file
        for part, rows in zip(parts, (order[tested:], order[:tested]), strict=True):
            _write_rows(table, np.sort(rows), Path(unfinished, part.name))
        for part in parts:
            Path(unfinished, part.name).replace(part)
    return parts[0], parts[1]


def _write_rows(table: Any, rows: np.ndarray, path: Path) -> None:
    """Write some rows of arrays by name, or of a table of pyarrow."""
    from pyarrow import csv, parquet

    if isinstance(table, dict):
        np.savez(path, **{name: values[rows] for name, values in table.items()})
    else:
        write = csv.write_csv if path.suffix == ".csv" else parquet.write_table
        write(table.take(rows), path)
