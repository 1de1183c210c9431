"""Readers of raw files: Parquet, and the SQLite databases of TensorFlow Federated."""

from __future__ import annotations

import json
import lzma
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import copyfileobj
from typing import Any, Literal

from clipnoise.errors import UserError, unknown

Part = Literal["train", "heldout"]

PIECE = 4096  # rows held at once
NAME = "clipnoise.Example"
BYTES, MESSAGE, TEXT = 12, 11, 9  # field types of a protocol buffer


def parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a Parquet file, reading it in pieces.

    Args:
        path: the file.
        columns: which columns, in order; none may have a missing value.

    Yields:
        One tuple of values per row.

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
        for column, held in zip(columns, values, strict=True):
            if held.null_count:
                end = done + len(piece)
                raise UserError(f"{path}: {column}: a missing value in rows {done} to {end}.")
        yield from zip(*(held.to_pylist() for held in values), strict=True)
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
        UserError: it is not.
    """
    if not isinstance(label, int) or not 0 <= label < classes:
        raise UserError(f"{path}: the label {label!r}; allowed are 0 to {classes - 1}.")
    return label


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence and of its question's title, in order, and the question's tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Database:
    """An open database of users and their examples; `path` is for messages."""

    path: Path
    connection: sqlite3.Connection

    def users(self, part: Part) -> list[str]:
        """Return the ids of the users of a part, in the order of TensorFlow Federated.

        Raises:
            UserError: the database has no such part.
        """
        rows = self.connection.execute(
            "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ?", (part,)
        )
        names = sorted(name for (name,) in rows)
        if not names:
            raise UserError(f"{self.path}: no split {part!r} in it.")
        return names

    def sentences(self, part: Part, user: str) -> Iterator[Sentence]:
        """Yield the sentences of a user in their order.

        Raises:
            UserError: one is not a tf.train.Example with tokens, title and tags.
        """
        rows = self.connection.execute(
            "SELECT serialized_example_proto FROM examples "
            "WHERE client_id = ? AND split_name = ? ORDER BY rowid",
            (user, part),
        )
        for (serialised,) in rows:
            try:
                texts = texts_of(serialised)
                words = f"{texts['tokens']} {texts['title']}".split()
                yield Sentence(tuple(words), tuple(texts["tags"].split("|")))
            except (KeyError, ValueError) as error:
                raise UserError(
                    f"{self.path}: an example of user {user} in the split {part!r} is damaged or "
                    f"lacks a feature ({error})."
                ) from None


@contextmanager
def open_database(path: Path, folder: Path) -> Iterator[Database]:
    """Open a compressed database, unpacked into a temporary file.

    Args:
        path: the file, which ends in .lzma.
        folder: on whose disk it is unpacked.

    Raises:
        UserError: it is truncated or damaged, or the disk is full.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacked.") as place:
        plain = Path(place) / "database"
        try:
            with lzma.open(path) as packed, plain.open("wb") as stream:
                copyfileobj(packed, stream, 1 << 20)
        except (lzma.LZMAError, EOFError) as error:
            raise UserError(f"{path}: truncated or damaged ({error}).") from None
        except OSError as error:
            raise UserError(
                f"{path}: cannot be unpacked into {folder}: {error.strerror}."
            ) from None
        connection = sqlite3.connect(f"{plain.resolve().as_uri()}?mode=ro", uri=True)
        try:
            yield Database(path, connection)
        except sqlite3.DatabaseError as error:
            raise UserError(f"{path}: not a database of TensorFlow Federated ({error}).") from None
        finally:
            connection.close()


def read_counts(path: Path) -> dict[str, int]:
    """Read counts of words ("word count" in each line) or of tags (JSON).

    Raises:
        UserError: the file is damaged.
    """
    name = path.name.removesuffix(".tar.bz2")
    try:
        with tarfile.open(path) as archive:
            member = archive.extractfile(name)
            assert member is not None
            content = member.read().decode()
        if content.lstrip().startswith("{"):
            return {tag: int(count) for tag, count in json.loads(content).items()}
        pairs = (line.split() for line in content.splitlines())
        return {word: int(count) for word, count in pairs}
    except (tarfile.TarError, OSError, EOFError, KeyError, ValueError) as error:
        raise UserError(f"{path}: truncated or damaged ({error}).") from None


def texts_of(serialised: bytes) -> dict[str, str]:
    """Return the text features of a serialised tf.train.Example.

    Raises:
        ValueError: it is not such a message.
    """
    from google.protobuf.message import DecodeError

    try:
        example = _message()()
        example.ParseFromString(serialised)
        return {
            feature.key: feature.value.bytes_list.value[0].decode()
            for feature in example.features.feature
            if feature.value.bytes_list.value
        }
    except DecodeError as error:
        raise ValueError(str(error)) from None


@cache
def _message() -> Any:
    """Return the message class of tf.train.Example, defined here so that TensorFlow is not needed.

    Only the fields that are read have names.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="clipnoise")
    fields: dict[str, list[tuple[str, int, int, str, bool]]] = {
        "BytesList": [("value", 1, BYTES, "", True)],
        "Feature": [("bytes_list", 1, MESSAGE, "BytesList", False)],
        "Entry": [("key", 1, TEXT, "", False), ("value", 2, MESSAGE, "Feature", False)],
        "Features": [("feature", 1, MESSAGE, "Entry", True)],
        "Example": [("features", 1, MESSAGE, "Features", False)],
    }
    for name, parts in fields.items():
        message = file.message_type.add(name=name)
        for field, number, kind, other, repeated in parts:
            message.field.add(
                name=field,
                number=number,
                type=kind,
                label=3 if repeated else 1,
                type_name=f".clipnoise.{other}" if other else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(NAME))
