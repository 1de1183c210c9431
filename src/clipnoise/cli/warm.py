"""Warm processes: a command is forked from a process that has imported what it needs.

A run that trains for a second takes four if Python has to import torch first. The workflow starts
`clipnoise` with the number of its own process in OWNER. The command then asks a warm process for a
child that does the work, hands it its words, environment, folder and streams, passes signals on to
it, and returns its exit code:

    snakemake → clipnoise train … (imports little)  ⇢  warm process → child that trains

A warm process belongs to one user, one environment, one version of the code, one number of threads
and one owner. It ends with its owner, or after a minute without work. It imports modules and forks,
and does nothing else: it starts no threads and never touches a GPU, because a child could not use
them. What a child has imported is imported for those that follow. Where no warm process can be
had, such as outside Linux, commands start as usual.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import logging
import os
import selectors
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from clipnoise.errors import UserError

OWNER = "CLIPNOISE_WARM_OWNER"
SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)
STREAMS = (0, 1, 2)  # input, output, errors
IDLE_SECONDS = 60.0
REQUEST_SECONDS = 10.0
CALIBRATION = "--calibration"
TRAIN, TRAINING, JOB = "train", "clipnoise.run.train", "clipnoise.run.job"
PR_SET_PDEATHSIG = 1
LENGTH = struct.Struct("=I")


def run_warm(words: Sequence[str], owner: int) -> int | None:
    """Run a command in a child of a warm process, which is started if there is none.

    Args:
        words: the command and its arguments.
        owner: the process to which the warm process belongs.

    Returns:
        The exit code of the command; None if it has not been started.
    """
    try:
        address = _address(words[0], owner)
        connection = _connect(address) or _start(address, owner)
    except (OSError, AttributeError, IndexError):  # no such owner, no /proc, no abstract sockets
        return None
    with connection:
        return _follow(connection, words)


# The side of the command


def _address(command: str, owner: int) -> bytes:
    """Return the name of a socket, which differs wherever a warm process must not be shared.

    The name is abstract: it disappears with the process. Training has a warm process of its own, so
    that the memory that a run reports holds nothing but what training needs.
    """
    started = Path(f"/proc/{owner}/stat").read_text().rpartition(")")[2].split()[19]
    package = Path(__file__).parents[1]
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
        _check_user(connection)
    except OSError as error:
        connection.close()
        if isinstance(error, ConnectionRefusedError):
            return None
        raise
    return connection


def _check_user(connection: socket.socket) -> None:
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
        code = f"from {__name__} import serve; serve({listener.fileno()}, {owner})"
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**keep_memory(), **os.environ},
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


def keep_memory() -> dict[str, str]:
    """Return the environment in which the C library keeps freed memory, up to a gigabyte.

    Each step frees and takes the same few large tensors. By default the C library returns them to
    the system and gets them back as pages that the kernel must clear again, which can take a third
    of a run.
    """
    options = {
        "hugetlb": 1,  # large pages, where the kernel offers them
        "mmap_threshold": 32 * 2**20,  # the largest that is allowed
        "trim_threshold": 2**30,
        "top_pad": 64 * 2**20,
    }
    return {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{k}={v}" for k, v in options.items())}


def _follow(connection: socket.socket, words: Sequence[str]) -> int | None:
    """Ask for a child, pass signals on to it, and end as it ends."""
    early: list[int] = []  # signals before the child is known
    before = {number: signal.signal(number, lambda n, _: early.append(n)) for number in SIGNALS}
    answers = connection.makefile()
    try:
        _send_request(connection, words)
        child = answers.readline()
    except OSError:
        child = ""
    if not child:
        for number, handler in before.items():
            signal.signal(number, handler)
        return None
    for number in SIGNALS:
        signal.signal(number, lambda n, _: _send_signal(int(child), n))
    for early_signal in early:
        _send_signal(int(child), early_signal)
    # Without an answer the warm process was killed, and its children with it.
    code = int(answers.readline() or -signal.SIGKILL)
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _send_request(connection: socket.socket, words: Sequence[str]) -> None:
    mask = os.umask(0o022)
    os.umask(mask)
    values = {
        "words": list(words),
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "mask": mask,
    }
    body = json.dumps(values).encode()
    socket.send_fds(connection, [LENGTH.pack(len(body))], STREAMS)
    connection.sendall(body)


def _send_signal(process: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(process, number)


# The side of the warm process


class Request(NamedTuple):
    """A command that waits for a child.

    Attributes:
        connection: to the command.
        streams: its input, output and errors.
        values: its words, environment, folder and file mask.
        imported: a file in memory for the names of the modules that the child imports.
    """

    connection: socket.socket
    streams: list[int]
    values: dict[str, Any]
    imported: int

    def run(self) -> int:
        """Do the work in this process, as if it had been started for it; return the exit code."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if self.values["words"][0] != "calibrate":  # long computations that Python cannot interrupt
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with self.connection:
            self.connection.sendall(b"%d\n" % os.getpid())  # from now on signals are passed on
        for given, stream in zip(self.streams, STREAMS, strict=True):
            os.dup2(given, stream)
            os.close(given)
        os.chdir(self.values["folder"])
        os.umask(self.values["mask"])
        os.environ.clear()
        os.environ.update(self.values["environment"])
        sys.argv = ["clipnoise", *self.values["words"]]
        before = set(sys.modules)
        from clipnoise.cli.program import run
        from clipnoise.plugins import is_own

        code = run(self.values["words"])
        if code == 0:
            with os.fdopen(self.imported, "w") as file:
                new = [name for name in sys.modules if name not in before]
                file.writelines(f"{name}\n" for name in new if not is_own(name))
        return code


