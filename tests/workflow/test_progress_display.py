"""Snakemake shows its progress through the display, on a real run."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked_snakemake
import pytest

pytestmark = pytest.mark.workflow

SNAKEFILE = """
rule all:
    input: expand("{name}.txt", name=["a", "b", "c"])
rule write:
    message: "write {wildcards.name}"
    output: "{name}.txt"
    log: "{name}.log"
    shell: "echo of {wildcards.name} >> {log}; test {wildcards.name} != b && touch {output}"
"""


def command(folder: Path, *words: str) -> list[str]:
    (folder / "Snakefile").write_text(SNAKEFILE)
    start = [sys.executable, "-m", "snakemake", "--cores", "1", "--logger", "clipnoise"]
    return [*start, "--directory", str(folder), "--snakefile", str(folder / "Snakefile"), *words]


def failing(folder: Path, *words: str) -> list[str]:
    done = subprocess.run(
        command(folder, *words), capture_output=True, text=True, timeout=60, cwd=folder
    )
    assert done.returncode == 1
    return done.stderr.splitlines()


@pytest.mark.long
def test_in_a_file_each_job_is_a_line_and_a_failure_is_explained(tmp_path: Path) -> None:
    lines = failing(tmp_path, "--keep-going")
    assert "To do: 3 write, 1 all" in lines or "To do: 1 all, 3 write" in lines
    assert sorted(line for line in lines if line.startswith("start")) == [
        "start  write a",
        "start  write b",
        "start  write c",
    ]
    assert sum("of 4 jobs done" in line for line in lines) == 2
    failed = lines.index("failed write b, exit status 1")
    assert lines[failed + 1 : failed + 3] == ["  b.log, its last lines:", "    of b"]
    assert sum("touch" in line or "rule write" in line for line in lines) == 0
    assert "Traceback (most recent call last):" not in lines


@pytest.mark.long
def test_the_command_of_a_failed_job_is_shown_on_request(tmp_path: Path) -> None:
    lines = failing(tmp_path, "b.txt", "-p")
    shown = lines[lines.index("failed write b, exit status 1") :]
    assert "Error in rule write:" in shown
    assert any("test b != b && touch b.txt" in line for line in shown)


def dry_run(folder: Path, *words: str) -> str:
    done = forked_snakemake.run(command(folder, "-n", *words)[3:], folder, os.environ)
    assert done.returncode == 0
    assert not (folder / "a.txt").exists()
    return done.stdout


def test_a_dry_run_counts_the_jobs_of_each_rule_once_and_says_why(tmp_path: Path) -> None:
    shown = dry_run(tmp_path)
    assert [line.split() for line in shown.splitlines() if line.startswith("write")] == [
        ["write", "3"]
    ]
    assert "output files have to be generated:\n        write" in shown
    assert len(shown.splitlines()) < 20
    for unwanted in ("Snakemake version", "a.txt", "individual jobs above"):
        assert unwanted not in shown


def test_a_dry_run_shows_each_job_and_its_command_on_request(tmp_path: Path) -> None:
    shown = dry_run(tmp_path, "-p")
    assert "Reason: Missing output files: a.txt" in shown
    assert "test a != b && touch a.txt" in shown
    assert "Snakemake version" not in shown


@pytest.mark.long
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


@pytest.mark.long
def test_ctrl_c_is_answered_at_once_with_what_happens_next(tmp_path: Path) -> None:
    words = command(tmp_path, "a.txt")
    (tmp_path / "Snakefile").write_text(SNAKEFILE.replace("echo", "sleep 60; echo"))
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
        # Tests that run in the background of a shell ignore Ctrl-C, and so would this process.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("start  write a"):
            assert process.poll() is None
        time.sleep(1)  # Snakemake waits for the job
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.stdout.readline().startswith("Stopping: ")
        rest = process.stdout.read()
    assert "failed" not in rest
    assert "Error" not in rest
    assert not (tmp_path / "a.txt").exists()


@pytest.mark.long
def test_ctrl_c_while_the_workflow_plans_is_one_line(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    for name in ("Snakefile", "config.yaml"):
        shutil.copy(root / name, tmp_path)
    for name in ("workflow", "profiles", "envs", "reports"):
        shutil.copytree(root / name, tmp_path / name)
    (tmp_path / "plugins").mkdir()
    slow = "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(100)\n"
    (tmp_path / "plugins/slow.py").write_text(slow)
    (tmp_path / "mine.yaml").write_text(
        "title: Slow\npanels: {p: {datasets: [digits], models: [logistic], seeds: [1],\n"
        "  methods: [{id: slow}], training: {expected_batch_size: 10, steps: 1}}}\nreport: []\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--cores", "1", "--config", "studies=[mine.yaml]"],
        env={name: text for name, text in os.environ.items() if name != "CLIPNOISE_PLUGINS"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        shown, _ = process.communicate(timeout=60)
    assert shown.splitlines()[-1] == "clipnoise: stopped before the first job."
    assert "Traceback" not in shown
    assert process.returncode == 130
    assert not list(tmp_path.glob(".snakemake/locks/*"))
