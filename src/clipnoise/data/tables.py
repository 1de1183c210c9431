"""Files of the user's tables and arrays: CSV, TSV, Parquet and NumPy archives."""

from __future__ import annotations

import codecs
import os
import re
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from clipnoise.errors import UserError, nearest
from clipnoise.fields import STRICT
from clipnoise.lazy import np

TEXT_FORMS = (".csv", ".tsv")
FORMS = (*TEXT_FORMS, ".parquet", ".npz")
BROKEN = (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)
SEPARATORS = {";": "';'", "\t": "a tab", "|": "'|'"}  # looked for where there is no comma
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
LEADING_ZERO = "^0[0-9]+$"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a text file of a table is written.

    Attributes:
        separator: between two columns of a .csv file; those of a .tsv file are separated by tabs.
        decimal: what separates the decimals of a number.
        encoding: of the text, such as "latin-1".
    """

    __pydantic_config__: ClassVar = STRICT

    separator: str = ","
    decimal: Literal[".", ","] = "."
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        if len(self.separator) != 1 or self.separator in ('"', "\n", "\r"):
            raise ValueError(f"separator must be one character, got {self.separator!r}")
        if self.separator == self.decimal:
            raise ValueError(f"separator and decimal are both {self.decimal!r}")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise ValueError(
                f"encoding {self.encoding!r} is unknown; allowed are those of Python, such as "
                "utf-8, latin-1 and cp1252"
            ) from None


USUAL = Layout()
OTHER_ENCODING = (
    "not in the encoding that was given, or in utf-8 where none was. Give the right one, such as "
    "encoding: latin-1."
)


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


def read_columns(
    path: Path,
    names: tuple[str, ...] | None = None,
    *,
    layout: Layout = USUAL,
    may_lack: Collection[str] = (),
) -> dict[str, Any]:
    """Read arrays of an archive, or columns of a table: arrays of numbers, or lists.

    Args:
        path: a file whose suffix is one of FORMS.
        names: which ones, in order; None for all.
        layout: of a text file.
        may_lack: the columns of which values may be missing: None in a list, nan in an array.

    Raises:
        UserError: the file is damaged or empty, lacks a column, or has a missing value.
    """
    if path.suffix != ".npz":
        return _columns(path, read_table(path, layout), names, may_lack)
    try:
        with np.load(path, allow_pickle=False) as archive:
            chosen = _known("array", names, archive.files, path)
            _require_memory(path, archive.zip)
            return {name: np.atleast_1d(archive[name]) for name in chosen}
    except (*BROKEN, MemoryError) as error:
        raise UserError(f"{path}: truncated, damaged or not of plain arrays ({error}).") from None


def read_columns_and_zeros(
    path: Path, names: tuple[str, ...] | None, *, layout: Layout, may_lack: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """Read columns, and return which of them are written as numbers such as 01067.

    A text file is read once: what was read is parsed again, for its whole numbers alone.

    Args:
        path, names, layout, may_lack: as for `read_columns`.

    Returns:
        The columns, and the names of those with leading zeros, which only a text file has.

    Raises:
        UserError: as for `read_columns`.
    """
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import compute

    if path.suffix not in TEXT_FORMS:
        return read_columns(path, names, layout=layout, may_lack=may_lack), []
    try:
        with pyarrow.OSFile(str(path)) as file:
            content = file.read_buffer()
    except OSError as error:
        raise _no_table(path, error) from None
    table = _table(path, layout, content)
    columns = _columns(path, table, names, may_lack)
    whole = [name for name in columns if pyarrow.types.is_integer(table.column(name).type)]
    texts: Any = _parsed(path, layout, content, as_text=whole) if whole else None
    zeros = [
        name
        for name in whole
        if compute.any(compute.match_substring_regex(texts.column(name), LEADING_ZERO)).as_py()
    ]
    return columns, zeros


def _require_memory(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse an archive, before it is read, that unpacks to more than the machine's memory."""
    unpacked = sum(member.file_size for member in archive.infolist())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if unpacked > memory:
        raise UserError(
            f"{path}: unpacks to {unpacked / 1e9:,.1f} GB, but this machine has "
            f"{memory / 1e9:,.1f} GB of memory."
        )


def _columns(
    path: Path, table: Any, names: tuple[str, ...] | None, may_lack: Collection[str]
) -> dict[str, Any]:
    return {name: _column(path, table, name, name in may_lack)
            for name in _known("column", names, table.column_names, path)}  # fmt: skip


def _column(path: Path, table: Any, name: str, may_lack: bool) -> Any:
    import pyarrow

    column = table.column(name)
    if column.null_count and not may_lack:
        row = column.is_null().index(True).as_py()
        raise UserError(
            f"{path}: {name}: a missing value in row {row}. For an input, the option columns says "
            f"what stands for it: {{{name}: {{missing: …}}}}."
        )
    if pyarrow.types.is_temporal(column.type):
        raise UserError(
            f"{path}: {name} holds times ({column.type}). Give numbers instead, such as days since "
            "a day that is chosen without the data."
        )
    plain = pyarrow.types.is_primitive(column.type)
    return column.to_numpy() if plain else column.to_pylist()


def _known(
    kind: str, names: tuple[str, ...] | None, there: list[str], path: Path
) -> tuple[str, ...]:
    for name in names or ():
        if name not in there:
            has = f"{nearest(name, there)} It has: {', '.join(there)}."
            raise UserError(f"{path}: has no {kind} {name!r}.{has}")
    return tuple(there) if names is None else names


