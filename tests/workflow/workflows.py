"""How tests run the workflow: in a process of its own, forked, or job by job in this process."""

from __future__ import annotations

import csv
import os
import re
import shlex
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import forked_snakemake

from clipnoise.cli import main

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def environment(source: Path = ROOT / "src") -> dict[str, str]:
    """Return the environment of a job that takes the package from `source`."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}


def command(folder: Path, *words: str) -> list[str]:
    options = ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(folder), "--cores", "2"]
    return [str(BIN / "snakemake"), *options, "--quiet", "rules", "--nocolor", *words]


def snakemake(folder: Path, *words: str, source: Path = ROOT / "src", timeout: float = 400) -> str:
    called, settings = command(folder, *words), environment(source)
    if source == ROOT / "src":
        done = forked_snakemake.run(called[1:], Path.cwd(), settings, timeout=timeout)
    else:
        done = subprocess.run(called, env=settings, capture_output=True, text=True, check=False)
    logs = "\n".join(
        p.read_text()[-500:] for p in folder.rglob("*.log") if "snakemake" not in str(p)
    )
    assert done.returncode == 0, done.stdout + done.stderr + logs
    return done.stdout + done.stderr


def planned(output: str) -> dict[str, int]:
    """Read the job counts of a dry run."""
    table = re.findall(r"^([a-z_]+) +(\d+)$", output, flags=re.MULTILINE)
    return {rule: int(count) for rule, count in table if rule != "total"}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def run_planned(folder: Path, *words: str) -> None:
    """Run the commands of all jobs that Snakemake plans, in its order; all files must be there.

    Args:
        folder: the project.
        words: targets and options of Snakemake.
    """
    said = snakemake(folder, "--quiet", "progress", "--dry-run", "--printshellcmds", *words)
    commands = re.findall(r"^Shell command: (.*clipnoise .*)$", said, re.MULTILINE)
    assert commands
    with chdir(folder):
        for command in commands:
            run_here(command)
    assert planned(snakemake(folder, "--dry-run", *words)) == {}


def run_here(command: str) -> None:
    """Run a job's command, but for what redirects its output."""
    words = shlex.split(re.sub(r" >>? \S+ 2>&1$", "", command.strip()))
    called = words[words.index("clipnoise") + 1 :]
    if "--out" in called:  # Snakemake makes the folders of outputs
        place = Path(called[called.index("--out") + 1])
        place.parent.mkdir(parents=True, exist_ok=True)
    assert main(called) == 0, command


def link_checkout(folder: Path) -> None:
    """Link into a folder all that a checkout has besides studies and its config.yaml."""
    for name in ("Snakefile", "profiles", "envs", "workflow/rules", "workflow/scales",
                 "workflow/report", "workflow/reproductions", "reports/templates",
                 "reports/published"):  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(ROOT / name)
