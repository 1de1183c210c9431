"""Files from elsewhere: downloaded where there is a network, put in place by hand where not.

The download of a file at an address resumes where it stopped, unless the server has another
version. Files in packages are in `clipnoise.data.packages`.
"""

from __future__ import annotations

import errno
import hashlib
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from clipnoise.errors import UserError
from clipnoise.fields import STRICT
from clipnoise.files import LockedError, locked, read_json, write_json, writing
from clipnoise.lazy import requests, urllib3

Progress = Callable[[int, int | None], None]  # bytes that are present, and in all if known

PIECE = 1 << 18  # bytes
ATTEMPTS = 4  # in a row without a new byte
TIMEOUT = 60  # seconds without a byte
REFUSED = {401, 403, 404, 410, 451}  # status codes after which retrying does not help


def version_file(part: Path) -> Path:
    """Return the file with the server's name for the version that is being downloaded, if any."""
    return part.with_name(f"{part.name}.version")


def download(address: str, part: Path, report: Progress) -> None:
    """Download a file; bytes that are already present are not downloaded again.

    Args:
        address: its URL.
        part: the file that grows; it stays when the download fails.
        report: called with how many bytes are present, and how many there will be, if known.

    Raises:
        UserError: no network, no such file there, or no space.
        OSError: the file cannot be written.
    """
    failures, problem = 0, ""
    while failures < ATTEMPTS:
        before = _size(part)
        try:
            if _attempt(address, part, report):
                return
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            problem = _reason(error)
        failures = 0 if _size(part) > before else failures + 1
        time.sleep(0.25 * 2**failures)
    raise UserError(f"{address}: cannot be downloaded: {problem}.")


def _attempt(address: str, part: Path, report: Progress) -> bool:
    """Request the missing bytes; return whether the file is complete."""
    have, version = _size(part), version_file(part)
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if version.exists():
            headers["If-Range"] = version.read_text(encoding="utf-8")
    with requests.get(address, headers=headers, stream=True, timeout=TIMEOUT) as response:
        if response.status_code in REFUSED:
            raise UserError(f"{address}: {response.status_code} {response.reason}.")
        offered = re.match(
            r"bytes (?:(\d+)-\d+|\*)/(\d+)", response.headers.get("Content-Range", "")
        )
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            complete = offered is not None and int(offered[2]) == have
            if not complete:
                part.unlink()
            return complete
        response.raise_for_status()
        validator = _validator(response)
        if validator is None:
            version.unlink(missing_ok=True)
        else:
            version.write_text(validator, encoding="utf-8")
        resumes = response.status_code == requests.codes.partial_content
        if resumes and not (offered and offered[1] == str(have)):
            raise requests.ConnectionError("the server sent another range than requested")
        _receive(response, part, have if resumes else 0, report)
    return True


def _receive(response: requests.Response, part: Path, have: int, report: Progress) -> None:
    """Write the body of a response behind the bytes that are present."""
    length = response.headers.get("Content-Length")
    total = None if length is None else have + int(length)
    free = shutil.disk_usage(part.parent).free
    if total is not None and total - have > free:
        raise UserError(
            f"{part.parent}: {total - have:,} bytes are still to come, but only "
            f"{free:,} are free on the disk."
        )
    try:
        with part.open("ab" if have else "wb") as stream:
            report(have, total)
            for piece in response.raw.stream(PIECE, decode_content=False):
                stream.write(piece)
                have += len(piece)
                report(have, total)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"{part}: the disk is full. Free some space and run the same again: "
            "it resumes where it stopped."
        ) from None


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _validator(response: requests.Response) -> str | None:
    """Return the server's name for this version; a weak ETag does not identify the bytes."""
    tag: str | None = response.headers.get("ETag")
    return response.headers.get("Last-Modified") if tag is None or tag.startswith("W/") else tag


