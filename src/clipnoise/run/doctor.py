"""What this machine has for running the suite, and what to do about what it lacks."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from clipnoise.data.base import Dataset
from clipnoise.models.base import Model
from clipnoise.models.pretrained import Weights
from clipnoise.plugins import plugins
from clipnoise.tracking.store import redacted, tracking_uri

PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306}
ROOM_GB = 10.0  # the environment takes 7 GB, a study's results well under one


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        name: what.
        present: whether it is there.
        detail: which version, how much, or where.
        advice: what to do when it is missing; empty when nothing needs doing.
    """

    name: str
    present: bool
    detail: str
    advice: str = ""


def examine(results: Path, cache: Path, weights: Path) -> Iterator[Finding]:
    """Look at this machine, one finding at a time, the quick ones first.

    Args:
        results: folder of result files and of the default MLflow store.
        cache: folder of prepared datasets.
        weights: folder of pretrained weights.

    Yields:
        The findings; a missing thing is a finding too, never an error.
    """
    yield Finding("python", True, platform.python_version())
    yield cores()
    yield memory()
    yield disk(results)
    yield git()
    yield slurm()
    yield browser()
    yield from datasets(cache)
    yield from pretrained(weights)
    yield store(results)
    yield from torch_and_device()


def cores() -> Finding:
    """Count the processor cores that this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding("cores", True, f"{count} usable")


def memory() -> Finding:
    """Tell how much memory is there, and how much of it is free."""
    import psutil

    found = psutil.virtual_memory()
    return Finding(
        "memory", True, f"{found.available / 1e9:.1f} of {found.total / 1e9:.1f} GB available"
    )


def disk(results: Path) -> Finding:
    """Tell how much room there is where results go."""
    folder = next(
        path for path in [results.absolute(), *results.absolute().parents] if path.exists()
    )
    free = shutil.disk_usage(folder).free / 1e9
    return Finding(
        "disk",
        free >= ROOM_GB,
        f"{free:.0f} GB free in {folder}",
        "Make room, or set `results` and `cache` in config.yaml to a larger disk.",
    )


def git() -> Finding:
    """Look for git, which only the record of a run's commit needs."""
    return _program(
        "git", ["git", "--version"], "Install git to have each run record the commit of the code."
    )


def slurm() -> Finding:
    """Look for a Slurm submission host."""
    return _program(
        "slurm",
        ["sbatch", "--version"],
        "Not needed on one machine. For --profile slurm, log in to a submission host.",
    )


def browser() -> Finding:
    """Look for the Chromium that the browser tests drive."""
    advice = "Only the browser tests use it; they are skipped. Debian: chromium, chromium-driver."
    name = next(
        (n for n in ("chromium", "chromium-browser", "google-chrome") if shutil.which(n)), ""
    )
    if not (name and shutil.which("chromedriver")):
        return Finding(
            "chromium", False, f"{'chromedriver' if name else 'chromium'} not found", advice
        )
    return _program("chromium", [name, "--version"], advice)


def datasets(cache: Path) -> Iterator[Finding]:
    """Tell for each dataset whether it is prepared."""
    for name in plugins("clipnoise.data", Dataset):
        present = (cache / name / "manifest.json").is_file()
        yield Finding(
            f"dataset {name}",
            present,
            str(cache / name) if present else f"not in {cache}",
            f"Made when a study needs it, or by: clipnoise data prepare {name} --cache {cache}",
        )


def pretrained(weights: Path) -> Iterator[Finding]:
    """Tell for each model that can start from pretrained weights whether they are there."""
    for name, model in plugins("clipnoise.models", Model).items():
        if model.pretrained_weights is not None:
            found = Weights(name, weights / name).file()
            yield Finding(
                f"weights {name}",
                found is not None,
                str(found or f"not in {weights}"),
                f"clipnoise weights fetch {name} --weights {weights}",
            )


def store(results: Path) -> Finding:
    """Tell whether the MLflow store can be reached, without changing it."""
    uri = tracking_uri(results)
    place = redacted(uri)
    if uri.startswith("sqlite:///"):
        return _database(Path(uri.removeprefix("sqlite:///")))
    try:
        parts = urlsplit(uri)
        port = parts.port or PORTS.get(parts.scheme.partition("+")[0])
        if not (parts.hostname and port):
            return Finding("mlflow store", True, f"{place} (cannot be tried from here)")
        with socket.create_connection((parts.hostname, port), timeout=3):
            return Finding("mlflow store", True, place)
    except (OSError, ValueError) as error:
        return Finding(
            "mlflow store",
            False,
            f"{place}: {error}",
            "Runs go on without it. Start the server, or unset MLFLOW_TRACKING_URI; "
            "then `clipnoise mlflow-sync` adds what it missed.",
        )


def torch_and_device() -> Iterator[Finding]:
    """Tell which torch there is and what it can compute on. Takes seconds: it imports torch."""
    import torch

    yield Finding("torch", True, torch.__version__)
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(index)
            room = f"{facts.total_memory / 1e9:.0f} GB, CUDA {torch.version.cuda}"
            yield Finding("gpu", True, f"{facts.name}, {room}")
    elif torch.backends.mps.is_available():
        yield Finding("gpu", True, "Apple GPU, not used: it has no float64")
    else:
        yield Finding(
            "gpu",
            False,
            "none that torch can use",
            "Not needed for the quickstart: it runs on CPUs.",
        )


def _database(file: Path) -> Finding:
    """Count the runs in an SQLite store, opened read-only."""
    advice = "`snakemake --cores all` makes it; `clipnoise mlflow-sync` fills it from result files."
    if not file.is_file():
        return Finding("mlflow store", False, f"{file} does not exist yet", advice)
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            (runs,) = database.execute("select count(*) from runs").fetchone()
    except sqlite3.Error as error:
        return Finding("mlflow store", False, f"{file}: {error}", f"Move it away. {advice}")
    return Finding("mlflow store", True, f"{file}, {runs} runs")


def _program(name: str, command: list[str], advice: str) -> Finding:
    """Ask a program for its version."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return Finding(name, False, f"{command[0]} not found", advice)
    return Finding(name, True, done.stdout.strip().splitlines()[0] if done.stdout.strip() else "")
