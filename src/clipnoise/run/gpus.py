"""GPUs of a machine that no scheduler deals out: each job takes its own and keeps it to its end."""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path

LOCKS = Path(tempfile.gettempdir()) / "clipnoise-gpus"
VISIBLE = "CUDA_VISIBLE_DEVICES"

logger = logging.getLogger(__name__)


def gpus() -> list[str]:
    """Return the identifiers of the machine's NVIDIA GPUs; none where there is no driver."""
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def are_dealt_out(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether somebody has already said which GPUs this process may use."""
    return VISIBLE in environment or "SLURM_JOB_ID" in environment


@contextmanager
def own_gpus(count: int, *, locks: Path = LOCKS, poll: float = 1.0) -> Iterator[list[str]]:
    """Hold some GPUs of this machine for the `with` block, waiting until they are free.

    What torch and child processes see is set by CUDA_VISIBLE_DEVICES, before torch looks. Where a
    scheduler has chosen, where none are asked for, or where there are none, nothing is changed.

    Args:
        count: how many; more than there are takes all.
        locks: the folder of lock files, the same for all jobs of the machine.
        poll: seconds between two looks.

    Yields:
        The identifiers of the GPUs held.
    """
    known = [] if count == 0 or are_dealt_out() else gpus()
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
        locks.chmod(0o1777)  # other users of the machine take turns, too
    lock = FileLock(locks / f"{gpu}.lock", timeout=0, mode=0o666)
    try:
        held.enter_context(lock)
    except Timeout:
        return False
    return True
