"""TensorFlow Federated's files of Stack Overflow: packed SQLite of protocol buffers, and counts."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TAG_NAMES = ("python", "c++", "sql", "css", "git")
NOUNS = ("list", "class", "query", "margin", "branch")
FILLERS = ["how", "do", "i", "use", "the", "a", "in", "my", "of", "<URL>", ",", "?"]
USERS, SENTENCES = 6, 15
PARTS = {"train": USERS, "heldout": 4, "test": 2}


def field(number: int, content: bytes) -> bytes:
    """Return a field of a protocol buffer that holds bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    """Return a number as a protocol buffer has it."""
    if value < 128:
        return bytes([value])
    return bytes([value & 127 | 128]) + varint(value >> 7)


def example(**features: str | int) -> bytes:
    """Serialise a tf.train.Example."""
    entries = b""
    for key, value in features.items():
        if isinstance(value, int):
            feature = field(3, field(1, varint(value)))
        else:
            feature = field(1, field(1, value.encode()))
        entries += field(1, field(1, key.encode()) + field(2, feature))
    return field(1, entries)


def rows() -> Iterator[tuple[str, str, bytes]]:
    """Yield split, user and example; a noun tells the first tag of a sentence."""
    number = 0
    for part, users in PARTS.items():
        for user in range(users):
            for _ in range(SENTENCES):
                kind = number % len(TAG_NAMES)
                words = [FILLERS[(number + place) % len(FILLERS)] for place in range(4)]
                yield (
                    part,
                    f"{user:08}",
                    example(
                        creation_date="2010-01-08 09:34:05 UTC",
                        score=number % 100,
                        tags="|".join([TAG_NAMES[kind], f"rare-{number}"]),
                        title=f"{NOUNS[kind]} {'again ' * (number // 12)}",
                        tokens=f"{' '.join(words)} {NOUNS[kind]} .",
                        type="question",
                    ),
                )
                number += 1


def write_database(path: Path, *, table: str = "examples") -> None:
    """Write the packed database."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.sqlite"
        database = sqlite3.connect(plain)
        database.execute(
            f"CREATE TABLE {table} (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
        )
        database.execute(
            "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)"
        )
        database.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows())
        database.executemany(
            "INSERT INTO client_metadata VALUES (?, ?, ?)",
            [(f"{user:08}", part, SENTENCES) for part in PARTS for user in range(PARTS[part])],
        )
        database.commit()
        database.close()
        path.write_bytes(lzma.compress(plain.read_bytes(), format=lzma.FORMAT_ALONE))


def write_archive(path: Path, content: str) -> None:
    """Write a text as the one member of a .tar.bz2, with the same bytes each time."""
    stream, data = io.BytesIO(), content.encode()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        member = tarfile.TarInfo(path.name.removesuffix(".tar.bz2"))
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    path.write_bytes(bz2.compress(stream.getvalue()))


def write_stackoverflow(cache: Path) -> None:
    """Write the three files."""
    folder = cache / "raw" / "stackoverflow"
    folder.mkdir(parents=True, exist_ok=True)
    write_database(folder / "stackoverflow.sqlite.lzma")
    words = [*FILLERS, *NOUNS]
    lines = "".join(f"{word} {100 - place}\n" for place, word in enumerate(words))
    write_archive(folder / "stackoverflow.word_count.tar.bz2", lines)
    counts = json.dumps({tag: 50 - place for place, tag in enumerate(TAG_NAMES)})
    write_archive(folder / "stackoverflow.tag_count.tar.bz2", counts)


RAW: dict[str, Callable[[Path], None]] = {"stackoverflow": write_stackoverflow}
OPTIONS: dict[str, dict[str, Any]] = {
    "stackoverflow": {
        "users": USERS,
        "words": 18,
        "tags": 5,
        "train_examples": 50,
        "validation_examples": 8,
        "test_examples": 12,
    }
}
