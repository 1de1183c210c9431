"""Where a result comes from: code, versions, hardware and times."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from clipnoise.plugins import GROUP

PACKAGES = ("clipnoise", "torch", "opacus", "numpy", "snakemake", "mlflow")


@dataclass
class Provenance:
    """Facts about one run, collected when it starts.

    Attributes:
        device: the torch device name that trains.
        processes: how many train together, each on a device of its own or all on the CPU.
        started: when, UTC.
        begin: the same moment on a monotonic clock, seconds.
    """

    device: str
    processes: int = 1
    started: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))
    begin: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Seconds since the run started."""
        return time.perf_counter() - self.begin

    def as_mapping(self) -> dict[str, object]:
        """Return the facts as plain data for summary.json."""
        return {
            "versions": versions(),
            "git_commit": git_commit(),
            "hardware": hardware(self.device, self.processes),
            "started": self.started.isoformat(),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python, the packages listed above, and those with plug-ins."""
    installed = {"python": platform.python_version()}
    own = [point.dist.name for point in entry_points(group=GROUP) if point.dist is not None]
    for name in (*PACKAGES, *own):
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


@cache
def git_commit() -> str | None:
    """Return the commit of the code, with `+changes` for a dirty tree; None outside a checkout."""
    folder = Path(__file__).parent
    try:
        commit = _git(folder, "rev-parse", "--short=12", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+changes" if changed else "")


def _git(folder: Path, *words: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", check=True, timeout=10
    )
    return done.stdout.strip()


def hardware(device: str, processes: int = 1) -> dict[str, str | float | None]:
    """Return processor, cores, memory, host name, and the GPU if it is the device that trains.

    Where several processes train together, what each of them trains on says how many there are.
    """
    gpu, cpu = None, _processor()
    if device.startswith("cuda"):
        import torch

        gpu = torch.cuda.get_device_name(device)
    if processes > 1:
        gpu, cpu = (f"{processes} × {gpu}", cpu) if gpu else (None, f"{cpu}, {processes} processes")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "gpu": gpu,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "host": socket.gethostname(),
        "processes": processes,
    }


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
