"""Tables in packages: what becomes of each column stands in the YAML file, as in a codebook."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from clipnoise.data.base import Partitioned
from clipnoise.data.columns import ColumnRule
from clipnoise.data.packages import DebianFile, NpmFile, read_debian, read_member, read_npm
from clipnoise.data.r_tables import read_data_frame
from clipnoise.data.rows import SPARSE, Rows, SparseRows, StoredRows
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.lazy import Tensor, np
from clipnoise.seeds import mix64

TEST_SHARE, VALIDATION_SHARE = 5, 20  # one row, or one person, in so many
DENSE = 10**8  # numbers; more are stored as sparse rows
TIMES = {"month": ("M", 12), "weekday": ("D", 7), "hour": ("h", 24)}


@dataclass(frozen=True, kw_only=True)
class Codebook(Partitioned):
    """A table of one file, each of whose rows is an example.

    Whether a row is for testing follows from its number alone, or from the id of the person whose
    it is; then no person is in two parts.

    Attributes:
        member: the path of the table in the package; its suffix is .parquet or, of a data
            frame of R, .rda where it is no text.
        names: of its columns, in order, where its first line does not name them.
        separator: of the columns of a text.
        kept: the range in which a number of a row must lie for the row to be kept, by column.
        codebook: what becomes of each input, in order. `NAME.month`, `NAME.weekday` and `NAME.hour`
            are parts of a time, from 0.
        unlisted: inputs whose values are missing where they are none of the categories.
        target: the column to predict.
        labels: its values, in the order of their classes; what they are called, where there are
            thresholds.
        most: the largest number of each class but the last; empty where the target is no number.
        person: the column with the id of the person whose the row is.
    """

    reader = "codebook"
    member: ClassVar[str]
    names: ClassVar[tuple[str, ...]] = ()
    separator: ClassVar[str] = ","
    kept: ClassVar[Mapping[str, tuple[float, float]]] = {}
    codebook: ClassVar[Mapping[str, ColumnRule]]
    unlisted: ClassVar[tuple[str, ...]] = ()
    target: ClassVar[str]
    labels: ClassVar[tuple[str | int, ...]] = ()
    most: ClassVar[tuple[float, ...]] = ()
    person: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most and len(self.labels) != len(self.most) + 1:
            raise ValueError(f"labels must be {len(self.most) + 1}, one more than most")
        if bool(self.person) != bool(self.persons):
            raise ValueError("person and persons go together")

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(map(str, self.labels))

    @property
    def signature(self) -> Signature:
        width = sum(rule.width for rule in self.codebook.values())
        return Signature("features", (width,), len(self.labels))

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        file = self.raw_files(cache).require() / self.files[0].name
        where = f"{file}: {self.member}"
        table, numbers = self._kept(self._read(file, where))
        try:
            inputs, labels = self._inputs(table), self._labels(table)
        except ValueError as error:
            raise UserError(f"{where}: {error}.") from None
        arrays: dict[str, np.ndarray] = {}
        parts = self._parts(table, numbers)
        for part, rows in parts.items():
            chosen = inputs[rows]
            if inputs.size <= DENSE:
                arrays[f"{part}_inputs"] = chosen
            else:
                found = zip(SPARSE, _sparse(chosen), strict=True)
                arrays |= {f"{part}_{name}": values for name, values in found}
            arrays[f"{part}_labels"] = labels[rows]
        if self.person:
            owners = _numbers(table, self.person)[parts["train"]]
            arrays["train_users"] = np.unique(owners, return_inverse=True)[1]
        self.write(cache, arrays)

    def inputs_of(self, arrays: dict[str, np.ndarray], part: str, rows: Tensor) -> Rows:
        if f"{part}_inputs" in arrays:
            return StoredRows(arrays[f"{part}_inputs"], rows)
        starts, columns, values = (arrays[f"{part}_{name}"] for name in SPARSE)
        return SparseRows(starts, columns, values, self.signature.shape[0], rows)

    def _read(self, file: Path, where: str) -> Mapping[str, Any]:
        """Return the columns that are needed: arrays of numbers, or lists."""
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import csv, parquet

        content = self._member_of(file)
        inputs = dict.fromkeys(_column_and_part(name)[0] for name in self.codebook)
        needed = [*inputs, self.target, *self.kept, *filter(None, [self.person])]
        try:
            if self.member.endswith(".rda"):
                table = pyarrow.table(read_data_frame(content))
            elif self.member.endswith(".parquet"):
                table = parquet.read_table(io.BytesIO(content), columns=[*dict.fromkeys(needed)])
            else:
                table = csv.read_csv(
                    io.BytesIO(content),
                    csv.ReadOptions(column_names=self.names or None),
                    csv.ParseOptions(delimiter=self.separator),
                    csv.ConvertOptions(null_values=[""]),
                )
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise UserError(f"{where}: not such a table, or damaged ({error}).") from None
        places = {name: place for place, name in enumerate(table.column_names)}
        lacking = [name for name in needed if name not in places]
        if lacking:
            raise UserError(f"{where}: has no column {lacking[0]!r}.")
        return {name: _plain(table.column(places[name])) for name in needed}

    def _member_of(self, file: Path) -> bytes:
        if isinstance(self.files[0], NpmFile):
            return read_npm(file, [self.member])[self.member]
        if isinstance(self.files[0], DebianFile):
            return read_debian(file, [self.member])[self.member]
        return read_member(file, self.member)

    def _kept(self, table: Mapping[str, Any]) -> tuple[Mapping[str, Any], np.ndarray]:
        """Return the rows that are kept, and their numbers in the file."""
        count = len(table[self.target])
        within = [
            (numbers >= low) & (numbers <= high)  # what is missing, nan, is not
            for name, (low, high) in self.kept.items()
            for numbers in [np.asarray(table[name], "float64")]
        ]
        rows = np.logical_and.reduce([np.full(count, True), *within]).nonzero()[0]
        if not self.kept:
            return table, rows
        return {name: _taken(values, rows) for name, values in table.items()}, rows

    def _inputs(self, table: Mapping[str, Any]) -> np.ndarray:
        """Return the features, float32 of shape (n, width); a value that is none: ValueError."""
        features = []
        for name, rule in self.codebook.items():
            column, part = _column_and_part(name)
            values = _part_of(table[column], part) if part else table[column]
            if name in self.unlisted:
                listed = {*map(str, rule.categories)}
                values = [value if str(value) in listed else None for value in values]
            features.append(rule.numbers(name, values).astype("float32"))
        return np.concatenate(features, axis=1)

    def _labels(self, table: Mapping[str, Any]) -> np.ndarray:
        """Return the class of each row, uint8 of shape (n,)."""
        if self.most:
            return np.searchsorted(self.most, _numbers(table, self.target)).astype("uint8")
        rule = ColumnRule(categories=self.labels)
        return rule.ids(self.target, table[self.target]).astype("uint8")

    def _parts(self, table: Mapping[str, Any], numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Return whether each row, by its number in the file, is of a part, by the part."""
        whose = _numbers(table, self.person) if self.person else numbers
        drawn = mix64(whose.astype("int64").astype("uint64"))
        test = drawn % np.uint64(TEST_SHARE) == 0
        if not self.validation_file:
            return {"train": ~test, "test": test}
        validation = drawn % np.uint64(VALIDATION_SHARE) == 1
        return {"train": ~(test | validation), "validation": validation, "test": test}


