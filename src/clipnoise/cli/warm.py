"""Warm processes: a command is forked from a process that has imported what it needs.

A run that trains for a second takes four if Python has to import torch first. The workflow starts
`clipnoise` with the number of its own process in OWNER. The command then asks a warm process for a
child that does the work, hands it its words, environment, folder and streams, passes signals on to
it, and returns its exit code:

    snakemake → clipnoise train … (imports little)  ⇢  warm process → child that trains

A warm process belongs to one user, one environment, one version of the code, one number of threads
and one owner. It ends with its owner, or after a minute without work. It imports modules, reads
and verifies what runs share, and forks. It starts no threads and never touches a GPU, because a
child could not use them. What a child has imported is imported for those that follow. Where no warm
process can be had, such as outside Linux, commands start as usual. The command's side is `client`.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import marshal
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from clipnoise.cli import print_any_text
from clipnoise.cli.client import SIGNALS, STREAMS, TRAIN, check_user
from clipnoise.errors import UserError

IDLE_SECONDS = 60.0
REQUEST_SECONDS = 5.0  # from the first byte of a request to its last
PR_SET_PDEATHSIG = 1


class Request(NamedTuple):
    """A command that waits for a child.

    Attributes:
        connection: to the command.
        streams: its input, output and errors.
        imported: a file in memory for the names of the modules that the child imports.
        mask: its file mask.
        folder: where it was started.
        words: the command and its arguments.
        environment: its environment.
    """

    connection: socket.socket
    streams: list[int]
    imported: int
    mask: int
    folder: str
    words: list[str]
    environment: dict[str, str]

    def run(self) -> int:
        """Do the work in this process, as if it had been started for it; return the exit code."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if self.words[0] != "calibrate":  # long computations that Python cannot interrupt
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with self.connection:
            self.connection.sendall(b"%d\n" % os.getpid())  # from now on signals are passed on
        for given, stream in zip(self.streams, STREAMS, strict=True):
            os.dup2(given, stream)
        _close(self.streams)
        os.chdir(self.folder)
        os.umask(self.mask)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.argv = ["clipnoise", *self.words]
        before = set(sys.modules)
        from clipnoise.cli.program import run
        from clipnoise.plugins import is_own

        code = run(self.words)
        if code == 0:
            with os.fdopen(self.imported, "w", encoding="utf-8") as file:
                new = [name for name in sys.modules if name not in before]
                file.writelines(f"{name}\n" for name in new if not is_own(name))
        return code


def serve(listener: int, owner: int) -> None:
    """Be a warm process, and later each of its children.

    Args:
        listener: the file descriptor of a listening socket.
        owner: the process to which this one belongs.
    """
    print_any_text()
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
        self._children: set[int] = set()
        self._events = selectors.DefaultSelector()
        self._react(listener, self._accept)
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

    def _accept(self) -> None:
        """Wait for the request of a command that connects, while others are served."""
        connection = self._listener.accept()[0]
        try:
            check_user(connection)
        except OSError:
            connection.close()
        else:
            self._react(connection, partial(self._fork, connection))

    def _fork(self, connection: socket.socket) -> Request | None:
        """Fork a child for a request, which is returned in the child."""
        self._events.unregister(connection)
        request = _receive(connection)
        if request is None:
            return None
        if request.words[0] == TRAIN:
            prepare_training(request.words[1:], Path(request.folder))
        gc.freeze()  # no child looks for garbage among what it shares, which would copy all of it
        process = os.fork() if threading.active_count() == 1 else None  # a child has one thread
        if process == 0:
            for key in self._events.get_map().values():
                if isinstance(key.fileobj, socket.socket):  # the listener, and other commands
                    key.fileobj.close()
            self._events.close()
            return request
        _close(request.streams)
        if process is None:
            request.connection.close()
            return None
        ended = os.pidfd_open(process)
        self._children.add(process)
        self._react(ended, partial(self._reap, process, ended, request))
        self._react(request.connection, partial(self._abandon, process, request.connection))
        return None

    def _reap(self, process: int, ended: int, request: Request) -> None:
        """Report the exit code of a child that has ended, and import what it has imported."""
        self._children.remove(process)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        self._events.unregister(ended)
        os.close(ended)
        with suppress(KeyError):  # the command did not wait
            self._events.unregister(request.connection)
        with request.connection, suppress(OSError):
            request.connection.sendall(b"%d\n" % code)
        with os.fdopen(request.imported, encoding="utf-8") as file:
            file.seek(0)
            for name in file.read().split():
                with suppress(Exception):  # not every name in sys.modules is a module of its own
                    import_module(name)

    def _abandon(self, process: int, connection: socket.socket) -> None:
        """Kill a child whose command has ended without it."""
        self._events.unregister(connection)
        os.kill(process, signal.SIGKILL)  # it is not reaped yet, so the number is its own


def _receive(connection: socket.socket) -> Request | None:
    """Read a request; None if it does not come whole."""
    connection.settimeout(REQUEST_SECONDS)
    streams: list[int] = []
    try:
        _, streams, _, _ = socket.recv_fds(connection, 1, len(STREAMS))
        mask, folder, words, environment = marshal.load(connection.makefile("rb"))
    except (OSError, EOFError, ValueError, TypeError):  # the command was killed while it asked
        _close(streams)
        connection.close()
        return None
    connection.settimeout(None)
    imported = os.memfd_create("imported")
    return Request(connection, streams, imported, mask, folder, words, environment)


def prepare_training(words: Sequence[str], folder: Path) -> None:
    """Do once what every run would do: import and read its code, name its origin, and account σ.

    Half of a short run would be reading the code for its fingerprint, and as long again computing
    what its σ costs and what attacks can reach at it. A spec or a calibration that is wrong is left
    for the run to report.

    Args:
        words: of the run; if it names several calibrations, the run chooses and verifies one.
        folder: that its paths are relative to.
    """
    import_module("clipnoise.run.train")
    from clipnoise.cli.train import read_given, train
    from clipnoise.fields import adapter
    from clipnoise.plugins import own_packages, use_places
    from clipnoise.privacy.calibration import read_calibration
    from clipnoise.privacy.claim import PrivacyStatement
    from clipnoise.run.fingerprint import closure, fingerprint
    from clipnoise.run.provenance import git_commit, versions

    use_places(None)  # the user's own code may do anything, and is left for the run to import
    closure(("clipnoise.run.job",))
    git_commit()
    versions()
    adapter(PrivacyStatement)
    asked = train.make_context(TRAIN, list(words), resilient_parsing=True).params
    files: Sequence[Path] = asked["calibration"] or ()
    if len(files) == 1:
        with suppress(UserError):
            _ = read_calibration(folder / files[0]).profile  # kept for later runs
    # The code of a run is read where no entry point names code of the user's, whatever the places.
    if asked["spec"] and not own_packages():
        with suppress(UserError):
            fingerprint(read_given(asked["spec"], folder))


def _close(streams: Iterable[int]) -> None:
    for stream in streams:
        os.close(stream)
