"""Raw files of a dataset: downloaded where there is a network, put there by hand where not.

They lie in `<cache>/raw/<name>/`, as their source gives them out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipnoise.data.download import download
from clipnoise.errors import UserError
from clipnoise.files import write_json

if TYPE_CHECKING:
    from clipnoise.data.base import Dataset

Report = Callable[[str, int, int | None], None]

CHECKSUMS = "checksums.json"
PUBLISHED, DOWNLOADED, ACCEPTED = "its source", "the first download", "what was accepted"


@dataclass(frozen=True)
class RemoteFile:
    """A file as its source gives it out.

    Attributes:
        name: of the file in the raw folder.
        address: where it is; None where only a person can get it (a licence, a login).
        sha256: its checksum, where the source or a library of the field publishes one.
        md5: the same, where only this one is published. With neither, the checksum of the first
            download is recorded, and holds from then on.
    """

    name: str
    address: str | None
    sha256: str | None = None
    md5: str | None = None


@dataclass(frozen=True)
class RawFile:
    """A raw file that is there.

    Attributes:
        sha256: its checksum.
        checked: what it was compared with.
        problem: how it differs from that, or None.
    """

    sha256: str
    checked: str
    problem: str | None = None


@dataclass(frozen=True)
class Expected:
    """A checksum that a file should have, of a kind that hashlib knows, and who says so."""

    origin: str
    kind: str
    checksum: str


def raw_folder(cache: Path, name: str) -> Path:
    """Return where the raw files of a name lie: a dataset's `raw`, or its id."""
    return cache / "raw" / name


def require_raw(cache: Path, dataset: Dataset) -> Path:
    """Return the folder of a dataset's raw files.

    Raises:
        UserError: a file is missing; the message says how to fetch it, and how to get it by hand.
    """
    folder = raw_folder(cache, dataset.raw or dataset.id)
    missing = [file.name for file in dataset.files if not (folder / file.name).is_file()]
    if missing:
        raise UserError(
            f"{folder}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not there. "
            f"Run: clipnoise data fetch {dataset.id} --cache {cache}\n"
            f"{manual_steps(cache, dataset)}"
        )
    return folder


def manual_steps(cache: Path, dataset: Dataset) -> str:
    """Say how to get the raw files of a dataset without this program."""
    folder = raw_folder(cache, dataset.raw or dataset.id)
    lines = [f"By hand: {dataset.manual}".rstrip()]
    for file in dataset.files:
        published = _expected(file, {})
        checksum = "" if published is None else f" ({published.kind} {published.checksum})"
        lines.append(f"  {file.address or file.name}{checksum}\n    to {folder / file.name}")
    lines.append(f"Then: clipnoise data verify {dataset.id} --cache {cache}")
    return "\n".join(lines)


def raw_files(cache: Path, dataset: Dataset) -> dict[str, RawFile]:
    """Return what the raw files of a dataset are, compared with what they should be.

    Raises:
        UserError: a file is missing.
    """
    if not dataset.files:
        return {}
    folder = require_raw(cache, dataset)
    recorded = _recorded(folder)
    return {
        file.name: _compared(folder / file.name, _expected(file, recorded.get(file.name, {})))
        for file in dataset.files
    }


def verify(cache: Path, dataset: Dataset) -> dict[str, RawFile]:
    """Return `raw_files`, none of which has a problem.

    Raises:
        UserError: a file is missing, or is not the one that was published, recorded or accepted.
    """
    found = raw_files(cache, dataset)
    folder = raw_folder(cache, dataset.raw or dataset.id)
    wrong = [f"{folder / name}: {one.problem}" for name, one in found.items() if one.problem]
    if wrong:
        raise UserError(
            "\n".join(wrong)
            + "\nDelete it and fetch it again, or, if another file is what you want there: "
            f"clipnoise data prepare {dataset.id} --unverified --cache {cache}"
        )
    return found


