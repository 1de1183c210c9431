"""The doctor: what this machine has for running the suite, and what to do about what it lacks."""

from __future__ import annotations

import locale
import os
import platform
import re
import shutil
import socket
import sqlite3
import stat
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from clipnoise.cli import options
from clipnoise.errors import UserError
from clipnoise.files import read_yaml, require_writable, write_atomically

if TYPE_CHECKING:
    from clipnoise.run.spec import RunSpec
    from clipnoise.studies.cluster import Cluster
    from clipnoise.studies.config import Resources

PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306}
SPACE_GB = 10.0  # the environment takes 7 GB, the results of a study much less than 1 GB
PROFILE = Path("slurm/config.yaml")
JOBS = 200  # in the queue of a cluster at once, where it allows as many


@dataclass(frozen=True)
class Check:
    """The result of looking for one thing.

    Attributes:
        name: what was looked for.
        present: whether it is there.
        detail: which version, how much, or where.
        advice: what to do when it is missing; empty when nothing needs doing.
    """

    name: str
    present: bool
    detail: str
    advice: str = ""


@options.command()
def doctor(
    config: Annotated[Path, "Names the folders."] = Path("config.yaml"),
    weights: options.Weights = options.WEIGHTS,
    slurm: Annotated[bool, "Examine the Slurm cluster, and fit slurm/config.yaml to it."] = False,
    everything: Annotated[bool, "Also look for what the configured studies do not need."] = False,
) -> None:
    """Show what this machine has for the configured studies, and what to do about what it lacks.

    Reads the folders and the studies from config.yaml if there is one. Changes nothing, but for
    --slurm, and exits with 0 whatever is missing, because a missing part matters only to those who
    need it.
    """
    from clipnoise.fields import parse
    from clipnoise.studies.config import Config

    values = read_yaml(config) if config.exists() else {}
    configured = parse(Config, values, file=str(config))
    specs = None if everything or slurm else needed(values, config.parent)
    machine = examine(Path(configured.results), Path(configured.cache), weights, specs)
    for check in examine_cluster(configured.resources, PROFILE) if slurm else machine:
        print(f"{'ok' if check.present else '--'}  {check.name:<17} {check.detail}", flush=True)
        if not check.present and check.advice:
            print(f"    {'':<18}→ {check.advice}", flush=True)


def needed(values: Mapping[str, object], root: Path) -> list[RunSpec]:
    """Return the runs of the configured studies; none of studies that cannot be planned."""
    from clipnoise.studies.plan import Plan

    try:
        plan = Plan.from_values(values, root / "workflow" / "studies", root=root)
    except UserError as error:
        print(f"--  {'studies':<18}{error}")
        return []
    return [spec for study in plan.read for spec in study.specs.values()]


def examine(
    results: Path, cache: Path, weights: Path, specs: Collection[RunSpec] | None = None
) -> Iterator[Check]:
    """Examine this machine, one check at a time, the quick ones first.

    Args:
        results: folder of result files and of the default MLflow store.
        cache: folder of prepared datasets.
        weights: folder of pretrained weights.
        specs: the runs that the machine is for; None for any, on one machine or a cluster.

    Yields:
        The checks; a missing thing is a failed check, never an error.
    """
    import psutil

    yield Check("python", True, platform.python_version())
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Check("cores", True, f"{count} usable")
    ram = psutil.virtual_memory()
    size = f"{ram.available / 1e9:.1f} of {ram.total / 1e9:.1f} GB available"
    yield Check("memory", True, size)
    yield disk(results)
    yield from start(Path(), results, cache)
    yield _program("git", ["git", "--version"], "Install git so that runs record their commit.")
    if specs is None:
        yield _program(
            "slurm",
            ["sbatch", "--version"],
            "Not needed on one machine. For --profile slurm, log in to a submission host.",
        )
        yield browser()
    yield from datasets(cache, specs)
    yield from pretrained(weights, specs)
    yield store(results)
    yield from torch_and_device()


def examine_cluster(wanted: Resources, profile: Path) -> Iterator[Check]:
    """Examine the cluster of this machine and write the profile that fits it.

    Args:
        wanted: what one run asks for.
        profile: the file that is written, where there is a cluster; what is in it and does not
            follow from the cluster stays.

    Yields:
        What was found, and what to do about what is missing.
    """
    from clipnoise.studies.cluster import Cluster

    cluster = Cluster.here()
    if cluster is None:
        advice = "Log in to a submission host, or ask whether the controller runs: scontrol ping"
        yield Check("slurm", False, "scontrol does not answer", advice)
        return
    yield Check("slurm", True, cluster.version)
    for one in cluster.partitions:
        lacks = ", ".join(one.lacks(wanted))
        limit = "no time limit" if one.minutes is None else f"{one.minutes} minutes"
        size = f"{limit}; nodes of {one.cpus} CPUs, {one.memory_mb:,} MB, {one.gpus} GPUs"
        said = f"{size}{', default' if one.default else ''}{'' if one.up else ', down'}"
        advice = f"Too small for a run as config.yaml has it: {lacks}." if lacks else ""
        yield Check(f"partition {one.name}", one.up and not lacks, said, advice)
    yield _accounting(cluster)
    chosen = cluster.partition(wanted)
    if chosen is None:
        advice = "Ask for less under `resources` in config.yaml, or choose a partition yourself."
        yield Check("profile", False, f"{profile}: no partition has room for a run", advice)
        return
    if not profile.is_file():
        advice = "Start it where `snakemake --profile slurm` is started, in the checkout."
        yield Check("profile", False, f"{profile}: no such file", advice)
        return
    jobs = min(JOBS, cluster.most_jobs or JOBS)
    write_atomically(
        profile, adjusted(profile.read_text(encoding="utf-8"), chosen.name, cluster.account, jobs)
    )
    account = f", account {cluster.account}" if cluster.account else ""
    yield Check("profile", True, f"{profile}: partition {chosen.name}{account}, {jobs} jobs")


