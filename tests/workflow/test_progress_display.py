"""Snakemake shows its progress through the display, on a real run."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.workflow

SNAKEFILE = """
rule all:
    input: expand("{name}.txt", name=["a", "b", "c"])
rule write:
    output: "{name}.txt"
    log: "{name}.log"
    shell: "test {wildcards.name} != b && touch {output}"
"""


def command(folder: Path, *words: str) -> list[str]:
    (folder / "Snakefile").write_text(SNAKEFILE)
    start = [sys.executable, "-m", "snakemake", "--cores", "1", "--logger", "clipnoise"]
    return [*start, "--directory", str(folder), "--snakefile", str(folder / "Snakefile"), *words]


def test_in_a_file_each_job_is_a_line_and_a_failure_is_explained(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--keep-going"),
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert sorted(line for line in lines if line.startswith("start")) == [
        "start  write a",
        "start  write b",
        "start  write c",
    ]
    assert sum("of 4 jobs done" in line for line in lines) == 2
    assert "Error in rule write" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_dry_run_says_what_would_run_and_why(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "-n"), capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0
    assert "reason: Missing output files: a.txt" in done.stdout
    assert not (tmp_path / "a.txt").exists()


def test_on_a_terminal_the_display_is_kept_up_to_date(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    settings = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        command(tmp_path, "a.txt"), stderr=follower, stdout=follower, env=settings, cwd=tmp_path
    ) as process:
        os.close(follower)
        shown = b""
        try:
            while block := os.read(leader, 4096):
                shown += block
        except OSError:  # Linux's word for the end of a terminal
            pass
        assert process.wait(timeout=60) == 0
    os.close(leader)
    assert b"left: write 1" in shown
    assert b"1 of 1 jobs done" in shown
    assert b"start  write" not in shown