def _column_and_part(name: str) -> tuple[str, str]:
    """Return the column that an input is made from, and the part of a time that it is, if any."""
    column, _, part = name.rpartition(".")
    return (column, part) if part in TIMES else (name, "")


def _plain(column: Any) -> Any:
    """Return a column as an array of numbers or times, or else as a list."""
    import pyarrow

    times = pyarrow.types.is_temporal(column.type)
    return (
        column.to_numpy()
        if times or (not column.null_count and _is_number(column))
        else (column.to_pylist())
    )


def _is_number(column: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_integer(column.type) or pyarrow.types.is_floating(column.type))


def _taken(values: Any, rows: np.ndarray) -> Any:
    return values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]


def _numbers(table: Mapping[str, Any], name: str) -> np.ndarray:
    try:
        return np.asarray(table[name], "float64")
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected numbers") from None


def _part_of(times: np.ndarray, part: str) -> np.ndarray:
    """Return the month, weekday or hour of each time, counted from 0; Monday is 0."""
    unit, count = TIMES[part]
    since = times.astype(f"datetime64[{unit}]").astype("int64")
    return (since + 3 * (part == "weekday")) % count  # 1 January 1970 was a Thursday


def _sparse(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what of a matrix is not 0, as `SparseRows` has it."""
    row, column = rows.nonzero()
    starts = np.searchsorted(row, np.arange(len(rows) + 1)).astype("int64")
    return starts, column.astype("uint16"), rows[row, column]
