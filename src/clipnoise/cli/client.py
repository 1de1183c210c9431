"""The command's side of a warm process: ask it for a child, pass signals on, and end as it ends.

Every job of a workflow starts with this module, so it imports only what starts in a few
milliseconds: no typing, pathlib, json or logging.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress

OWNER = "CLIPNOISE_WARM_OWNER"
SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)
STREAMS = (0, 1, 2)  # input, output, errors
TRAIN = "train"
LONGEST_WAIT = 1.0  # seconds until a signal is passed on
# Where the kernel offers them; training asks the C library itself to keep what it frees.
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def run_warm(words: Sequence[str], owner: int) -> int | None:
    """Run a command in a child of a warm process, which is started if there is none.

    Args:
        words: the command and its arguments.
        owner: the process to which the warm process belongs.

    Returns:
        The exit code of the command; None if it has not been started.
    """
    try:
        address = socket_name(words[0], owner)
        connection = _connect(address) or _start(address, owner)
    except (OSError, AttributeError, IndexError):  # no such owner, no /proc, no abstract sockets
        return None
    with connection:
        return _follow(connection, words)


def socket_name(command: str, owner: int) -> bytes:
    """Return the name of a socket, which differs wherever a warm process must not be shared.

    The name is abstract: it disappears with the process. Training has a warm process of its own, so
    that the memory that a run reports holds nothing but what training needs.
    """
    with open(f"/proc/{owner}/stat", encoding="utf-8", errors="replace") as file:
        started = file.read().rpartition(")")[2].split()[19]
    package = os.path.dirname(os.path.dirname(__file__))
    code = sorted(
        (entry.path, entry.stat().st_mtime_ns)
        for folder, _, _ in os.walk(package)
        for entry in os.scandir(folder)
        if entry.name.endswith(".py")
    )
    threads = os.environ.get("OMP_NUM_THREADS")
    shared = (os.getuid(), sys.prefix, code, threads, owner, started, command == TRAIN)
    return f"\0clipnoise-{hashlib.sha256(repr(shared).encode()).hexdigest()[:32]}".encode()


def _connect(address: bytes) -> socket.socket | None:
    """Connect to a warm process; None if there is none."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
        check_user(connection)
    except OSError as error:
        connection.close()
        if isinstance(error, ConnectionRefusedError):
            return None
        raise
    return connection


def check_user(connection: socket.socket) -> None:
    """Refuse other users: anybody may connect to an abstract name, or take it first."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    if struct.unpack("3i", credentials)[1] != os.getuid():
        raise PermissionError("the other end of the socket belongs to another user")


def _start(address: bytes, owner: int) -> socket.socket:
    """Start a warm process and connect to it; of several that try at once, one succeeds."""
    import subprocess

    with socket.socket(socket.AF_UNIX) as listener, suppress(OSError):  # the name is taken
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
        code = f"from clipnoise.cli.warm import serve; serve({listener.fileno()}, {owner})"
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**LARGE_PAGES, **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C reaches the commands, which pass it on
        )
    connection = _connect(address)
    if connection is None:
        raise ConnectionRefusedError
    return connection


def _follow(connection: socket.socket, words: Sequence[str]) -> int | None:
    """Ask for a child, pass signals on to it, and end as it ends."""
    # What is ignored, as nohup has it, is not passed on. The others wait until the child is known.
    heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    answers = connection.makefile(encoding="ascii")
    try:
        _send_request(connection, words)
        child = answers.readline()
    except OSError:
        child = ""
    for number in heard if child else ():
        signal.signal(number, lambda n, _: send_signal(int(child), n))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, heard)
    if not child:
        return None
    # Python calls handlers between system calls. A signal that comes just before one does not end
    # it, so it must end by itself.
    while not select.select([connection], [], [], LONGEST_WAIT)[0]:
        pass
    # Without an answer the warm process was killed, and its children with it.
    code = int(answers.readline() or -signal.SIGKILL)
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _send_request(connection: socket.socket, words: Sequence[str]) -> None:
    """Send the streams, the file mask, the folder, the words and the environment."""
    mask = os.umask(0o022)
    os.umask(mask)
    socket.send_fds(connection, [b"\0"], STREAMS)
    connection.sendall(marshal.dumps((mask, os.getcwd(), list(words), dict(os.environ))))


def send_signal(process: int, number: int) -> None:
    """Send a signal to a process, unless it has just ended."""
    with suppress(ProcessLookupError):
        os.kill(process, number)
