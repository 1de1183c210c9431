"""Writing files atomically, locking them, writing CSV and reading YAML."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from clipnoise.errors import UNPRINTABLE, UserError, reason, shorten

UNFINISHED = ".part"
WIDTH = 160  # characters of a line of JSON
MOST_VALUES = 100_000  # in a file that people write
DEEPEST = 100  # lists and mappings within each other, likewise
LARGEST_INTEGER = 2**63
MOST_BYTES = 64 * 2**20  # of a file of JSON


class UnwritableError(UserError, OSError):
    """No file can be created in a folder: it is read-only, cannot be made, or is a file."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file such that a reader sees the old or the new content, never a part of it.

    The folder is created if missing; text is written as UTF-8. Who may read and write the file
    follows from the process's umask.

    Raises:
        UnwritableError: the folder cannot be written.
        OSError: the disk is full; nothing is left behind.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UnwritableError(f"{path}: cannot be written ({error.strerror}).") from None
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_unfinished(folder: Path) -> None:
    """Delete the temporary files of killed writers."""
    for path in folder.glob(f".*{UNFINISHED}"):
        path.unlink(missing_ok=True)


def require_writable(folder: Path) -> None:
    """Fail before a long job if its results cannot be written; leaves nothing behind.

    Raises:
        UserError: no file can be created in the folder, or it cannot be made; says why.
    """
    try:
        way = (folder.absolute(), *folder.absolute().parents)
        existing = next(path for path in way if path.exists())
        with tempfile.TemporaryFile(dir=existing, buffering=0) as file:  # it has no name
            file.write(b"x")  # a full quota may allow empty files
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}).") from None


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn an error of the disk into a UserError that names the folder."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or error}.") from None


def write_json(path: Path, values: Any) -> None:
    """Write plain data as indented JSON, atomically; NaN and infinity become null."""
    write_atomically(path, json.dumps(finite(values), indent=1, allow_nan=False) + "\n")


