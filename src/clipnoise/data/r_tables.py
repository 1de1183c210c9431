"""Data frames of R, in the files that R's `save` writes."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
from collections.abc import Callable, Mapping
from typing import Any

from clipnoise.lazy import np

COMPRESSED: tuple[tuple[bytes, Callable[[bytes], bytes]], ...] = (
    (b"\x1f\x8b", gzip.decompress),
    (b"BZh", bz2.decompress),
    (b"\xfd7zXZ", lzma.decompress),
)
HEADS = (b"RDX2\nX\n", b"RDX3\nX\n")  # of the binary format, versions 2 and 3
# Codes of what follows, in the low byte of a number whose other bits are flags.
SYMBOL, PAIRS, TEXT, LOGICAL, INTEGER, REAL, TEXTS, LIST = 1, 2, 9, 10, 13, 14, 16, 19
END, SEEN = 254, 255
NUMBERS = {LOGICAL: ">i4", INTEGER: ">i4", REAL: ">f8"}
HAS_ATTRIBUTES, HAS_NAME = 0x200, 0x400
MISSING = -(2**31)  # an integer that is missing


def read_data_frame(content: bytes) -> dict[str, Any]:
    """Return the columns of the first object of a file, which must be a data frame.

    Returns:
        By name: float64 or integers of shape (n,); a factor becomes a list of its levels, with None
        for a missing value.

    Raises:
        ValueError: it is no such file, holds something else, or ends too early.

    Source: R Internals, section 1.8, "Serialization Formats".
    """
    try:
        for start, decompress in COMPRESSED:
            content = decompress(content) if content.startswith(start) else content
        if not content.startswith(HEADS):
            raise ValueError("not a file that R saved in binary form")
        ((_, frame), *_) = _Reader(content, len(HEADS[0])).whole()
        columns, facts = frame
        return {
            name: _plain(*column) for name, column in zip(facts["names"][0], columns, strict=True)
        }
    except (OSError, EOFError, lzma.LZMAError, struct.error, TypeError, KeyError) as error:
        raise ValueError(f"not a data frame of R, or damaged ({error!r})") from None


def _plain(values: Any, facts: Mapping[str, Any]) -> Any:
    """Return a column as an array, or as a list of texts."""
    if "levels" in facts:
        levels = facts["levels"][0]
        return [None if place == MISSING else levels[place - 1] for place in values]
    return (
        values.astype(values.dtype.newbyteorder("=")) if isinstance(values, np.ndarray) else values
    )


class _Reader:
    """Reads one thing after the other: a pair of a value and its attributes, by name."""

    def __init__(self, content: bytes, place: int) -> None:
        self._content, self._place = content, place
        self._symbols: list[Any] = []

    def whole(self) -> Any:
        """Return what a file holds, after its versions and the name of its encoding."""
        version = self._integer()
        self._place += 8
        if version > 2:
            self._taken(self._integer())
        return self._next()

    def _integer(self) -> int:
        (value,) = struct.unpack(">i", self._taken(4))
        return int(value)

    def _taken(self, count: int) -> bytes:
        self._place += count
        if self._place > len(self._content):
            raise EOFError("it ends too early")
        return self._content[self._place - count : self._place]

    def _next(self) -> Any:
        flags = self._integer()
        code = flags & 0xFF
        if code == END:
            return []
        if code == SEEN:
            return self._symbols[(flags >> 8) - 1]
        if code == SYMBOL:
            self._symbols.append(self._next())
            return self._symbols[-1]
        if code == TEXT:
            count = self._integer()
            return None if count == -1 else self._taken(count).decode("utf-8", "replace")
        if code == PAIRS:
            return self._pairs(flags)
        return self._vector(code), dict(self._next()) if flags & HAS_ATTRIBUTES else {}

    def _pairs(self, flags: int) -> list[tuple[Any, Any]]:
        if flags & HAS_ATTRIBUTES:
            self._next()
        name = self._next() if flags & HAS_NAME else None
        return [(name, self._next()), *self._next()]

    def _vector(self, code: int) -> Any:
        if code in (TEXTS, LIST):
            return [self._next() for _ in range(self._integer())]
        if code not in NUMBERS:
            raise ValueError(f"a value of the kind {code}, which no table has")
        kind, count = np.dtype(NUMBERS[code]), self._integer()
        return np.frombuffer(self._taken(count * kind.itemsize), kind)
