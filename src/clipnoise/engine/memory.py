"""Memory of the process and the device that trains: its peak, and keeping what is freed."""

from __future__ import annotations

import ctypes
import resource
import sys


class PeakMemory:
    """The most memory held so far: of the process on a CPU, of the device on a GPU."""

    def __init__(self, device: str) -> None:
        self.device = device

    def megabytes(self) -> float:
        """Return the peak in megabytes (10^6 bytes)."""
        if self.device.startswith("cuda"):
            import torch

            return torch.cuda.max_memory_allocated(self.device) / 1e6
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


MMAP_MAX, TRIM_THRESHOLD, TOP_PAD = -4, -1, -2  # of mallopt, from malloc.h
NEVER, GROWTH = -1, 64 * 2**20


def keep_freed_memory() -> bool:
    """Let the process keep the memory that it frees, for its next step.

    By default glibc returns large blocks to the system at once: every step then pays for fresh
    pages anew. Does nothing where the C library has no such options.

    Returns:
        Whether the C library took the options.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = ((MMAP_MAX, 0), (TRIM_THRESHOLD, NEVER), (TOP_PAD, GROWTH))
    return all(mallopt(name, value) == 1 for name, value in options)