def read_table(path: Path, layout: Layout = USUAL) -> Any:
    """Return a text file or a Parquet file as a table of pyarrow.

    Args:
        path: the file.
        layout: of a text file.

    Raises:
        UserError: the file is damaged, empty, or written in another way than it should be.
    """
    return _table(path, layout, path)


def _table(path: Path, layout: Layout, source: Any) -> Any:
    """Return a file as a table of pyarrow, parsed from its path or, if text, from what it holds."""
    import pyarrow
    from pyarrow import parquet

    written = path.suffix in TEXT_FORMS
    try:
        table = _parsed(path, layout, source) if written else parquet.read_table(source)
        names = table.column_names
    except UnicodeError:
        raise UserError(f"{path}: its first line is {OTHER_ENCODING}") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise _no_table(path, error) from None
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"{path}: several columns are called {twice[0]!r}. Rename all but one.")
    if written:
        _require_layout(path, table, _separator(path, layout))
    if not len(table):
        raise UserError(f"{path}: holds no rows.")
    return table


def _no_table(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: not such a table, or truncated or damaged ({error}).")


def _separator(path: Path, layout: Layout) -> str:
    return "\t" if path.suffix == ".tsv" else layout.separator


def _parsed(path: Path, layout: Layout, source: Any, *, as_text: Collection[str] = ()) -> Any:
    """Parse a text file, or only some of its columns, which are left as text."""
    import pyarrow
    from pyarrow import csv

    return csv.read_csv(
        source if isinstance(source, Path) else pyarrow.BufferReader(source),
        csv.ReadOptions(encoding=layout.encoding),
        csv.ParseOptions(delimiter=_separator(path, layout)),
        csv.ConvertOptions(
            decimal_point=layout.decimal,
            include_columns=[*as_text],
            column_types=dict.fromkeys(as_text, pyarrow.string()),
        ),
    )


def _require_layout(path: Path, table: Any, separator: str) -> None:
    """Refuse a text file whose separator or encoding seems to be another one."""
    import pyarrow

    names = table.column_names
    for other, called in SEPARATORS.items():
        if len(names) == 1 and other != separator and other in names[0]:
            raise UserError(
                f"{path}: has one column, {names[0]!r}. If {called} separates its columns, give "
                f"the separator: {other!r}."
            )
    for name, column in zip(names, table.columns, strict=True):
        if pyarrow.types.is_binary(column.type):
            raise UserError(f"{path}: {name} is {OTHER_ENCODING}")


def cut_off(
    path: Path, shares: Mapping[str, float], folder: Path, *, layout: Layout, user: str | None
) -> dict[str, Path]:
    """Divide a file at random into a training file and others, the same ones each time.

    Args:
        path: a text file, a Parquet file or a NumPy archive.
        shares: of the rows that the other files get, by their names.
        folder: where the files are written; text files with commas and in utf-8.
        layout: of a text file.
        user: the column that says whose a row is; all rows of a user are in one file, and `shares`
            are those of the users.

    Returns:
        The files by name, the training file first.

    Raises:
        UserError: the file is damaged, or there are such files already.
    """
    suffix = ".csv" if path.suffix in TEXT_FORMS else path.suffix
    parts = {part: folder / f"{part}{suffix}" for part in ("train", *shares)}
    if there := [part for part in parts.values() if part.exists()]:
        raise UserError(f"{there[0]}: is there already; describe it instead, or delete it.")
    table = read_columns(path) if path.suffix == ".npz" else read_table(path, layout)
    count = len(next(iter(table.values()))) if isinstance(table, dict) else len(table)
    owners = np.arange(count) if user is None else numbered_users(path, _of(path, table, user))[0]
    order = np.random.default_rng(0).permutation(int(owners.max()) + 1)
    ends = np.cumsum([round(share * len(order)) for share in shares.values()])
    cut = [*np.split(order, ends)]
    members = dict(zip((*shares, "train"), cut, strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as unfinished:  # no half of a file
        for part, file in parts.items():
            rows = np.flatnonzero(np.isin(owners, members[part]))
            if not len(rows):
                raise UserError(f"{path}: nothing is left for the part {part!r}.")
            _write_rows(table, rows, Path(unfinished, file.name))
        for file in parts.values():
            Path(unfinished, file.name).replace(file)
    return parts


def numbered_users(path: Path, owners: Any) -> tuple[np.ndarray, list[str]]:
    """Return the user of each row as a number from 0, int64 of shape (n,), and all their names.

    Raises:
        UserError: a row has no user, or something that is no name and no whole number.
    """
    values = np.asarray(owners)
    named = values.dtype.kind in "iuUO" and values.ndim == 1
    if not named or any(one is None or one == "" for one in values):
        raise UserError(f"{path}: the user of every row must be a text or a whole number.")
    names, numbers = np.unique(values.astype(str), return_inverse=True)
    return numbers.astype("int64"), names.tolist()


def _of(path: Path, table: Any, name: str) -> Any:
    """Return a column of what was read."""
    if isinstance(table, dict):
        return table[_known("array", (name,), list(table), path)[0]]
    return _column(path, table, _known("column", (name,), table.column_names, path)[0], False)


def _write_rows(table: Any, rows: np.ndarray, path: Path) -> None:
    """Write some rows of arrays by name, or of a table of pyarrow."""
    from pyarrow import csv, parquet

    if isinstance(table, dict):
        np.savez(path, **{name: values[rows] for name, values in table.items()})
    else:
        write = csv.write_csv if path.suffix == ".csv" else parquet.write_table
        write(table.take(rows), path)
