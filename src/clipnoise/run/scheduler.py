"""What a job needs of its machine: GPUs, and the queue again after a stop.

On a machine without a scheduler each job takes GPUs by locks and holds them to its end. On a Slurm
cluster the scheduler assigns them, and a job that was told to stop asks to be started again.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Le

LOCKS = Path(tempfile.gettempdir()) / "clipnoise-gpus"
VISIBLE = "CUDA_VISIBLE_DEVICES"
SLOTS = 64  # of a GPU: a run takes all, or its share of them
Slots = Annotated[int, Ge(1), Le(SLOTS)]
ATTEMPTS = 5  # to put a job back, in ten seconds: a preempted one has little time
STARTED = "started"  # begins the first line of an attempt in the log of a run
JOBS = "slurm_jobs.txt"  # beside that log, which Snakemake deletes before each attempt
Limit = Literal["memory", "time"]
LIMITS: dict[
    Limit, re.Pattern[str]
] = {  # what Slurm writes into the log of a job that it ends, by what the job lacked
    "memory": re.compile(r"^(slurmstepd|srun).*(memory limit|oom.kill|out.of.memory)", re.I | re.M),
    "time": re.compile(r"^(slurmstepd|srun).*due to time limit", re.I | re.M),
}

logger = logging.getLogger(__name__)


def list_gpus() -> list[str]:
    """Return the identifiers of the machine's NVIDIA GPUs; none where there is no driver."""
    output = output_of("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader", seconds=60) or ""
    return [line.strip() for line in output.splitlines() if line.strip()]


@contextmanager
def hold_gpus(
    count: int, *, slots: int = SLOTS, locks: Path = LOCKS, poll: float = 1.0
) -> Iterator[list[str]]:
    """Hold some GPUs of this machine for the `with` block, waiting until they are free.

    What torch and child processes see is set by CUDA_VISIBLE_DEVICES, before torch looks. Nothing
    changes where GPUs are assigned already, where none are asked for, and where there are none.

    Args:
        count: how many; more than there are takes all.
        slots: how many of the slots of each GPU; runs that share a GPU take a part of them.
        locks: the folder of lock files, the same for all jobs of the machine.
        poll: seconds between two attempts.

    Yields:
        The identifiers of the GPUs held.
    """
    assigned = VISIBLE in os.environ or "SLURM_JOB_ID" in os.environ  # by a scheduler or the user
    known = [] if count == 0 or assigned else list_gpus()
    if not known:
        yield []
        return
    wanted = min(count, len(known))
    logger.info("taking %d of %d GPUs as soon as they are free", wanted, len(known))
    while True:
        with ExitStack() as held:  # all or none, so that two jobs never wait for each other
            taken = list(islice((gpu for gpu in known if _take(gpu, slots, locks, held)), wanted))
            if len(taken) == wanted:
                os.environ[VISIBLE] = ",".join(taken)
                try:
                    yield taken
                finally:
                    del os.environ[VISIBLE]
                return
        time.sleep(poll)


def _take(gpu: str, slots: int, locks: Path, held: ExitStack) -> bool:
    """Lock slots of a GPU without waiting; the system frees them when the process dies."""
    from filelock import FileLock, Timeout

    if not locks.is_dir():
        locks.mkdir(parents=True, exist_ok=True)
        locks.chmod(0o1777)  # other users of the machine lock GPUs in it, too
    with ExitStack() as taken:
        left = slots
        for number in range(SLOTS):
            if left == 0:
                break
            lock = FileLock(locks / f"{gpu}.{number}.lock", timeout=0, mode=0o666)
            with suppress(Timeout):
                taken.enter_context(lock)
                left -= 1
        if left == 0:
            held.push(taken.pop_all())
        return left == 0


def describe_start(environment: Mapping[str, str] = os.environ) -> str:
    """Return the first line of an attempt in the log of a run; it names the Slurm job."""
    job = environment.get("SLURM_JOB_ID")
    return f"{STARTED} in Slurm job {job}" if job else STARTED


def note_job(folder: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Note in the folder of a run which Slurm job trains it, after those that tried before."""
    job = environment.get("SLURM_JOB_ID")
    if job is not None:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / JOBS).open("a", encoding="utf-8") as file:
            file.write(f"{job}\n")


def count_exceeded(folder: Path, jobs: Path, limit: Limit) -> int:
    """Return how many jobs Slurm has ended because a run needed more than they had asked for.

    Args:
        folder: of the run, which names the jobs.
        jobs: the folder of the logs of jobs that failed.
        limit: what the jobs lacked.
    """
    noted = folder / JOBS
    names = set(noted.read_text(encoding="utf-8").split()) if noted.is_file() else set()
    logs = [path for path in jobs.rglob("*.log") if path.stem in names] if names else []
    return sum(
        bool(LIMITS[limit].search(path.read_text(encoding="utf-8", errors="replace")))
        for path in logs
    )


def requeue_job() -> bool:
    """Put the Slurm job that this process runs in back into the queue, under the same id.

    Slurm takes a preempted job that ends within its grace time for failed, and does not restart it
    by itself. A job that somebody has cancelled is no longer running, and stays cancelled.

    Returns:
        Whether the job is queued again; False outside a batch job.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return False
    for attempt in range(ATTEMPTS):  # a controller that is busy refuses now and then
        time.sleep(attempt)
        state = output_of("squeue", "--noheader", "--format=%T", f"--jobs={job}")
        if state == "RUNNING" and output_of("scontrol", "requeue", job) is not None:
            return True
        logger.info("Slurm job %s is not back in the queue (state: %s)", job, state or "unknown")
        if state not in ("RUNNING", None):
            break
    return False


def output_of(*words: str, seconds: int = 30) -> str | None:
    """Return what a command prints; None where it fails or does not exist."""
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
