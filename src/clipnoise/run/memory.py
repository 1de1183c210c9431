"""Memory of the training process and its device: the peak, what fits, and keeping freed pages."""

from __future__ import annotations

import ctypes
import gc
import logging
import resource
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from clipnoise.errors import out_of_memory, reason

logger = logging.getLogger(__name__)


def peak_megabytes(device: str) -> float:
    """Return the most memory held so far, by the process on a CPU or on the GPU, in 10^6 bytes."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated(device) / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


class PhysicalBatch:
    """How many examples are in memory at once; halved permanently when that many do not fit.

    Work on a batch is tried until it fits, with pieces of at most `size` examples:

        for attempt in physical.attempts():
            with attempt as size:
                total = work(size)
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._lacking: str | None = None

    def attempts(self) -> Iterator[AbstractContextManager[int, bool | None]]:
        """Yield an attempt until one fits; each starts from the beginning.

        What is done in it must change nothing before its end.

        Yields:
            A context that gives the largest size of a piece, and ends quietly where memory runs
            out. It raises where the error is not about memory, or not even one example fits.
        """
        while True:
            self._lacking = None
            yield self._attempt()
            if self._lacking is None:
                return
            self._halve(self._lacking)  # here, where no error keeps the step's tensors any more

    @contextmanager
    def _attempt(self) -> Iterator[int]:
        try:
            yield self.size
        except (MemoryError, RuntimeError) as error:
            if self.size == 1 or not out_of_memory(error):
                raise
            self._lacking = reason(error, otherwise="no memory left")

    def _halve(self, why: str) -> None:
        self.size //= 2
        logger.warning("out of memory (%s): physical batches of %d from now on", why, self.size)
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)  # return free heap pages, which libraries that call mmap themselves cannot use
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()


MMAP_MAX, TRIM_THRESHOLD, TOP_PAD = -4, -1, -2  # of mallopt, from malloc.h
NEVER, GROWTH = -1, 64 * 2**20


def keep_freed_memory() -> bool:
    """Let the process keep the memory that it frees, for its next step.

    By default glibc returns large blocks to the system at once, and every step then pays for
    fresh pages again. Does nothing where the C library has no such options.

    Returns:
        Whether the C library accepted the options.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = ((MMAP_MAX, 0), (TRIM_THRESHOLD, NEVER), (TOP_PAD, GROWTH))
    return all(mallopt(name, value) == 1 for name, value in options)