def _reason(error: Exception) -> str:
    """Describe a network error without the layers of the libraries."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"{error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return f"no answer within {TIMEOUT} s"
    if isinstance(error, requests.ConnectionError):
        return "no connection; is there a network here?"
    return str(error)


Report = Callable[[str, int, int | None], None]

CHECKSUMS = "checksums.json"
PUBLISHED, DOWNLOADED, ACCEPTED = "its source", "the first download", "what was accepted"


@dataclass(frozen=True)
class RemoteFile:
    """A file as its source publishes it.

    Attributes:
        name: of the file in its folder.
        address: its URL; None where only a person can get it (a licence, a login).
        sha256: its checksum, where the source or a library of the field publishes one.
        md5: the same, where only this one is published. With neither, the checksum of the first
            download is recorded, and later copies are compared with it.
    """

    __pydantic_config__: ClassVar = STRICT

    name: str
    address: str | None = None
    sha256: str | None = None
    md5: str | None = None

    @property
    def published(self) -> Expected | None:
        """The checksum that its source publishes."""
        if self.sha256 is not None:
            return Expected(PUBLISHED, "sha256", self.sha256)
        return None if self.md5 is None else Expected(PUBLISHED, "md5", self.md5)

    @property
    def where(self) -> str:
        """Where the file comes from, in words for Markdown."""
        return "by hand" if self.address is None else f"<{self.address}>"

    def receive(self, part: Path, report: Progress) -> None:
        """Download the file; arguments and errors as for `download`."""
        if self.address is None:
            raise UserError(f"{self.name}: cannot be downloaded by a program.")
        download(self.address, part, report)


def file_at(
    site: str, name: str, *, sha256: str | None = None, md5: str | None = None
) -> RemoteFile:
    """Return the file of this name below the address of a site."""
    return RemoteFile(name, f"{site}/{name}", sha256, md5)


@dataclass(frozen=True)
class RawFile:
    """A file that is present.

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
    """The checksum that a file should have, its kind as hashlib names it, and its origin."""

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
        command: the command line without its verb, as in "clipnoise data {} mnist --cache data".
        instead: the command that accepts other files than the published ones.
    """

    folder: Path
    files: tuple[RemoteFile, ...]
    manual: str
    command: str
    instead: str

    def require(self) -> Path:
        """Return the folder; a missing file raises UserError, which says how to get it."""
        missing = self.missing()
        if missing:
            raise UserError(
                f"{self.folder}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not "
                f"there. Run: {self.command.format('fetch')}\n{self.steps()}"
            )
        return self.folder

    def missing(self) -> list[str]:
        """Return the names of the missing files."""
        return [file.name for file in self.files if not (self.folder / file.name).is_file()]

    def steps(self) -> str:
        """Explain how to get the files without this program."""
        lines = [f"By hand: {self.manual}".rstrip()]
        for file in self.files:
            known = file.published
            checksum = "" if known is None else f" ({known.kind} {known.checksum})"
            place = self.folder / file.name
            lines.append(f"  {file.address or file.name}{checksum}\n    to {place}")
        lines.append(f"Then: {self.command.format('verify')}")
        return "\n".join(lines)

    def compare(self) -> dict[str, RawFile]:
        """Compare the files with their checksums; a missing file raises UserError."""
        if not self.files:
            return {}
        folder, recorded = self.require(), self._recorded()
        return {
            file.name: _compared(folder / file.name, _expected(file, recorded.get(file.name, {})))
            for file in self.files
        }

    def verify(self) -> dict[str, RawFile]:
        """Return the result of `compare`; a missing or wrong file raises UserError."""
        files = self.compare()
        wrong = [
            f"{self.folder / name}: {file.problem}" for name, file in files.items() if file.problem
        ]
        if wrong:
            raise UserError(
                "\n".join(wrong)
                + "\nDelete it and fetch it again, or, if you want to use another file: "
                + self.instead
            )
        return files

    def accept(self) -> None:
        """Record the checksums of the present files as right, whatever their source publishes."""
        if self.files:
            folder = self.require()
            names = [file.name for file in self.files]
            self._record({name: digest(folder / name, "sha256") for name in names}, ACCEPTED)

    def fetch(self, report: Report = lambda name, done, total: None) -> Path:
        """Download the files, resuming where an earlier download stopped.

        Args:
            report: called with a file's name, how many bytes are present, and how many there will
                be.

        Returns:
            The folder of the files; each is complete and has the right checksum.

        Raises:
            UserError: no network, no such file there, a wrong checksum, no space; the message says
                how to get the files by hand.
        """
        with writing(self.folder):
            try:
                with locked(self.folder / ".lock", seconds=0):
                    for file in self.files:
                        if not (self.folder / file.name).exists():
                            self._fetch(file, report)
            except LockedError:
                raise UserError(f"{self.folder}: is being fetched by another process.") from None
            except UserError as error:
                raise UserError(f"{error}\n{self.steps()}") from None
        self.verify()
        return self.folder

    def _fetch(self, file: RemoteFile, report: Report) -> None:
        target = self.folder / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.part")
        recorded = self._recorded().get(file.name, {})
        expected = _expected(file, {} if recorded.get("from") == ACCEPTED else recorded)
        if expected is None and not version_file(part).exists():
            part.unlink(missing_ok=True)  # without either, a changed source would go unnoticed
        file.receive(part, lambda done, total: report(file.name, done, total))
        received = _compared(part, expected)
        if received.problem:
            part.unlink()
            raise UserError(f"{file.address or file.name}: {received.problem}")
        part.replace(target)
        version_file(part).unlink(missing_ok=True)
        self._record({file.name: received.sha256}, DOWNLOADED)

    def _recorded(self) -> dict[str, dict[str, str]]:
        path = self.folder / CHECKSUMS
        try:
            recorded: dict[str, dict[str, str]] = read_json(path)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({error}).") from None
        return recorded

    def _record(self, digests: dict[str, str], origin: str) -> None:
        new = {name: {"sha256": digest, "from": origin} for name, digest in digests.items()}
        with writing(self.folder):
            write_json(self.folder / CHECKSUMS, {**self._recorded(), **new})


def _expected(file: RemoteFile, recorded: Mapping[str, str]) -> Expected | None:
    """Return what a file is compared with: what was accepted, published or downloaded first."""
    origin = recorded.get("from", DOWNLOADED)
    if recorded and (origin == ACCEPTED or file.published is None):
        return Expected(origin, "sha256", recorded["sha256"])
    return file.published


def _compared(path: Path, expected: Expected | None) -> RawFile:
    sha256 = digest(path, "sha256")
    if expected is None:
        return RawFile(sha256, "nothing")
    actual = sha256 if expected.kind == "sha256" else digest(path, expected.kind)
    if actual == expected.checksum:
        return RawFile(sha256, expected.origin)
    problem = (
        f"its {expected.kind} is {actual}, not {expected.checksum}, that of {expected.origin}."
    )
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
