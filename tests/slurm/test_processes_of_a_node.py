"""Runs that two processes of one node of a real Slurm train together, through the whole profile."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cluster
import pytest
import test_cluster as one_node
from pypdf import PdfReader
from test_cluster import CACHE, CONFIG, PROFILE, RESULTS, SNAKEMAKE, START, STUDY, Job

pytestmark = one_node.pytestmark
THREADS, PROCESSES = 1, 2
RESOURCES = {"threads": THREADS, "memory_mb": 4000, "minutes": 10, "gpus": PROCESSES}


@dataclass(frozen=True)
class Story:
    """A study of two runs, which are trained in one job.

    Attributes:
        folder: the checkout.
        jobs: all jobs of the study, as they were in the end.
    """

    folder: Path
    jobs: list[Job]

    @property
    def results(self) -> list[Path]:
        found = sorted((self.folder / RESULTS / "runs").rglob("summary.json"))
        return [path.parent for path in found]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with cluster.alone(tmp_path_factory.getbasetemp()):
        yield tell(tmp_path_factory.mktemp("checkout"))


def tell(folder: Path) -> Story:
    """Run the study to its end."""
    study = STUDY.replace("[1, 2, 3, 4, 5]", "[1, 2]").replace("steps: 1500", "steps: 30")
    one_node.checkout(folder, {**CONFIG, "resources": RESOURCES}, study, PROFILE)
    with (folder / "snakemake.txt").open("w") as log:
        command = [sys.executable, "-c", SNAKEMAKE, *START]
        workflow = one_node.start(command, folder, stdout=log, stderr=log)
    try:
        done = "the study is done"
        cluster.wait(lambda: workflow.poll() is not None, done, seconds=500, every=1)
    finally:
        workflow.kill()
    assert workflow.returncode == 0, (folder / "snakemake.txt").read_text()
    return Story(folder, one_node.jobs())


def test_the_job_asks_for_one_node_with_the_cpus_and_gpus_of_a_run(story: Story) -> None:
    """Both runs are in it, one after the other."""
    (job,) = story.jobs
    assert (job.state, job.shown["NumNodes"]) == ("COMPLETED", "1")
    assert job.shown["NumCPUs"] == str(PROCESSES * THREADS)
    assert job.shown["TresPerNode"] == f"gres:gpu:{PROCESSES}"
    assert one_node.memory(job) == 4000


def test_each_run_was_trained_by_two_processes(story: Story) -> None:
    assert len(story.results) == 2
    for folder in story.results:
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["status"] == "completed"
        assert summary["hardware"]["processes"] == PROCESSES
        assert summary["bytes_per_step"] > 0


def test_the_report_says_on_how_many_devices_a_run_trained(story: Story) -> None:
    with (story.folder / RESULTS / "studies/study/runs.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["cpu"].endswith(f", {PROCESSES} processes") for row in rows] == [True] * 2
    pages = PdfReader(story.folder / "reports/study/report.pdf").pages
    shown = "".join(page.extract_text() for page in pages)
    assert f"{PROCESSES} processes" in " ".join(shown.split())


def test_the_numbers_are_those_of_two_processes_without_slurm(story: Story, tmp_path: Path) -> None:
    folder, *_ = story.results
    words = ["clipnoise", "train", "--spec", str(folder / "spec.yaml"), "--processes", "2"]
    words += ["--calibration", *map(str, (story.folder / RESULTS).glob("calibration/*.json"))]
    words += ["--results", str(tmp_path), "--cache", CACHE, "--threads", str(THREADS)]
    assert one_node.start(words, story.folder).wait(200) == 0
    (again,) = tmp_path.rglob("summary.json")
    assert one_node.results(again.parent) == one_node.results(folder)
