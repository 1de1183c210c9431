"""Snakemake's own executor for Slurm; Slurm's commands are scripts that refuse and fall silent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SNAKEFILE = """
from snakemake.logging import logger
from clipnoise.studies import snakemake_changes

snakemake_changes.FIRST_SECONDS = {seconds}

onstart:
    settings = workflow.executor_settings
    changed = snakemake_changes.choose_status_command(settings)
    snakemake_changes.submit_patiently(workflow.scheduler._executor, logger.warning)

rule all:
    input: "a.txt"

rule one:
    output: "a.txt"
    resources: mem_mb=1, runtime=1, slurm_partition="main"
    shell: "touch {{output}}"
"""
LIMIT = "sbatch: error: AssocMaxSubmitJobLimit"
# Refuses as often as the file `refusals` has lines, then does what the job would do.
SBATCH = """\
echo asked >> submissions
if [ -s refusals ]; then
    head -n 1 refusals >&2; sed -i 1d refusals; exit 1
fi
touch a.txt; echo 7
"""
# The controller answers at the start, and then not for two questions.
SCONTROL = """\
[ -e submissions ] && exit 1
echo 'MinJobAge               = 300 sec'
"""
SQUEUE = """\
echo asked >> questions
[ "$(wc -l < questions)" -gt 2 ] || exit 1
echo '7|COMPLETED'
"""
SACCT = 'case "$*" in *--name*) echo asked >> accounting ;; esac; exit 1'
START = ["snakemake", "--executor", "slurm", "--jobs", "1", "--quiet", "rules"]
FAST = ["--slurm-init-seconds-before-status-checks", "1", "--slurm-status-attempts", "50"]
FAST += ["--max-status-checks-per-second", "10", "--seconds-between-status-checks", "1"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workflow of one job, and a cluster without accounting."""
    programs = {"sbatch": SBATCH, "squeue": SQUEUE, "sacct": SACCT, "scontrol": SCONTROL}
    programs |= {"sinfo": "echo 'main*|up|infinite|64000|16|(null)'", "sacctmgr": "exit 1"}
    (tmp_path / "bin").mkdir()
    for name, script in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def start(
    folder: Path, refusals: list[str], *options: str, seconds: float = 0.05
) -> subprocess.Popen[str]:
    (folder / "refusals").write_text("".join(f"{line}\n" for line in refusals))
    (folder / "Snakefile").write_text(SNAKEFILE.format(seconds=seconds))
    path = os.pathsep.join(
        [str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    return subprocess.Popen(
        [*START, *FAST, *options],
        cwd=folder,
        env={**os.environ, "PATH": path, "HOME": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # In the background of a script, a process would ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.long
def test_without_accounting_a_controller_that_is_away_is_asked_again_and_the_user_told(
    folder: Path,
) -> None:
    workflow = start(folder, [])
    _, said = workflow.communicate(timeout=60)
    assert workflow.returncode == 0, said
    assert lines(folder / "questions") == 3
    assert lines(folder / "accounting") == 0
    assert said.count("squeue does not answer") == 1
    assert said.count("squeue answers again") == 1


@pytest.mark.long
def test_a_submission_beyond_a_limit_waits_and_costs_no_retry(folder: Path) -> None:
    refusals = [LIMIT] * 2
    refusals += ["sbatch: error: QOSMaxSubmitJobPerUserLimit"]
    workflow = start(folder, refusals, "--retries", "0")
    _, said = workflow.communicate(timeout=60)
    assert workflow.returncode == 0, said
    assert lines(folder / "submissions") == 4
    assert said.count("AssocMaxSubmitJobLimit") == 1
    assert said.count("QOSMaxSubmitJobPerUserLimit") == 1


def test_any_other_refusal_fails_with_the_words_of_sbatch(folder: Path) -> None:
    refusals = ["sbatch: error: invalid partition specified: mian"] * 9
    workflow = start(folder, refusals, "--retries", "1")
    _, said = workflow.communicate(timeout=60)
    assert workflow.returncode == 1
    assert lines(folder / "submissions") == 2
    assert said.count("invalid partition specified: mian") == 1


@pytest.mark.long
def test_a_submission_that_waits_ends_with_snakemake(folder: Path) -> None:
    workflow = start(folder, [LIMIT] * 9, seconds=1000)
    deadline = time.monotonic() + 60
    while not lines(folder / "submissions") and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)  # until the refusal has been read
    workflow.send_signal(signal.SIGINT)
    workflow.communicate(timeout=30)
    assert lines(folder / "submissions") == 1
