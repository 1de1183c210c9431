"""Slurm, as a job sees it from inside."""

from __future__ import annotations

import os
import subprocess


def requeue() -> bool:
    """Put the Slurm job that this process runs in back into the queue, with its id.

    A preempted job that ends within its grace time has failed in Slurm's eyes and does not come
    back by itself. A job that somebody cancels is no longer running, and stays cancelled.

    Returns:
        Whether that was done; never outside of a batch job.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or _said("squeue", "--noheader", "--format=%T", f"--jobs={job}") != "RUNNING":
        return False
    return _said("scontrol", "requeue", job) is not None


def _said(*words: str) -> str | None:
    """Return what a command prints; None where it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
