"""Raw files: downloaded where there is a network, put there by hand where not.

Those of a dataset lie in `<cache>/raw/<name>/`, as their source gives them out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipnoise.data.download import download, version_file
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


@dataclass(frozen=True)
class RawFiles:
    """Files that are fetched together: those of a dataset, or the weights of a model.

    Attributes:
        folder: where they lie.
        files: what they are.
        manual: how to get them without this program.
        command: the command line but for its verb, as in "clipnoise data {} mnist --cache data".
        instead: what to do where another file is wanted there than the one that is known.
    """

    folder: Path
    files: tuple[RemoteFile, ...]
    manual: str
    command: str
    instead: str

    def require(self) -> Path:
        """Return the folder.

        Raises:
            UserError: a file is missing; the message says how to fetch it, and how to get it by
                hand.
        """
        missing = self.missing()
        if missing:
            raise UserError(
                f"{self.folder}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not "
                f"there. Run: {self.command.format('fetch')}\n{self.steps()}"
            )
        return self.folder

    def missing(self) -> list[str]:
        """Return the names of the files that are not there."""
        return [file.name for file in self.files if not (self.folder / file.name).is_file()]

    def steps(self) -> str:
        """Say how to get the files without this program."""
        lines = [f"By hand: {self.manual}".rstrip()]
        for file in self.files:
            published = _expected(file, {})
            checksum = "" if published is None else f" ({published.kind} {published.checksum})"
            lines.append(
                f"  {file.address or file.name}{checksum}\n    to {self.folder / file.name}"
            )
        lines.append(f"Then: {self.command.format('verify')}")
        return "\n".join(lines)

    def compare(self) -> dict[str, RawFile]:
        """Return what the files are, compared with what they should be.

        Raises:
            UserError: a file is missing.
        """
        if not self.files:
            return {}
        folder = self.require()
        recorded = _recorded(folder)
        return {
            file.name: _compared(folder / file.name, _expected(file, recorded.get(file.name, {})))
            for file in self.files
        }

    def verify(self) -> dict[str, RawFile]:
        """Return `compare`, where none has a problem.

        Raises:
            UserError: a file is missing, or is not the one that was published, recorded or
                accepted.
        """
        found = self.compare()
        wrong = [
            f"{self.folder / name}: {one.problem}" for name, one in found.items() if one.problem
        ]
        if wrong:
            raise UserError(
                "\n".join(wrong)
                + "\nDelete it and fetch it again, or, if another file is what you want there: "
                + self.instead
            )
        return found

    def accept(self) -> None:
        """Record that the files are wanted as they are, whatever their source publishes.

        Raises:
            UserError: a file is missing, or the folder cannot be written.
        """
        if self.files:
            folder = self.require()
            digests = {file.name: digest(folder / file.name, "sha256") for file in self.files}
            _record(folder, digests, ACCEPTED)

    def fetch(self, report: Report = lambda name, done, total: None) -> Path:
        """Download the files, going on where an earlier download stopped.

        Args:
            report: is told a file's name, how many bytes of it are there, and how many there will
                be.

        Returns:
            The folder of the files; each is there whole, with the right checksum.

        Raises:
            UserError: no network, no such file there, a wrong checksum, no space; the message says
                how to get the files by hand.
        """
        from filelock import FileLock, Timeout

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / ".lock", blocking=False):
                for file in self.files:
                    if not (self.folder / file.name).exists():
                        _fetch(self.folder, file, report)
        except Timeout:
            raise UserError(f"{self.folder}: is being fetched by another process.") from None
        except UserError as error:
            raise UserError(f"{error}\n{self.steps()}") from None
        except OSError as error:
            raise UserError(
                f"{self.folder}: cannot be written: {error.strerror or error}."
            ) from None
        self.verify()
        return self.folder


def raw_folder(cache: Path, name: str) -> Path:
    """Return where the raw files of a name lie: a dataset's `raw`, or its id."""
    return cache / "raw" / name


def raw_files(cache: Path, dataset: Dataset) -> RawFiles:
    """Return the raw files of a dataset, there or not."""
    return RawFiles(
        folder=raw_folder(cache, dataset.raw or dataset.id),
        files=dataset.files,
        manual=dataset.manual,
        command=f"clipnoise data {{}} {dataset.id} --cache {cache}",
        instead=f"clipnoise data prepare {dataset.id} --unverified --cache {cache}",
    )


def require_raw(cache: Path, dataset: Dataset) -> Path:
    """Return the folder of a dataset's raw files.

    Raises:
        UserError: a file is missing; the message says how to fetch it, and how to get it by hand.
    """
    return raw_files(cache, dataset).require()


def facts(cache: Path, dataset: Dataset) -> dict[str, Any]:
    """Return what the manifest of every dataset says, and from which raw files it was made.

    Raises:
        UserError: a raw file is missing.
    """
    raw = {
        name: {"sha256": one.sha256, "checked against": one.checked}
        for name, one in raw_files(cache, dataset).compare().items()
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


def verify(cache: Path, dataset: Dataset) -> dict[str, RawFile]:
    """Return what the raw files of a dataset are; see `RawFiles.verify`."""
    return raw_files(cache, dataset).verify()


def accept(cache: Path, dataset: Dataset) -> None:
    """Record that the raw files of a dataset are wanted as they are; see `RawFiles.accept`."""
    raw_files(cache, dataset).accept()


def fetch(cache: Path, dataset: Dataset, report: Report = lambda name, done, total: None) -> Path:
    """Download the raw files of a dataset and return their folder; see `RawFiles.fetch`."""
    return raw_files(cache, dataset).fetch(report)


def _fetch(folder: Path, file: RemoteFile, report: Report) -> None:
    if file.address is None:
        raise UserError(f"{file.name}: cannot be downloaded by a program.")
    target = folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    recorded = _recorded(folder).get(file.name, {})
    accepted = recorded.get("from") == ACCEPTED
    expected = _expected(file, {} if accepted else recorded)
    if expected is None and not version_file(part).exists():
        part.unlink(missing_ok=True)  # nothing would tell if its source had changed meanwhile
    download(file.address, part, lambda done, total: report(file.name, done, total))
    found = _compared(part, expected)
    if found.problem:
        part.unlink()
        raise UserError(f"{file.address}: {found.problem}")
    part.replace(target)
    version_file(part).unlink(missing_ok=True)
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
    sha256 = digest(path, "sha256")
    if expected is None:
        return RawFile(sha256, "nothing")
    found = sha256 if expected.kind == "sha256" else digest(path, expected.kind)
    if found == expected.checksum:
        return RawFile(sha256, expected.origin)
    problem = f"its {expected.kind} is {found}, not {expected.checksum}, that of {expected.origin}."
    return RawFile(sha256, expected.origin, problem)


def digest(path: Path, kind: str) -> str:
    """Return the checksum of a file, of a kind that hashlib knows.

    Raises:
        UserError: it cannot be read.
    """
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