def facts(cache: Path, dataset: Dataset) -> dict[str, Any]:
    """Return what the manifest of every dataset says, and from which raw files it was made.

    Raises:
        UserError: a raw file is missing.
    """
    raw = {
        name: {"sha256": one.sha256, "checked against": one.checked}
        for name, one in raw_files(cache, dataset).items()
    }
    return {
        "dataset": dataset.id,
        "title": dataset.title,
        "source": dataset.source,
        "licence": dataset.licence,
        "split": dataset.split,
        "preprocessing": dataset.preprocessing,
        **({"raw files": raw} if raw else {}),
    }


def accept(cache: Path, dataset: Dataset) -> None:
    """Record that the raw files are wanted as they are, whatever their source publishes.

    Raises:
        UserError: a file is missing, or the folder cannot be written.
    """
    if not dataset.files:
        return
    folder = require_raw(cache, dataset)
    digests = {file.name: _digest(folder / file.name, "sha256") for file in dataset.files}
    _record(folder, digests, ACCEPTED)


def fetch(cache: Path, dataset: Dataset, report: Report = lambda name, done, total: None) -> Path:
    """Download the raw files of a dataset, going on where an earlier download stopped.

    Args:
        cache: folder of prepared datasets; the raw files go below it.
        dataset: whose files.
        report: is told a file's name, how many bytes of it are there, and how many there will be.

    Returns:
        The folder of the files; each is there whole, with the right checksum.

    Raises:
        UserError: no network, no such file there, a wrong checksum, no space; the message says how
            to get the files by hand.
    """
    from filelock import FileLock, Timeout

    folder = raw_folder(cache, dataset.raw or dataset.id)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock", blocking=False):
            for file in dataset.files:
                if not (folder / file.name).exists():
                    _fetch(folder, file, report)
    except Timeout:
        raise UserError(f"{folder}: is being fetched by another process.") from None
    except UserError as error:
        raise UserError(f"{error}\n{manual_steps(cache, dataset)}") from None
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or error}.") from None
    verify(cache, dataset)
    return folder


def _fetch(folder: Path, file: RemoteFile, report: Report) -> None:
    if file.address is None:
        raise UserError(f"{file.name}: cannot be downloaded by a program.")
    target = folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    recorded = _recorded(folder).get(file.name, {})
    accepted = recorded.get("from") == ACCEPTED
    expected = _expected(file, {} if accepted else recorded)
    if expected is None:
        part.unlink(missing_ok=True)  # nothing would tell if its source had changed meanwhile
    download(file.address, part, lambda done, total: report(file.name, done, total))
    found = _compared(part, expected)
    if found.problem:
        part.unlink()
        raise UserError(f"{file.address}: {found.problem}")
    part.replace(target)
    _record(folder, {file.name: found.sha256}, DOWNLOADED)


def _expected(file: RemoteFile, recorded: Mapping[str, str]) -> Expected | None:
    """Return what a file is compared with: what was accepted, published or downloaded first."""
    accepted = recorded.get("from") == ACCEPTED
    if file.sha256 is not None and not accepted:
        return Expected(PUBLISHED, "sha256", file.sha256)
    if file.md5 is not None and not accepted:
        return Expected(PUBLISHED, "md5", file.md5)
    if recorded:
        return Expected(ACCEPTED if accepted else DOWNLOADED, "sha256", recorded["sha256"])
    return None


def _compared(path: Path, expected: Expected | None) -> RawFile:
    digest = _digest(path, "sha256")
    if expected is None:
        return RawFile(digest, "nothing")
    found = digest if expected.kind == "sha256" else _digest(path, expected.kind)
    if found == expected.checksum:
        return RawFile(digest, expected.origin)
    problem = f"its {expected.kind} is {found}, not {expected.checksum}, that of {expected.origin}."
    return RawFile(digest, expected.origin, problem)


def _digest(path: Path, kind: str) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, kind).hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None


def _recorded(folder: Path) -> dict[str, dict[str, str]]:
    try:
        recorded: dict[str, dict[str, str]] = json.loads((folder / CHECKSUMS).read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / CHECKSUMS}: cannot be read ({error}).") from None
    return recorded


def _record(folder: Path, digests: dict[str, str], origin: str) -> None:
    new = {name: {"sha256": digest, "from": origin} for name, digest in digests.items()}
    try:
        write_json(folder / CHECKSUMS, {**_recorded(folder), **new})
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or error}.") from None
