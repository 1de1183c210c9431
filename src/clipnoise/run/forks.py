"""Forks: several runs from one process that has imported torch, each in a child of its own.

The fork keeps a run's memory, signals, log and faults apart from those of the others, and gives the
same result as a separate process.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import FrameType

from clipnoise.errors import UserError

STOPS = (signal.SIGTERM, signal.SIGUSR1)


class Forks:
    """Children that each run one function, a bounded number of them at a time.

    Attributes:
        stopped: whether the process was told to stop; the signal was passed on to the children.
    """

    def __init__(self, at_once: int) -> None:
        self.stopped = False
        self._at_once = at_once
        self._running: dict[int, Path] = {}

    def run(
        self, tasks: Mapping[Path, Callable[[], int]], libraries: Iterable[str] = ()
    ) -> dict[Path, int]:
        """Run every task; after a signal to stop, no more are started.

        Args:
            tasks: functions that return an exit code, by the file that takes their output.
            libraries: modules to load once for all children.

        Returns:
            The exit codes of the tasks that were started; negative for one that a signal ended.
        """
        for name in libraries:
            import_module(name)
        ended: dict[Path, int] = {}
        waiting = list(tasks.items())
        with self._passing_on_signals():
            while self._running or (waiting and not self.stopped):
                while waiting and not self.stopped and len(self._running) < self._at_once:
                    self._start(*waiting.pop(0))
                pid, status = os.waitpid(-1, 0)
                ended[self._running.pop(pid)] = os.waitstatus_to_exitcode(status)
        return ended

    def _start(self, log: Path, task: Callable[[], int]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal between the fork and the next line would not be passed on to this child.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        pid = os.fork()
        if pid == 0:
            for number in STOPS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
            os._exit(_in_child(log, task))
        self._running[pid] = log
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        if self.stopped:  # between the fork and its record: another thread may take the signal
            os.kill(pid, signal.SIGTERM)

    @contextmanager
    def _passing_on_signals(self) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            self.stopped = True
            for pid in self._running:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, number)

        before = {number: signal.signal(number, stop) for number in STOPS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _in_child(log: Path, task: Callable[[], int]) -> int:
    """Run a task with its output in a file; whatever happens, return an exit code."""
    try:
        stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(stream, sys.stdout.fileno())
        os.dup2(stream, sys.stderr.fileno())
        return task()
    except UserError as error:
        print(f"clipnoise train: {error}", file=sys.stderr)
        return 2
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
