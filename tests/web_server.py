"""A web server on this machine that can stop in the middle, refuse parts of files, or fail."""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What the server gives out, and what it was asked for.

    Attributes:
        files: content by path.
        stops: after how many bytes each of the next answers ends, though more was promised.
        ranges: whether parts of a file are given out.
        failures: status codes of the next answers.
        asked: the Range header of every request, None where there was none.
        sent: bytes given out.
    """

    files: dict[str, bytes]
    stops: list[int] = field(default_factory=list)
    ranges: bool = True
    failures: list[int] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)
    sent: int = 0
    address: str = ""


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site = self.site
        site.asked.append(self.headers.get("Range"))
        content = site.files.get(self.path)
        if site.failures or content is None:
            self.send_error(site.failures.pop(0) if site.failures else 404)
            return
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted and site.ranges else 0
        tag = f'"{hash(content)}"'
        if self.headers.get("If-Range", tag) != tag:
            start = 0
        if start and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", tag)
        self.end_headers()
        rest = content[start:]
        rest = rest[: site.stops.pop(0)] if site.stops else rest
        site.sent += len(rest)
        with suppress(ConnectionError):  # the other side has had enough
            self.wfile.write(rest)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def serve(site: Site) -> ThreadingHTTPServer:
    """Start a server in a thread of its own; shut it down when done."""
    handler = type("Handler", (_Handler,), {"site": site})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    site.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    return server
