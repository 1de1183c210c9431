"""A batch: several runs from one process that has imported torch, each in a fork of its own.

The fork keeps a run's memory, signals, log and faults apart from those of the others, and gives the
same result as a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from clipnoise.data.cache import read_manifest
from clipnoise.errors import UserError
from clipnoise.run.fingerprint import fingerprint
from clipnoise.run.results import read_run, run_folder
from clipnoise.run.spec import to_mapping

if TYPE_CHECKING:
    from clipnoise.privacy.calibration import Calibration
    from clipnoise.run.spec import RunSpec

STOPS = {signal.SIGTERM, signal.SIGUSR1}


def data_digests(spec: RunSpec, cache: Path) -> dict[str, str]:
    """Return what a result says of the prepared files that it was made from, as they are now.

    Args:
        spec: the run.
        cache: the folder of prepared datasets.

    Raises:
        UserError: a dataset is not prepared.
    """
    found: dict[str, str] = {}
    for prefix, dataset in zip(("", "public "), spec.datasets, strict=False):
        manifest = read_manifest(cache / dataset.prepared, dataset.invocation)
        found |= {f"{prefix}{name}": text for name, text in manifest.digests().items()}
    return found


def is_finished(
    results: Path, cache: Path, spec: RunSpec, calibration: Calibration | None = None
) -> bool:
    """Tell whether a run has a sound result that present code, data and calibration would repeat.

    Args:
        results: the results folder.
        cache: the folder of prepared datasets.
        spec: the run, with its tuned hyper-parameters.
        calibration: its σ; None for a non-private run.
    """
    try:
        files, data = read_run(run_folder(results, spec)), data_digests(spec, cache)
    except UserError:
        return False
    if files is None:
        return False
    sigma = None if calibration is None else calibration.noise_multiplier
    summary, plain = files.summary, json.loads(json.dumps(to_mapping(spec)))
    made_by = (summary["spec"], summary.get("fingerprint"), summary["privacy"]["noise_multiplier"])
    said = summary["data"]
    same_data = all(said.get(name, text) == text for name, text in data.items())
    return bool(same_data and made_by == (plain, fingerprint(spec), sigma))


class Forks:
    """Children that each run one function, at most some of them at a time.

    Attributes:
        stopped: whether the process was told to stop; the children were told so, too.
    """

    def __init__(self, at_once: int) -> None:
        self.stopped = False
        self._at_once = at_once
        self._running: dict[int, Path] = {}

    def run(
        self, tasks: Mapping[Path, Callable[[], int]], libraries: Iterable[str] = ()
    ) -> dict[Path, int]:
        """Run every task; after a signal to stop no more are started.

        Args:
            tasks: by the file that takes what they print; they return an exit code.
            libraries: modules that are loaded once, for all children.

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
        # No signal may come between the fork and the note of it.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        pid = os.fork()
        if pid == 0:
            for number in STOPS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
            os._exit(_in_child(log, task))
        self._running[pid] = log
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    @contextmanager
    def _passing_on_signals(self) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            self.stopped = True
            for pid in self._running:
                with suppress(ProcessLookupError):  # it has ended, and is about to be waited for
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
