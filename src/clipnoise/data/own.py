"""A user's own data: two files in a folder, described by the options of the dataset."""

from __future__ import annotations

import hashlib
import json
import math
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from clipnoise.data.base import Examples, Partitioned, Splits
from clipnoise.data.images import Scaled
from clipnoise.data.labelled import parquet_rows
from clipnoise.data.remote import digest
from clipnoise.data.rows import StoredRows
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError, unknown
from clipnoise.fields import Count, to_plain

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor
else:
    from clipnoise.lazy import np

FORMS = (".parquet", ".npz")
SOURCES = ("train", "test")
CUT = ("split_seed", "train_examples", "validation_examples", "public_examples", "test_examples")


@dataclass(frozen=True, kw_only=True)
class Own(Partitioned):
    """A training file and a test file, as NumPy archives or Parquet.

    They lie in `<cache>/raw/<name>` and are called train and test, with suffix .npz or .parquet.
    What the options say about them is public: a study is planned from it without the data, and the
    files are checked against it when they are prepared.

    Attributes:
        name: of the folder.
        inputs: the arrays or columns that make up an example: several of one number each, or one
            of lists or of arrays.
        target: the array or column to predict.
        kind: "features": numbers; "image": bytes 0 to 255, scaled to [0, 1], or floats as they
            are; "tokens": ids from 1, padded with 0 to the longest sequence.
        shape: of an example: (features,), (channels, height, width) or (longest,).
        outputs: number of classes, tags or numbers to predict.
        task: what the target is: a class from 0; tags as 0 and 1; or numbers.
        vocabulary: number of token ids, including 0; for tokens only.
        training_file: examples in the training file.
        test_file: examples in the test file.
    """

    id: ClassVar[str] = "own"
    title: ClassVar[str] = "Your own data"
    licence: ClassVar[str] = "yours"
    source: ClassVar[str] = "your files"
    split: ClassVar[str] = "your two files; validation and public from the training file"
    preprocessing: ClassVar[str] = "bytes of images divided by 255; tokens padded with 0"

    name: str = "own"
    inputs: tuple[str, ...] = ("inputs",)
    target: str = "target"
    kind: Literal["features", "image", "tokens"] = "features"
    shape: tuple[Count, ...] = (1,)
    outputs: Count = 2
    task: Literal["classification", "multi-label", "regression"] = "classification"
    vocabulary: Count | None = None
    training_file: Count = 1000  # type: ignore[misc]
    test_file: Count = 200  # type: ignore[misc]
    validation_examples: Count = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.name):
            raise ValueError(f"name must consist of letters, digits, - and _, got {self.name!r}")
        axes = 3 if self.kind == "image" else 1
        if len(self.shape) != axes:
            raise ValueError(f"shape must have {axes} numbers for {self.kind}, got {self.shape}")
        if (self.vocabulary is None) == (self.kind == "tokens"):
            raise ValueError("vocabulary must be given for tokens, and for no other kind")

    @property
    def signature(self) -> Signature:
        return Signature(self.kind, self.shape, self.outputs, self.task, self.vocabulary)

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

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        arrays: dict[str, np.ndarray] = {}
        raw: dict[str, dict[str, str]] = {}
        declared = dict(zip(SOURCES, (self.training_file, self.test_file), strict=True))
        for part, count in declared.items():
            path = self._path(cache / "raw" / self.name, part)
            read = _read_npz if path.suffix == ".npz" else _read_parquet
            columns = read(path, (*self.inputs, self.target))
            try:
                inputs = self._examples([columns[name] for name in self.inputs])
                targets = self._targets(_numbers(columns[self.target]))
                for name, values in (("inputs", inputs), ("targets", targets)):
                    if len(values) != count:
                        raise ValueError(f"{len(values):,} {name}, but {count:,} are declared")
            except ValueError as error:
                raise UserError(f"{path}: {error}.") from None
            arrays |= {f"{part}_inputs": inputs, f"{part}_labels": targets}
            raw[path.name] = {"sha256": digest(path, "sha256"), "checked against": "nothing"}
        self.write(cache, arrays, **{"raw files": raw})

    def _path(self, folder: Path, part: str) -> Path:
        """Return the file of a part, in either form."""
        names = [f"{part}{form}" for form in FORMS]
        paths = [folder / name for name in names if (folder / name).is_file()]
        if len(paths) != 1:
            raise UserError(
                f"{folder}: expected one file {' or '.join(names)}, found {len(paths)}."
            )
        return paths[0]

    def _examples(self, columns: list[Any]) -> np.ndarray:
        """Return inputs as stored, of shape (n, *shape), from their arrays or columns."""
        if self.kind == "tokens":
            return self._tokens(columns)
        arrays = [_numbers(column) for column in columns]
        joined = arrays[0] if len(arrays) == 1 else np.column_stack(arrays)
        if joined.ndim == 0 or math.prod(joined.shape[1:]) != math.prod(self.shape):
            raise ValueError(f"inputs of shape {joined.shape[1:]}, but {self.shape} is declared")
        joined = joined.reshape(-1, *self.shape)
        if self.kind == "image" and joined.dtype.kind in "iu":
            _require_range("the pixel", joined, 256)
            return joined.astype("uint8")
        return _finite("inputs", joined)

    def _tokens(self, columns: list[Any]) -> np.ndarray:
        """Return token ids, int32 of shape (n, longest), padded with 0."""
        assert self.vocabulary is not None
        if len(columns) != 1:
            raise ValueError("inputs of tokens are one array, or one column of lists")
        padded = np.zeros((len(columns[0]), *self.shape), dtype="int64")
        for number, row in enumerate(columns[0]):
            ids = _numbers(row)
            if ids.ndim != 1 or ids.dtype.kind not in "iu" or len(ids) > len(padded[number]):
                raise ValueError(f"row {number} is not a list of up to {self.shape[0]} token ids")
            padded[number, : len(ids)] = ids
        _require_range("the token id", padded, self.vocabulary)
        return padded.astype("int32")

    def _targets(self, targets: np.ndarray) -> np.ndarray:
        """Return targets as stored."""
        if self.task == "classification":
            if targets.ndim != 1 or targets.dtype.kind not in "iub":
                raise ValueError(f"{self.target} must hold one whole number per example")
            _require_range("the label", targets, self.outputs)
            return targets.astype("int64")
        wanted = (len(targets), self.outputs)
        if targets.shape != wanted and (targets.ndim != 1 or self.outputs != 1):
            raise ValueError(f"{self.target} has shape {targets.shape}, but {wanted} is declared")
        numbers = _finite(self.target, targets.reshape(wanted))
        if self.task == "multi-label" and not ((numbers == 0) | (numbers == 1)).all():
            raise ValueError(f"{self.target} must hold 0 and 1 only")
        return numbers

    def load(self, cache: Path) -> Splits:
        def take(arrays: dict[str, np.ndarray], file: str, chosen: Tensor) -> Examples:
            inputs, targets = arrays[f"{file}_inputs"], arrays[f"{file}_labels"]
            transform = Scaled() if inputs.dtype == "uint8" else _wide
            return Examples(StoredRows(inputs, chosen, transform), StoredRows(targets, chosen))

        return self.cut(cache, take)


