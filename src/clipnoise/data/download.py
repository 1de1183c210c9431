"""Download a file, resuming where an earlier attempt stopped."""

from __future__ import annotations

import errno
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clipnoise.errors import UserError

if TYPE_CHECKING:
    from requests import Response

PIECE = 1 << 18  # bytes
ATTEMPTS = 4  # in a row without a new byte
TIMEOUT = 60  # seconds without a byte
REFUSED = {401, 403, 404, 410, 451}  # status codes after which retrying does not help


def version_file(part: Path) -> Path:
    """Return the file with the server's name for the version that is being downloaded, if any."""
    return part.with_name(f"{part.name}.version")


def download(address: str, part: Path, report: Callable[[int, int | None], None]) -> None:
    """Download a file; bytes that are already present are not downloaded again.

    Args:
        address: its URL.
        part: the file that grows; it stays when the download fails.
        report: called with how many bytes are present, and how many there will be, if known.

    Raises:
        UserError: no network, no such file there, or no space.
        OSError: the file cannot be written.
    """
    _Download(address, part, report).run()


@dataclass
class _Download:
    """The download of one file.

    Attributes:
        validator: the server's name for the version that is being downloaded.
    """

    address: str
    part: Path
    report: Callable[[int, int | None], None]
    validator: str | None = None

    def run(self) -> None:
        """Request until the file is complete; give up after a few attempts without a new byte."""
        import requests
        import urllib3

        if self._size() and version_file(self.part).exists():
            self.validator = version_file(self.part).read_text()
        failures, problem = 0, ""
        while failures < ATTEMPTS:
            before = self._size()
            try:
                if self._attempt():
                    return
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                problem = _reason(error)
            failures = 0 if self._size() > before else failures + 1
            time.sleep(0.25 * 2**failures)
        raise UserError(f"{self.address}: cannot be downloaded: {problem}.")

    def _attempt(self) -> bool:
        """Request the missing bytes; return whether the file is complete."""
        import requests

        have = self._size()
        headers = {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
            if self.validator is not None:
                headers["If-Range"] = self.validator
        with requests.get(self.address, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if response.status_code in REFUSED:
                raise UserError(f"{self.address}: {response.status_code} {response.reason}.")
            offered = re.match(
                r"bytes (?:(\d+)-\d+|\*)/(\d+)", response.headers.get("Content-Range", "")
            )
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                complete = offered is not None and int(offered[2]) == have
                if not complete:
                    self.part.unlink()
                return complete
            response.raise_for_status()
            self._note(_validator(response))
            resumes = response.status_code == requests.codes.partial_content
            if resumes and not (offered and offered[1] == str(have)):
                raise requests.ConnectionError("the server sent another range than requested")
            self._receive(response, have if resumes else 0)
        return True

    def _receive(self, response: Response, have: int) -> None:
        length = response.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        free = shutil.disk_usage(self.part.parent).free
        if total is not None and total - have > free:
            raise UserError(
                f"{self.part.parent}: {total - have:,} bytes are still to come, but only "
                f"{free:,} are free on the disk."
            )
        try:
            with self.part.open("ab" if have else "wb") as stream:
                self.report(have, total)
                for piece in response.raw.stream(PIECE, decode_content=False):
                    stream.write(piece)
                    have += len(piece)
                    self.report(have, total)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UserError(
                f"{self.part}: the disk is full. Free some space and run the same again: "
                "it resumes where it stopped."
            ) from None

    def _note(self, validator: str | None) -> None:
        """Keep the name of the version, so that a later call can resume the download."""
        self.validator = validator
        if validator is None:
            version_file(self.part).unlink(missing_ok=True)
        else:
            version_file(self.part).write_text(validator)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0


def _validator(response: Response) -> str | None:
    """Return the server's name for this version; a weak ETag does not identify the bytes."""
    tag: str | None = response.headers.get("ETag")
    return response.headers.get("Last-Modified") if tag is None or tag.startswith("W/") else tag


def _reason(error: Exception) -> str:
    """Describe a network error without the layers of the libraries."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"{error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return f"no answer within {TIMEOUT} s"
    if isinstance(error, requests.ConnectionError):
        return "no connection; is there a network here?"
    return str(error)
