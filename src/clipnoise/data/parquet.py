"""Reading Parquet files in pieces, with errors that name file, column and row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from clipnoise.errors import UserError, unknown

PIECE = 4096  # rows held at once


def rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a Parquet file.

    Args:
        path: the file.
        columns: which columns, in order; none may have a missing value.

    Yields:
        One tuple of values a row.

    Raises:
        UserError: the file is truncated or damaged, lacks a column, or has a missing value.
    """
    file = _guarded(path, lambda: _open(path))
    for column in columns:
        if column not in file.schema_arrow.names:
            raise unknown("column", column, file.schema_arrow.names, file=str(path))
    pieces, done = file.iter_batches(PIECE, columns=list(columns)), 0
    while (piece := _guarded(path, lambda: next(pieces, None))) is not None:
        values = [piece.column(column) for column in columns]
        for column, found in zip(columns, values, strict=True):
            if found.null_count:
                end = done + len(piece)
                raise UserError(f"{path}: {column}: a missing value in rows {done} to {end}.")
        yield from zip(*(found.to_pylist() for found in values), strict=True)
        done += len(piece)


def _open(path: Path) -> Any:
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

    return ParquetFile(path)


def _guarded(path: Path, read: Callable[[], Any]) -> Any:
    import pyarrow  # type: ignore[import-untyped]

    try:
        return read()
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a Parquet file, or truncated or damaged ({error}).") from None


def check_label(path: Path, label: object, classes: int) -> int:
    """Return a label, an integer from 0 to classes − 1.

    Raises:
        UserError: it is something else.
    """
    if not isinstance(label, int) or not 0 <= label < classes:
        raise UserError(f"{path}: the label {label!r}; allowed are 0 to {classes - 1}.")
    return label