def _wide(taken: Tensor) -> Tensor:
    """Widen token ids to int64, which embeddings take; leave floats."""
    return taken if taken.is_floating_point() else taken.long()


def _numbers(values: Any) -> np.ndarray:
    """Return numbers as an array; lists of different lengths raise ValueError."""
    try:
        numbers = np.asarray(values)
    except ValueError:
        raise ValueError("lists of different lengths where each must have the same") from None
    if numbers.dtype.kind not in "iufb":
        raise ValueError(f"expected numbers, got {numbers.dtype}")
    return numbers


def _finite(name: str, values: np.ndarray) -> np.ndarray:
    """Return numbers as float32; one that is not finite raises ValueError."""
    narrow = values.astype("float32")
    if not np.isfinite(narrow).all():
        raise ValueError(f"{name} must be finite, but some are not")
    return narrow


def _require_range(name: str, values: np.ndarray, count: int) -> None:
    """Raise ValueError unless whole numbers are between 0 and count − 1."""
    wrong = values[(values < 0) | (values >= count)]
    if wrong.size:
        raise ValueError(f"{name} {wrong.flat[0]}; allowed are 0 to {count - 1}")


def _read_npz(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Return some arrays of an archive."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            for name in names:
                if name not in archive:
                    raise unknown("array", name, archive.files, file=str(path))
            return {name: archive[name] for name in names}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: truncated, damaged or not of plain arrays ({error}).") from None


def _read_parquet(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Return some columns of a Parquet file."""
    columns = list(zip(*parquet_rows(path, names), strict=True)) or [()] * len(names)
    return dict(zip(names, columns, strict=True))
