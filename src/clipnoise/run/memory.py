"""Memory of the training process and its device: the peak, what is free, freed pages."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

USABLE = 0.8  # of the memory that is free


def peak_megabytes(device: str) -> float:
    """Return the most memory held so far, by the process on a CPU or on the GPU, in 10^6 bytes."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated(device) / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def usable_bytes(device: str, processes: int = 1) -> int | None:
    """Return how many bytes a physical batch may take; None where that is not known.

    A fifth of what is free is left to what is not counted: workspaces of libraries, fragments.

    Args:
        device: a torch device name.
        processes: how many share the memory of a CPU.
    """
    if device.startswith("cuda"):
        import torch

        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(USABLE * (torch.cuda.mem_get_info(device)[0] + kept))
    free = list(_free_of_the_machine()) if device == "cpu" else []
    return int(USABLE * min(free) / processes) if free else None


def _free_of_the_machine(
    root: Path = Path("/"), environment: Mapping[str, str] = os.environ
) -> Iterator[int]:
    """Yield the bytes that are free by each limit of memory: machine, control groups, Slurm's job.

    Args:
        root: the folder of /proc and /sys.
        environment: the variables that Slurm sets.
    """
    with suppress(OSError, ValueError):
        (free,) = re.findall(r"^MemAvailable: *(\d+) kB$", _text(root / "proc/meminfo"), re.M)
        yield int(free) * 1024
    asked = environment.get("SLURM_MEM_PER_NODE", "")
    with suppress(OSError):
        if asked.isdecimal() and int(asked):  # in 2^20 bytes; 0 is all of the node
            own = int(_text(root / "proc/self/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")
            yield max(0, int(asked) * 2**20 - own)
    with suppress(OSError):
        (group,) = re.findall(r"^0::/(.*)$", _text(root / "proc/self/cgroup"), re.M) or [""]
        top = root / "sys/fs/cgroup"
        for folder in (top / group, *(top / group).parents):
            if not folder.is_relative_to(top):
                return
            yield from _free_of_group(folder)


def _free_of_group(folder: Path) -> Iterator[int]:
    """Yield what the limit of a control group leaves, if any; cached files can be dropped."""
    with suppress(OSError, ValueError):
        most = _text(folder / "memory.max").strip()
        if most.isdecimal():
            cached = re.findall(r"active_file (\d+)$", _text(folder / "memory.stat"), re.M)
            held = int(_text(folder / "memory.current")) - sum(map(int, cached))
            yield max(0, int(most) - held)


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii", errors="replace")


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