def read_bytes(path: Path) -> bytes:
    """Read a file that the suite has written, or that something else has put in its place.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read, or is no regular file, such as a pipe that never ends.
        ValueError: it is larger than MOST_BYTES.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is no regular file")
    if found.st_size > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES // 2**20} MiB")
    return path.read_bytes()


def read_text(path: Path) -> str:
    """Read a file of text as `read_bytes` does; one that is not UTF-8 raises ValueError."""
    return read_bytes(path).decode()


def read_json(path: Path) -> Any:
    """Read a file of JSON.

    Raises:
        FileNotFoundError, OSError, ValueError: as for `read_text`; or it is not JSON, or is nested
            too deeply.
    """
    try:
        return json.loads(read_text(path))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_text(value: Any, indent: int = 0) -> str:
    """Format plain data as JSON, with every mapping and list on one line that fits there."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + len(line) <= WIDTH or not isinstance(value, dict | list):
        return line
    margin = " " * (indent + 1)
    if isinstance(value, dict):
        items = [f"{margin}{json.dumps(k)}: {json_text(v, indent + 1)}" for k, v in value.items()]
    else:
        items = [margin + json_text(item, indent + 1) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([opening, ",\n".join(items), margin[1:] + closing])


def csv_text(columns: Iterable[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Return rows as CSV text, floats in full precision; what a row lacks is an empty field.

    Only what is in the header, the columns, may be in a row.
    """
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def without_formulas(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row whose text no spreadsheet runs: an apostrophe marks it as text."""
    signs = ("=", "+", "-", "@", "\t", "\r")

    def shown(value: Any) -> Any:
        formula = isinstance(value, str) and value.startswith(signs) and not _is_number(value)
        return f"'{value}" if formula else value

    return {name: shown(value) for name, value in row.items()}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def finite(value: Any) -> Any:
    """Return plain data as JSON represents it: NaN and infinity become null, tuples lists."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def inside(folder: Path, name: str, *, key: str) -> Path:
    """Resolve an untrusted relative path inside a folder, which may itself be a symbolic link.

    Args:
        key: where the path was read, for the message.

    Raises:
        UserError: the path leads out of the folder: by `..`, as an absolute path, or by a link.
    """
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{key}: {name!r} leads out of {folder}.")
    return path


class LockedError(Exception):
    """Another process holds a lock."""


@contextmanager
def locked(path: Path, *, seconds: float = -1) -> Iterator[None]:
    """Hold a lock that the operating system releases when the process dies.

    Args:
        path: the lock file; it exists while the lock is held.
        seconds: how long to wait; a negative number waits indefinitely.

    Raises:
        LockedError: another process holds it.
        OSError: the folder cannot be written, or its file system does not support locks.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(path, timeout=seconds)
    try:
        held.acquire()
    except Timeout:
        raise LockedError(f"{path} is locked by another process") from None
    except NotImplementedError as error:
        raise OSError(str(error)) from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while held, so that a waiting process notices and retries
        held.release()


def is_locked(path: Path) -> bool:
    """Return whether a process holds a lock; True also where that cannot be told.

    It is not taken, other than for the moment that asking takes.
    """
    import fcntl

    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def load_yaml(text: str) -> Any:
    """Return the content of YAML or JSON text, read by libyaml, which is eight times as fast.

    Raises:
        yaml.YAMLError: the text is wrong, with the line that PyYAML's own reader shows; or a
            mapping has a key twice, of which PyYAML would take the last without a word; or aliases
            make a short text stand for more than MOST_VALUES; or it is nested too deeply, holds a
            control character, a date that does not exist, or an integer of more than 64 bits.
    """
    try:
        return _load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.MarkedYAMLError:
        return _load(text, yaml.SafeLoader)


def _load(text: str, kind: Any) -> Any:
    """Return what a loader of some kind reads, unless there is something wrong with it."""
    depth = 0
    for event in yaml.parse(text, Loader=kind):  # libyaml itself would run out of stack
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise yaml.YAMLError("it is nested too deeply")
    loader = kind(text)
    node = loader.get_single_node()
    if node is None:
        return None
    if _values(node, {}) > MOST_VALUES:
        raise yaml.YAMLError(f"it stands for more than {MOST_VALUES:,} values")
    _check_scalars(loader, node, set())
    repeated = next(_repeated_keys(node, (), set()), None)  # before aliases are merged
    content = loader.construct_document(node)
    if repeated is not None:
        raise yaml.YAMLError(repeated)
    return content


def _check_scalars(loader: Any, node: Any, known: set[int]) -> None:
    """Refuse a value that nothing could use, with its line."""
    if id(node) in known:  # an alias
        return
    known.add(id(node))
    if isinstance(node, yaml.CollectionNode):
        parts = (
            chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        )
        for part in parts:
            _check_scalars(loader, part, known)
        return
    wrong = UNPRINTABLE.search(node.value)
    problem = f"the character {wrong[0]!r} is not allowed" if wrong else None
    if problem is None and node.tag.endswith((":int", ":timestamp")):
        problem = _wrong_number(loader, node)
    if problem is not None:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _wrong_number(loader: Any, node: Any) -> str | None:
    """Say what is wrong with an integer or a date; None if nothing is."""
    too_long = f"{shorten(node.value)} has more than 64 bits"
    try:
        value = loader.construct_object(node)
    except (ValueError, OverflowError) as error:  # Python reads no integers of thousands of digits
        integer = node.tag.endswith(":int")
        return too_long if integer else f"{shorten(node.value)}: {reason(error)}"
    return too_long if isinstance(value, int) and abs(value) >= LARGEST_INTEGER else None


def _values(node: Any, known: dict[int, float]) -> float:
    """Return how many values a node stands for; infinitely many if it holds itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        items = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = chain.from_iterable(items) if isinstance(node, yaml.MappingNode) else items
        known[id(node)] = 1 + sum(_values(part, known) for part in parts)
    return known[id(node)]


def _repeated_keys(node: Any, place: tuple[str, ...], known: set[int]) -> Iterator[str]:
    """Yield where a mapping below a node has a key twice."""
    if id(node) in known:  # an alias
        return
    known.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield from _repeated_keys(item, (*place, str(number)), known)
    elif isinstance(node, yaml.MappingNode):
        keys: dict[tuple[str, str], Any] = {}
        for key, value in node.value:
            within = (*place, str(key.value))
            name = (key.tag, str(key.value))
            first = keys.setdefault(name, key)
            if first is not key:
                lines = f"{first.start_mark.line + 1} and {key.start_mark.line + 1}"
                yield f"{'.'.join(within)}: given twice, in lines {lines}"
            yield from _repeated_keys(value, within, known)


def _in_one_line(error: Exception) -> str:
    """Return what is wrong with YAML text, and where."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return str(error)
    return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', '')}"


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping, safely.

    Raises:
        UserError: the file is missing, is not YAML, or is not a mapping.
    """
    try:
        values = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid YAML: {_in_one_line(error)}.") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a mapping at the top, got {type(values).__name__}.")
    return values
