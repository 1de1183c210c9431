"""Processes on the other nodes of a Slurm job; Slurm's commands are scripts here."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from clipnoise.errors import UserError
from clipnoise.run.nodes import Allocation, OnOtherNodes, step_command
from clipnoise.run.outcome import LostRankError
from clipnoise.run.ranks import Ranks, started

JOB = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "b2"}
# Starts as many processes as it is asked for, one on a node, and ends with the first that fails.
SRUN = """\
import os, subprocess, sys, threading
from contextlib import suppress

words = sys.argv[1:]
command = words[words.index(sys.executable):]
count = next(int(word[9:]) for word in words if word.startswith("--ntasks="))
tasks = [
    subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        env={**os.environ, "SLURM_PROCID": str(place), "SLURM_LOCALID": "0"},
    )
    for place in range(count)
]

def forward():
    while chunk := os.read(0, 65536):
        for task in tasks:
            with suppress(BrokenPipeError):
                task.stdin.write(chunk)
                task.stdin.flush()
    for task in tasks:
        with suppress(BrokenPipeError):
            task.stdin.close()

threading.Thread(target=forward, daemon=True).start()
failed = 0
while any(task.poll() is None for task in tasks) and not failed:
    with suppress(subprocess.TimeoutExpired):
        tasks[0].wait(0.05)
    failed = next((task.returncode for task in tasks if task.poll()), 0)
for task in tasks:
    if failed and task.poll() is None:
        task.kill()
os._exit(failed)
"""


def install(folder: Path, **scripts: str) -> None:
    for name, script in scripts.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job on three nodes, of which this process is on the second."""
    hosts = "if [ $2 = hostnames ]; then printf 'b1\\nb2\\nb3\\n'"
    node = "else echo 'NodeName=b2 NodeAddr=127.0.0.1 Port=1'; fi"
    install(
        tmp_path,
        squeue="#!/bin/sh\necho 'b[1-3]'\n",
        scontrol=f"#!/bin/sh\n{hosts}; {node}\n",
        srun=f"#!{sys.executable}\n{SRUN}",
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    for name, text in JOB.items():
        monkeypatch.setenv(name, text)
    return tmp_path


def test_the_nodes_of_a_job_and_the_address_of_this_one_are_slurms(job: Path) -> None:
    assert Allocation.here(3) == Allocation("7", "127.0.0.1", ("b1", "b3"))


def test_processes_are_started_on_every_other_node_with_their_cpus() -> None:
    words = step_command(Allocation("7", "b2", ("b1", "b3")), each=4, threads=2)
    asked = {"--nodelist=b1,b3", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4"}
    assert {"srun", "--jobid=7", "--cpus-per-task=2", *asked} < set(words)


def test_another_number_of_nodes_than_the_job_has_is_refused(job: Path) -> None:
    with pytest.raises(UserError, match=r"nodes: 2: Slurm job 7 has 3 \(b\[1-3\]\)"):
        Allocation.here(2)
    with pytest.raises(UserError, match="nodes: 2: several nodes are those of a Slurm job"):
        Allocation.here(2, {})


def test_processes_that_no_node_can_have_evenly_are_refused(job: Path) -> None:
    with (
        pytest.raises(UserError, match="processes: 4 cannot be shared out evenly among 3 nodes"),
        started(4, "cpu", places, nodes=3),
    ):
        pass


def test_what_slurm_sets_for_a_step_does_not_reach_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.setenv("SLURM_CONF", "/here")
    command = ["sh", "-c", f"env > {tmp_path / 'seen'}"]
    other = OnOtherNodes("other", command, partial(print))
    other.start()
    other.join(10)
    assert other.exitcode == 0
    seen = (tmp_path / "seen").read_text().splitlines()
    assert "SLURM_CONF=/here" in seen
    assert not [line for line in seen if line.startswith("SLURM_NTASKS=")]


def waits(folder: Path, place: int, first_ended: Callable[[], object]) -> None:
    (folder / f"began {place}").touch()
    first_ended()
    (folder / f"ended {place}").touch()


@pytest.mark.long
def test_the_others_learn_that_the_first_process_has_ended(job: Path, tmp_path: Path) -> None:
    command = step_command(Allocation("7", "b2", ("b1",)), each=2, threads=1)
    other = OnOtherNodes("other", command, partial(waits, tmp_path))
    other.start()
    while len(list(tmp_path.glob("began *"))) < 2:
        assert other.is_alive()
        time.sleep(0.05)
    other.kill()
    assert not other.is_alive()
    assert sorted(path.name for path in tmp_path.glob("ended *")) == ["ended 0", "ended 1"]


def listens(place: int, first_ended: Callable[[], object]) -> None:
    threading.Thread(target=first_ended, daemon=True).start()


@pytest.mark.long
def test_processes_that_are_done_end_before_the_first_one(job: Path) -> None:
    other = OnOtherNodes("other", step_command(Allocation("7", "b2", ("b1",)), 1, 1), listens)
    other.start()
    other.join(120)
    assert other.exitcode == 0


def places(ranks: Ranks) -> list[tuple[int, str]]:
    """Return the number of each process, and which one it is on its node."""
    return ranks.each((ranks.rank, os.environ.get("LOCAL_RANK", "")))


@pytest.mark.long
def test_processes_of_several_nodes_are_one_group(job: Path) -> None:
    with started(3, "cpu", places, nodes=3) as ranks:
        found = places(ranks)
    assert [rank for rank, _ in found] == [0, 1, 2]
    assert found[1:] == [(1, "0"), (2, "0")]


def dies(ranks: Ranks) -> None:
    if ranks.rank == 2:
        os._exit(3)
    while ranks.each(True):
        time.sleep(0.01)


@pytest.mark.long
def test_the_first_process_says_that_one_on_another_node_has_ended(job: Path) -> None:
    said = r"one of processes 2 to 3, on b1, b3, that train this run together has ended"
    with (
        pytest.raises(LostRankError, match=said),
        started(3, "cpu", dies, nodes=3) as ranks,
    ):
        dies(ranks)