def serve(listener: int, owner: int) -> None:
    """Be a warm process, and later each of its children.

    Args:
        listener: the file descriptor of a listening socket.
        owner: the process to which this one belongs.
    """
    for number in SIGNALS:  # a cluster signals every process of a job; this one ends with its owner
        signal.signal(number, signal.SIG_IGN)
    warm_process = WarmProcess(socket.socket(fileno=listener), owner)
    request = warm_process.serve()
    if request is not None:  # this process is a child
        del warm_process
        _end(request.run())


def _end(code: int) -> None:
    """End a child without taking the interpreter apart, which would take longer than a short run.

    Every object that it frees lies in a page of memory that the child shares with the warm process,
    and would have to copy first.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class WarmProcess:
    """Forks a child for each request until its owner ends or no request has come for a minute.

    Args:
        listener: where commands connect.
        owner: the process to which this one belongs.
    """

    def __init__(self, listener: socket.socket, owner: int) -> None:
        self._listener = listener
        self._children: dict[int, Request] = {}
        self._events = selectors.DefaultSelector()
        self._react(listener, self._fork)
        ended = os.pidfd_open(owner)
        self._react(ended, partial(self._retire, ended))

    def serve(self) -> Request | None:
        """Serve until the end, and return None; in a child, return what it has to do."""
        while self._children or self._listener.fileno() >= 0:
            events = self._events.select(IDLE_SECONDS)
            if not events and not self._children:
                break
            # One at a time: it may close what the others are about.
            for key, _ in events[:1]:
                request: Request | None = key.data()
                if request is not None:
                    return request
        return None

    def _react(self, event: socket.socket | int, reaction: Callable[[], Request | None]) -> None:
        """Call a function when a socket or file descriptor becomes readable."""
        self._events.register(event, selectors.EVENT_READ, reaction)

    def _retire(self, owner: int) -> None:
        """Take no more requests: the owner has ended."""
        for event in (owner, self._listener):
            self._events.unregister(event)
        self._listener.close()

    def _fork(self) -> Request | None:
        """Fork a child for the next request, which is returned in the child."""
        request = _receive(self._listener.accept()[0])
        if request is None:
            return None
        if request.values["words"][0] == TRAIN:
            _prepare_training(request.values["words"], Path(request.values["folder"]))
        gc.freeze()  # no child looks for garbage among what it shares, which would copy all of it
        process = os.fork() if threading.active_count() == 1 else None  # a child has one thread
        if process == 0:
            self._events.close()
            self._listener.close()
            for other in self._children.values():
                other.connection.close()
            return request
        for stream in request.streams:
            os.close(stream)
        if process is None:
            request.connection.close()
            return None
        ended = os.pidfd_open(process)
        self._children[process] = request
        self._react(ended, partial(self._reap, process, ended))
        self._react(request.connection, partial(self._abandon, process))
        return None

    def _reap(self, process: int, ended: int) -> None:
        """Report the exit code of a child that has ended, and import what it has imported."""
        request = self._children.pop(process)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        self._events.unregister(ended)
        os.close(ended)
        with suppress(KeyError):  # the command did not wait
            self._events.unregister(request.connection)
        with request.connection, suppress(OSError):
            request.connection.sendall(b"%d\n" % code)
        with os.fdopen(request.imported) as file:
            file.seek(0)
            _import(file.read().split())

    def _abandon(self, process: int) -> None:
        """Kill a child whose command has ended without it."""
        self._events.unregister(self._children[process].connection)
        _send_signal(process, signal.SIGKILL)


def _receive(connection: socket.socket) -> Request | None:
    """Read a request; None if it does not come, or comes from another user."""
    connection.settimeout(REQUEST_SECONDS)
    try:
        _check_user(connection)
        length, streams, _, _ = socket.recv_fds(connection, LENGTH.size, len(STREAMS))
        body = connection.makefile("rb").read(*LENGTH.unpack(length))
        values = json.loads(body)
    except (OSError, ValueError, struct.error):
        connection.close()
        return None
    connection.settimeout(None)
    return Request(connection, streams, values, os.memfd_create("imported"))


def _prepare_training(words: Sequence[str], folder: Path) -> None:
    """Do once what every run would do: import and read the training loop, and verify σ.

    Half of a short run would be reading the code for its fingerprint, and as long again computing
    what ε its σ costs. A calibration that is wrong is left for the run to report.

    Args:
        words: of the run; if it names several calibrations, the run chooses and verifies one.
        folder: that its paths are relative to.
    """
    _import([TRAINING])
    from clipnoise.privacy.calibration import read_calibration
    from clipnoise.run.fingerprint import closure

    closure((JOB,))
    given = words[words.index(CALIBRATION) + 1 :] if CALIBRATION in words else ()
    files = list(takewhile(lambda word: not word.startswith("--"), given))
    if len(files) == 1:
        with suppress(UserError):
            read_calibration(folder / files[0])


def _import(names: Iterable[str]) -> None:
    for name in names:
        if name not in sys.modules:
            with suppress(Exception):  # not every name in sys.modules is a module of its own
                import_module(name)