def _accounting(cluster: Cluster) -> Check:
    """Say by what command Snakemake learns how its jobs end."""
    from clipnoise.studies.cluster import ENOUGH_SECONDS

    remembered = f"jobs are remembered for {cluster.memory_seconds} s (MinJobAge)"
    if cluster.status_command == "sacct":
        return Check("accounting", True, f"sacct answers; {remembered}")
    if cluster.status_command == "squeue":
        return Check("accounting", True, f"none: Snakemake will ask squeue; {remembered}")
    advice = (
        f"Ask the administrator for accounting, or for a MinJobAge of at least {ENOUGH_SECONDS}."
    )
    return Check("accounting", False, f"none, and {remembered}", advice)


def adjusted(profile: str, partition: str, account: str | None, jobs: int) -> str:
    """Return the text of a profile with the partition, the account and the number of jobs set.

    Comments and everything else stay as they are.
    """
    lines = [f"  slurm_partition: {partition}"]
    lines += [f"  slurm_account: {account}"] if account else []
    text = re.sub(r"^  slurm_account:.*\n", "", profile, flags=re.MULTILINE)
    text = re.sub(r"^  slurm_partition:.*$", "\n".join(lines), text, flags=re.MULTILINE)
    return re.sub(r"^jobs:.*$", f"jobs: {jobs}", text, flags=re.MULTILINE)


def disk(results: Path) -> Check:
    """Check how much disk space there is where results go."""
    folder = next(
        path for path in [results.absolute(), *results.absolute().parents] if path.exists()
    )
    free = shutil.disk_usage(folder).free / 1e9
    return Check(
        "disk",
        free >= SPACE_GB,
        f"{free:.0f} GB free in {folder}",
        "Free some space, or set `results` and `cache` in config.yaml to a larger disk.",
    )


def start(root: Path, results: Path, cache: Path) -> Iterator[Check]:
    """Check what a start of Snakemake would stumble over.

    Args:
        root: where Snakemake is started.
        results: folder of result files.
        cache: folder of prepared datasets.
    """
    with suppress(KeyError, RuntimeError):  # a user without a home
        own = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        yield _writable("home", own, "Snakemake keeps a cache there: set XDG_CACHE_HOME.")
    advice = "Start Snakemake in a folder that you can write, with --directory."
    yield _writable("checkout", root, advice)
    for name, folder in (("results", results), ("cache", cache)):
        yield _writable(
            name, folder, f"Set `{name}` in config.yaml to a folder that you can write."
        )
    encoding = locale.getencoding()
    advice = "Text such as ε is printed as \\u03b5. Set LC_ALL=C.UTF-8, for example."
    yield Check("locale", encoding.lower() in ("utf-8", "utf8"), encoding, advice)
    mask = os.umask(0o022)
    os.umask(mask)
    if results.is_dir() and results.stat().st_mode & stat.S_IWGRP and mask & stat.S_IWGRP:
        said = f"{mask:03o}, but {results} is writable for its group"
        advice = "Others of the group cannot continue what you start. Set umask 002 before."
        yield Check("umask", False, said, advice)
    if any((root / ".snakemake" / "locks").glob("*")):
        advice = "If it was killed: snakemake --unlock"
        yield Check("lock", False, "Snakemake is running here, or was killed", advice)
    if (results / "runs").is_dir() and not (root / ".snakemake" / "metadata").is_dir():
        said = "no .snakemake/metadata beside the results"
        advice = "Snakemake cannot see that code or settings have changed: docs/operations.md."
        yield Check("records", False, said, advice)


def _writable(name: str, folder: Path, advice: str) -> Check:
    """Check whether files can be made in a folder, which may not be there yet."""
    try:
        require_writable(folder)
    except UserError as error:
        return Check(name, False, str(error), advice)
    return Check(name, True, f"{folder.absolute()} can be written")


def browser() -> Check:
    """Look for the Chromium that the browser tests drive."""
    advice = "Only the browser tests need it. On Debian: apt-get install chromium chromium-driver."
    name = next(
        (n for n in ("chromium", "chromium-browser", "google-chrome") if shutil.which(n)), ""
    )
    if not (name and shutil.which("chromedriver")):
        return Check(
            "chromium", False, f"{'chromedriver' if name else 'chromium'} not found", advice
        )
    return _program("chromium", [name, "--version"], advice)


