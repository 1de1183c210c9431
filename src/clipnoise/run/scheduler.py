"""What a job needs of its machine: GPUs, a child for each run, the queue again after a stop.

On a machine without a scheduler each job takes GPUs by locks and holds them to its end. On a Slurm
cluster the scheduler assigns them, and a job that was told to stop asks to be started again.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from itertools import islice
from pathlib import Path

from clipnoise.errors import UserError
from clipnoise.run.checkpoint import SIGNALS, stops_handled_by

LOCKS = Path(tempfile.gettempdir()) / "clipnoise-gpus"
VISIBLE = "CUDA_VISIBLE_DEVICES"

logger = logging.getLogger(__name__)


def list_gpus() -> list[str]:
    """Return the identifiers of the machine's NVIDIA GPUs; none where there is no driver."""
    output = _output("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader", seconds=60) or ""
    return [line.strip() for line in output.splitlines() if line.strip()]


def gpus_are_assigned(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a scheduler or the user has already chosen this process's GPUs."""
    return VISIBLE in environment or "SLURM_JOB_ID" in environment


@contextmanager
def hold_gpus(count: int, *, locks: Path = LOCKS, poll: float = 1.0) -> Iterator[list[str]]:
    """Hold some GPUs of this machine for the `with` block, waiting until they are free.

    What torch and child processes see is set by CUDA_VISIBLE_DEVICES, before torch looks. Nothing
    changes where GPUs are assigned already, where none are asked for, and where there are none.

    Args:
        count: how many; more than there are takes all.
        locks: the folder of lock files, the same for all jobs of the machine.
        poll: seconds between two attempts.

    Yields:
        The identifiers of the GPUs held.
    """
    known = [] if count == 0 or gpus_are_assigned() else list_gpus()
    if not known:
        yield []
        return
    wanted = min(count, len(known))
    logger.info("taking %d of %d GPUs as soon as they are free", wanted, len(known))
    while True:
        with ExitStack() as held:  # all or none, so that two jobs never wait for each other
            taken = list(islice((gpu for gpu in known if _take(gpu, locks, held)), wanted))
            if len(taken) == wanted:
                os.environ[VISIBLE] = ",".join(taken)
                try:
                    yield taken
                finally:
                    del os.environ[VISIBLE]
                return
        time.sleep(poll)


def _take(gpu: str, locks: Path, held: ExitStack) -> bool:
    """Lock a GPU without waiting; the operating system frees it when the process dies."""
    from filelock import FileLock, Timeout

    if not locks.is_dir():
        locks.mkdir(parents=True, exist_ok=True)
        locks.chmod(0o1777)  # other users of the machine lock GPUs in it, too
    lock = FileLock(locks / f"{gpu}.lock", timeout=0, mode=0o666)
    try:
        held.enter_context(lock)
    except Timeout:
        return False
    return True


def requeue_job() -> bool:
    """Put the Slurm job that this process runs in back into the queue, under the same id.

    Slurm takes a preempted job that ends within its grace time for failed, and does not restart it
    by itself. A job that somebody has cancelled is no longer running, and stays cancelled.

    Returns:
        Whether the job is queued again; False outside a batch job.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or _output("squeue", "--noheader", "--format=%T", f"--jobs={job}") != "RUNNING":
        return False
    return _output("scontrol", "requeue", job) is not None


def _output(*words: str, seconds: int = 30) -> str | None:
    """Return what a command prints; None where it fails or does not exist."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


class Forks:
    """Children of one process that has imported torch, each of which runs one function.

    The fork keeps a run's memory, signals, log and faults apart from those of the others, and gives
    the same result as a separate process.

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
        with stops_handled_by(self._pass_on):
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
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid == 0:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            os._exit(_in_child(log, task))
        self._running[pid] = log
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if self.stopped:  # between the fork and its record: another thread may take the signal
            os.kill(pid, signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        self.stopped = True
        for pid in self._running:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, number)


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
