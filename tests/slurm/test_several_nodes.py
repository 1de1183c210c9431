"""A run that processes on two nodes of a real Slurm train together, and what disturbs them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cluster
import psutil
import pytest
import test_cluster as one_node
from test_cluster import CACHE, CONFIG, RESULTS, SNAKEMAKE, START, STUDY, Job

pytestmark = one_node.pytestmark
THREADS = 1
RESOURCES = {"threads": THREADS, "memory_mb": 4000, "minutes": 10, "gpus": 1, "nodes": 2}
ALONE = {key: value for key, value in one_node.PROFILE.items() if key != "group-components"}


@dataclass(frozen=True)
class Story:
    """A run whose process on the second node was killed, and whose second job was preempted.

    Attributes:
        folder: the checkout.
        jobs: all jobs of the study, in the order of submission, as they were in the end.
        gpus: how many the step on the second node had, in the first job.
    """

    folder: Path
    jobs: list[Job]
    gpus: str | None

    @property
    def result(self) -> Path:
        (path,) = (self.folder / RESULTS / "runs").rglob("summary.json")
        return path.parent


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with cluster.alone(tmp_path_factory.getbasetemp()):
        yield tell(tmp_path_factory.mktemp("checkout"))


def tell(folder: Path) -> Story:
    """Run the study to its end, and disturb it meanwhile."""
    config = {**CONFIG, "resources": RESOURCES}
    study = STUDY.replace("[1, 2, 3, 4, 5]", "[1]").replace("steps: 1500", "steps: 400")
    one_node.checkout(folder, config, study, ALONE)
    with (folder / "snakemake.txt").open("w") as log:
        command = [sys.executable, "-c", SNAKEMAKE, *START]
        workflow = one_node.start(command, folder, stdout=log, stderr=log)
    try:
        first, job = held(folder, workflow, before="")
        gpus = first.environ().get("SLURM_GPUS_ON_NODE")
        first.kill()
        second, job = held(folder, workflow, before=job)
        words = ("--partition=urgent", "--exclusive", "--nodelist=node2", "--output=/dev/null")
        cluster.output("sbatch", *words, "--wrap=sleep 1")
        one_node.release(second)
        done = "the study is done"
        cluster.wait(
            lambda: cluster.serves() and one_node.hurry(workflow), done, seconds=300, every=1
        )
    finally:
        workflow.kill()
    assert workflow.returncode == 0, (folder / "snakemake.txt").read_text()
    return Story(folder, one_node.jobs(), gpus)


def held(folder: Path, workflow: Any, before: str) -> tuple[psutil.Process, str]:
    """Stop the process on the second node in the midst of training.

    Args:
        folder, workflow: the checkout and Snakemake.
        before: the job that is not meant.

    Returns:
        That process, and the job.
    """
    found: dict[str, psutil.Process] = {}

    def hold() -> bool:
        assert workflow.poll() is None, (folder / "snakemake.txt").read_text()
        found.clear()
        found.update(ranks(before))
        if set(found) != set(cluster.NODES):
            return False
        logs = list((folder / RESULTS / "runs").rglob("run.log"))
        started = logs[0].read_text().rpartition("started in Slurm job")[2] if logs else ""
        if "step 0/" not in started:
            return False
        found["node2"].suspend()
        assert "completed" not in logs[0].read_text()
        return True

    cluster.wait(hold, "processes on two nodes train", seconds=200, every=0.02)
    return found["node2"], found["node2"].environ()["SLURM_JOB_ID"]


def ranks(before: str) -> Iterator[tuple[str, psutil.Process]]:
    """Yield the processes that train, with their nodes, but not those of a job before."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            words, parent = process.cmdline(), process.parent()
            remote = words[1:3] == ["-m", "clipnoise.run.nodes"]
            warm = any("clipnoise.cli.warm" in word for word in words)
            forked = warm and parent is not None and parent.cmdline() == words
            variables = process.environ()
            if (remote or forked) and variables.get("SLURM_JOB_ID") not in (None, before):
                yield variables["SLURMD_NODENAME"], process


def test_the_run_is_whole_and_says_how_many_processes_trained_it(story: Story) -> None:
    summary = json.loads((story.result / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["hardware"]["processes"] == 2


def test_a_job_asks_for_both_nodes_with_the_cpus_and_gpus_of_each(story: Story) -> None:
    for job in story.jobs:
        assert (job.shown["NumNodes"], job.shown["NumCPUs"]) == ("2", str(2 * THREADS))
        assert job.shown["TresPerNode"] == "gres:gpu:1"
        assert job.shown["MinMemoryNode"] == "4000M"
    assert story.gpus == "1"


def test_the_job_of_a_process_that_died_says_which_and_is_tried_again(story: Story) -> None:
    said = r"process 2 of 2, on node2, that train this run together has ended \(exit code 137\)"
    assert re.search(said, (story.folder / "snakemake.txt").read_text())
    assert [job.state for job in story.jobs] == ["FAILED", "COMPLETED"]


def test_a_preempted_job_saves_the_run_and_returns_to_the_queue(story: Story) -> None:
    assert int(story.jobs[-1].shown["Restarts"]) >= 1
    assert json.loads((story.result / "summary.json").read_text())["resumed"]


def test_the_numbers_are_those_of_two_processes_of_one_machine(
    story: Story, tmp_path: Path
) -> None:
    words = ["clipnoise", "train", "--spec", str(story.result / "spec.yaml"), "--processes", "2"]
    words += ["--calibration", *map(str, (story.folder / RESULTS).glob("calibration/*.json"))]
    words += ["--results", str(tmp_path), "--cache", CACHE, "--threads", str(THREADS)]
    assert one_node.start(words, story.folder).wait(200) == 0
    (again,) = tmp_path.rglob("summary.json")
    assert one_node.results(again.parent) == one_node.results(story.result)