def datasets(cache: Path, specs: Collection[RunSpec] | None = None) -> Iterator[Check]:
    """Check whether each dataset that runs read is prepared; every one where no runs are given."""
    from clipnoise.data.base import Dataset
    from clipnoise.plugins import plugins

    if specs is None:
        found = {name: name for name in plugins("clipnoise.data", Dataset)}
    else:
        each = (dataset for spec in specs for dataset in spec.datasets)
        found = {dataset.prepared: dataset.invocation for dataset in each}
    for name, invocation in found.items():
        present = (cache / name / "manifest.json").is_file()
        yield Check(
            f"dataset {name}",
            present,
            str(cache / name) if present else f"not in {cache}",
            f"Prepared when a study needs it, or by: clipnoise data prepare {invocation} --cache "
            f"{cache}",
        )


def pretrained(weights: Path, specs: Collection[RunSpec] | None = None) -> Iterator[Check]:
    """Check whether the pretrained weights of runs are here; of every model without runs."""
    from clipnoise.models.base import Model
    from clipnoise.models.pretrained import Weights
    from clipnoise.plugins import plugins

    start = {spec.model.id for spec in specs or () if getattr(spec.model, "pretrained", False)}
    for name, model in plugins("clipnoise.models", Model).items():
        if model.pretrained_weights is not None and (specs is None or name in start):
            file = Weights(name, weights).file()
            yield Check(
                f"weights {name}",
                file is not None,
                str(file or f"not in {weights}"),
                f"clipnoise weights fetch {name} --weights {weights}",
            )


def store(results: Path) -> Check:
    """Check whether the MLflow store can be reached, without changing it."""
    from clipnoise.tracking.store import redacted, tracking_uri

    uri = tracking_uri(results)
    place = redacted(uri)
    if uri.startswith("sqlite:///"):
        return _database(Path(uri.removeprefix("sqlite:///")))
    try:
        parts = urlsplit(uri)
        port = parts.port or PORTS.get(parts.scheme.partition("+")[0])
        if not (parts.hostname and port):
            return Check("mlflow store", True, f"{place} (cannot be checked from here)")
        with socket.create_connection((parts.hostname, port), timeout=3):
            return Check("mlflow store", True, place)
    except (OSError, ValueError) as error:
        return Check(
            "mlflow store",
            False,
            f"{place}: {error}",
            "Runs continue without it. Start the server, or unset MLFLOW_TRACKING_URI; "
            "`clipnoise mlflow-sync` then adds the runs that it missed.",
        )


def torch_and_device() -> Iterator[Check]:
    """Report the version of torch and what it can compute on. Importing torch takes seconds."""
    import torch

    yield Check("torch", True, torch.__version__)
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(index)
            room = f"{facts.total_memory / 1e9:.0f} GB, CUDA {torch.version.cuda}"
            yield Check("gpu", True, f"{facts.name}, {room}")
    elif torch.backends.mps.is_available():
        yield Check("gpu", True, "Apple GPU, not used: it has no float64")
    else:
        yield Check(
            "gpu",
            False,
            "none that torch can use",
            "Not needed for the quickstart: it runs on CPUs.",
        )


def _database(file: Path) -> Check:
    """Count the runs in an SQLite store, opened read-only."""
    advice = "`make mlflow` and `clipnoise mlflow-sync` make it from the result files."
    if not file.is_file():
        return Check("mlflow store", False, f"{file} does not exist yet", advice)
    if find_spec("mlflow") is None:
        install = "pip install 'clipnoise[mlflow]'"
        return Check("mlflow store", False, f"{file}, but MLflow is not installed", install)
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            (runs,) = database.execute("select count(*) from runs").fetchone()
            (version,) = database.execute("select version_num from alembic_version").fetchone()
    except (sqlite3.Error, TypeError) as error:
        return Check("mlflow store", False, f"{file}: {error}", f"Move it away. {advice}")
    if version != _schema_version():
        return Check(
            "mlflow store",
            False,
            f"{file}, {runs} runs, is of another version of MLflow: {version}",
            f"Move it away: the next call makes it again. Or `mlflow db upgrade sqlite:///{file}`.",
        )
    return Check("mlflow store", True, f"{file}, {runs} runs")


def _schema_version() -> str | None:
    """Return the version of the databases that the installed MLflow makes, without importing it."""
    from alembic.script import ScriptDirectory

    found = find_spec("mlflow")
    assert found is not None
    assert found.origin is not None
    migrations = Path(found.origin).parent / "store" / "db_migrations"
    return ScriptDirectory(str(migrations)).get_current_head()


def _program(name: str, command: list[str], advice: str) -> Check:
    """Check for a program by asking for its version."""
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return Check(name, False, f"{command[0]} not found", advice)
    return Check(name, True, done.stdout.strip().splitlines()[0] if done.stdout.strip() else "")
