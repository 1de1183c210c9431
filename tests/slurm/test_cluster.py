"""`snakemake --cores all --profile slurm` on a real Slurm: resources, faults, and what is left."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cluster
import psutil
import pytest
import yaml

from clipnoise.run.scheduler import LIMITS, count_exceeded, note_job
from clipnoise.studies.plan import PLANNED_CODE, Plan

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
REQUIRED = os.environ.get("CLIPNOISE_REQUIRE_SLURM") == "1"
LACKING = cluster.lacking()
THREADS = (os.cpu_count() or 1) + 2  # more than the submitting machine has
TIMES = {"seconds", "examples_per_second", "peak_memory_mb"}

pytestmark = [
    pytest.mark.workflow,
    pytest.mark.long,
    pytest.mark.skipif(bool(LACKING) and not REQUIRED, reason=f"no Slurm here: {LACKING}"),
]

# What a person changes in slurm/config.yaml for short runs, and shorter waiting.
TOGETHER = 2  # short runs in one job
PROFILE = {"max-status-checks-per-second": 1, "group-components": [f"train={TOGETHER}"]}
# Folders whose names mean something to a shell, from the command line and from config.yaml.
RESULTS = "é x; touch ran & y *~"
CACHE = "data & x; touch ran #*"
# Snakemake itself, but for its patience: it would ask for its jobs less and less often.
SNAKEMAKE = """
from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor
Executor.next_seconds_between_status_checks = property(lambda self: 1, lambda self, value: None)
main()
"""
START = ["--cores", "all", "--profile", "slurm", "--config", f"results={RESULTS}"]
CONFIG = {
    "studies": ["study.yaml"],
    "tracking": "off",
    "device": "cpu",
    "cache": CACHE,
    "resources": {
        "threads": THREADS,
        "memory_mb": 4000,
        "minutes": 5,
        "gpus": 1,
    },
}
STUDY = """
title: On a cluster
defaults:
  training: {expected_batch_size: 50, steps: 1500, evaluations: 3}
  privacy: {noise_multiplier: 1}
panels:
  panel:
    datasets: [digits]
    models: [logistic]
    methods: [{id: dp-pmlf, learning_rate: 0.1, clip_norm: 1}]
    seeds: [1, 2, 3, 4, 5]
report: [{kind: table, panels: panel}]
"""


# Programs that need more than 100 MB or one minute.
GREEDY = {
    "memory": 'import time; held = b"x" * 400_000_000; time.sleep(50)',
    "time": "import time; time.sleep(300)",
}


@dataclass
class Job:
    """A job as Slurm shows it; `rule` is that of Snakemake."""

    id: str
    state: str
    rule: str
    shown: dict[str, str] = field(default_factory=dict)


def jobs() -> list[Job]:
    """Return every job of the study that Slurm remembers, in the order of submission."""
    text = cluster.output("squeue", "--states=all", "--noheader", "--format=%i|%T|%k", "--sort=i")
    found = [Job(*line.split("|")) for line in text.splitlines()]
    for job in found:
        shown = cluster.output("scontrol", "show", "job", "--details", job.id)
        job.shown = dict(re.findall(r"(\S+?)=(\S*)", shown))
    return [job for job in found if job.rule.startswith("rule_")]


@dataclass(frozen=True)
class Story:
    """A study that ran to its end though one job was cancelled, one preempted and one's node lost.

    Attributes:
        folder: the checkout.
        cancelled, preempted, lost: the jobs' ids.
        gpus: node and index of the GPU of each of the three jobs, while they ran at the same time.
        resumed: log of the run that the preempted job was in.
        planned: what each of the three jobs was told of the code that Snakemake planned.
        jobs: all jobs by id, as they were in the end.
    """

    folder: Path
    cancelled: str
    preempted: str
    lost: str
    gpus: list[tuple[str, str]]
    resumed: Path
    planned: list[str | None]
    jobs: dict[str, Job]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with cluster.alone(tmp_path_factory.getbasetemp()):
        try:
            told = tell(tmp_path_factory.mktemp("checkout"))
        except cluster.ClusterError:  # Debian's slurmctld can crash when jobs end at once
            told = tell(tmp_path_factory.mktemp("again"))
        yield told


def tell(folder: Path) -> Story:
    """Run the study to its end, and disturb it meanwhile."""
    checkout(folder)
    with (folder / "snakemake.txt").open("w") as log:
        command = [sys.executable, "-c", SNAKEMAKE, *START]
        workflow = start(command, folder, stdout=log, stderr=log)
    try:
        facts = disturb(folder, workflow)
        done = "the study is done"
        cluster.wait(lambda: cluster.serves() and hurry(workflow), done, seconds=500, every=1)
    finally:
        workflow.kill()
    assert workflow.returncode == 0, (folder / "snakemake.txt").read_text()
    return Story(folder, **facts, jobs={job.id: job for job in jobs()})


def checkout(
    folder: Path, config: dict[str, Any] = CONFIG, study: str = STUDY, profile: Any = PROFILE
) -> Path:
    """Lay out what a user has checked out, with a study, its data and its calibration.

    The cluster starts meanwhile.
    """
    for name in ("workflow", "profiles", "slurm", "envs", "reports"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "Snakefile", folder)
    path = folder / "slurm" / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **profile}))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "study.yaml").write_text(study)
    values = {**config, "studies": [str(folder / "study.yaml")], "results": RESULTS}
    plan = Plan.from_values(values, folder)
    (calibration,) = plan.inputs(plan.study("study").runs[0].spec.hash)["calibration"]
    options = shlex.split(plan.calibration(Path(calibration).stem).options())
    made = [
        start(["clipnoise", "data", "prepare", "digits", "--cache", CACHE], folder),
        start(["clipnoise", "calibrate", *options, "--out", calibration], folder),
    ]
    cluster.start()
    assert [process.wait(100) for process in made] == [0, 0]
    return folder


def start(command: list[str], folder: Path, **options: Any) -> subprocess.Popen[bytes]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, cwd=folder, env={**os.environ, **own}, **options)


def disturb(folder: Path, workflow: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Cancel a job, preempt another and lose the node of a third, each in the midst of a run.

    Before that, the controller is away until Snakemake has noticed.
    """
    held: dict[str, psutil.Process] = {}

    def hold() -> bool:
        assert workflow.poll() is None, (folder / "snakemake.txt").read_text()
        held.update((job, run) for job, run in runs(folder) if job not in held and paused(run))
        return len(held) == 3

    cluster.wait(hold, "three jobs train", seconds=200)
    cluster.lose_controller()
    noticed = "Snakemake asks while the controller is away"
    cluster.wait(lambda: "does not answer; it" in (folder / "snakemake.txt").read_text(), noticed)
    cluster.start_controller()
    planned = [run.environ().get(PLANNED_CODE) for run in held.values()]
    shown = {job.id: job.shown for job in jobs()}
    gpus = {job: (shown[job]["NodeList"], shown[job]["GRES"]) for job in held}
    alone, full = sorted(cluster.NODES, key=[node for node, _ in gpus.values()].count)
    (lost,) = (job for job, (node, _) in gpus.items() if node == alone)
    preempted, cancelled = sorted(set(held) - {lost})
    resumed = log_of(held[preempted])
    cluster.lose_node(alone)
    cluster.output("scancel", cancelled)
    release(held[cancelled])
    words = ("--partition=urgent", "--exclusive", f"--nodelist={full}", "--output=/dev/null")
    cluster.output("sbatch", *words, "--wrap=sleep 1")
    release(held[preempted])
    cluster.start_node(alone)
    facts = {"cancelled": cancelled, "preempted": preempted, "lost": lost, "resumed": resumed}
    return {**facts, "gpus": list(gpus.values()), "planned": planned}


def runs(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Yield the processes that train a run, each with the id of its job: forks of a warm one."""
    for process in psutil.process_iter():
        try:
            words, parent = process.cmdline(), process.parent()
            forked = any("clipnoise.cli.warm" in word for word in words)
            forked = forked and parent is not None and parent.cmdline() == words
            if forked and log_of(process).is_relative_to(folder / RESULTS / "runs"):
                yield process.environ()["SLURM_JOB_ID"], process
        except psutil.Error:
            continue


def log_of(run: psutil.Process) -> Path:
    return Path(f"/proc/{run.pid}/fd/1").readlink()


def paused(run: psutil.Process) -> bool:
    """Stop a run's process; tell whether that happened between its first step and its last."""
    try:
        run.suspend()
        cluster.wait(lambda: run.status() == psutil.STATUS_STOPPED, "a run is held")
        said = log_of(run).read_text()
        if "step 0/" in said and "completed" not in said:
            return True
        run.resume()
    except (psutil.NoSuchProcess, FileNotFoundError):
        pass
    return False


def release(run: psutil.Process) -> None:
    """Resume a run once Slurm's signal to stop is waiting for it; Slurm may do so by itself."""

    def signalled() -> bool:
        status = Path(f"/proc/{run.pid}/status").read_text()
        pending = [int(bits, 16) for bits in re.findall(r"(?:Sig|Shd)Pnd:\s*(\w+)", status)]
        told_to_stop = any(bits >> (signal.SIGTERM - 1) & 1 for bits in pending)
        return told_to_stop or run.status() != psutil.STATUS_STOPPED

    with suppress(psutil.NoSuchProcess, FileNotFoundError):  # it has been saved, and has ended
        cluster.wait(signalled, "Slurm tells a run to stop")
        run.resume()


def hurry(workflow: subprocess.Popen[bytes]) -> bool:
    """Start at once what Slurm would hold back for two minutes; tell whether all is done."""
    for job in jobs():
        if job.shown.get("Reason") == "BeginTime":
            cluster.output("scontrol", "update", f"jobid={job.id}", "starttime=now")
    return workflow.poll() is not None


def test_the_study_is_whole_after_all_that(story: Story) -> None:
    with (story.folder / RESULTS / "studies/study/runs.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["status"] for row in rows] == ["completed"] * 5
    runs = story.folder / RESULTS / "runs"
    assert len(list(runs.rglob("summary.json"))) == 5
    assert list(story.folder.glob("reports/**/report.pdf"))
    assert not list(runs.rglob("*.safetensors"))
    assert not list(story.folder.glob("**/ran"))


def test_a_job_gets_what_its_runs_ask_for_not_what_the_submitting_machine_has(
    story: Story,
) -> None:
    for job in story.jobs.values():
        assert int(job.shown["NumCPUs"]) == THREADS
        assert job.shown["TresPerNode"] == "gres:gpu:1"


def test_jobs_know_the_code_that_snakemake_planned(story: Story) -> None:
    """A node reads the code anew, and must not train by an edit that Snakemake knows nothing of."""
    (summary, *_) = (story.folder / RESULTS / "runs").rglob("summary.json")
    trained_by = json.loads(summary.read_text())["fingerprint"]
    assert [trained_by in str(planned) for planned in story.planned] == [True] * 3


def test_concurrent_jobs_use_different_gpus(story: Story) -> None:
    assert len(set(story.gpus)) == len(story.gpus) == 3
    assert all(re.fullmatch(r"gpu:1\(IDX:\d\)", gpu) for _, gpu in story.gpus)


def test_a_cancelled_job_is_tried_again_as_it_was(story: Story) -> None:
    """More memory or time would not have kept it from being cancelled."""
    first = story.jobs[story.cancelled]
    assert first.state == "CANCELLED"
    assert {memory(job) for job in story.jobs.values()} == {4000}
    assert minutes(first) in (5, 10)  # of one run, of two
    again = [job for job in story.jobs.values() if int(job.id) > int(first.id)]
    assert any((job.state, minutes(job)) == ("COMPLETED", minutes(first)) for job in again)


def test_what_slurm_writes_when_it_ends_a_job_at_a_limit_is_recognised(
    story: Story, tmp_path: Path
) -> None:
    words = ("--parsable", f"--output={tmp_path}/%j.log", "--mem=100", "--time=1")
    submitted = {
        limit: cluster.output("sbatch", *words, f"--wrap={sys.executable} -c '{script}'")
        for limit, script in GREEDY.items()
    }
    for limit, job in submitted.items():
        note_job(tmp_path / job, {"SLURM_JOB_ID": job})
        ended = ("FAILED", "OUT_OF_MEMORY", "TIMEOUT")
        shown = ("squeue", f"--jobs={job}", "--states=all", "--noheader", "--format=%T")
        while cluster.output(*shown) not in ended:
            time.sleep(1)
        found = {one: count_exceeded(tmp_path / job, tmp_path, one) for one in LIMITS}
        assert found == {one: int(one == limit) for one in LIMITS}


def test_where_there_is_no_accounting_squeue_is_asked_and_the_user_told(story: Story) -> None:
    said = (story.folder / "snakemake.txt").read_text()
    assert said.count("sacct does not answer, so squeue is asked how jobs end") == 1


def test_a_controller_that_was_away_is_asked_again_in_the_same_way(story: Story) -> None:
    said = (story.folder / "snakemake.txt").read_text()
    assert said.count("Slurm: squeue does not answer") == 1
    assert said.count("Slurm: squeue answers again") == 1
    assert "Falling back" not in said


def memory(job: Job) -> int:
    """Return the memory that a job asked for, MB."""
    number, unit = re.fullmatch(r"(\d+)([MG])", job.shown["MinMemoryNode"]).groups()  # type: ignore[union-attr]
    return int(number) * (1000 if unit == "G" else 1)


def minutes(job: Job) -> int:
    """Return the time that a job asked for."""
    return int(job.shown["TimeLimit"].split(":")[1])


def test_a_preempted_job_returns_to_the_queue_under_its_id(story: Story) -> None:
    job = story.jobs[story.preempted]
    assert (job.state, int(job.shown["Restarts"]) >= 1) == ("COMPLETED", True)


def test_a_preempted_run_ends_as_if_nothing_had_happened(story: Story, tmp_path: Path) -> None:
    folder = story.resumed.parent
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["resumed"]
    words = ["clipnoise", "train", "--spec", str(folder / "spec.yaml"), "--results", str(tmp_path)]
    words += ["--calibration", *map(str, (story.folder / RESULTS).glob("calibration/*.json"))]
    again = start([*words, "--cache", CACHE, "--threads", str(THREADS)], story.folder)
    assert again.wait(100) == 0
    assert results(tmp_path / "runs" / summary["folder"]) == results(folder)


def results(folder: Path) -> list[dict[str, str]]:
    """Return what a run measured, to the last bit, but for times."""
    with (folder / "metrics.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def test_the_job_of_a_lost_node_runs_again(story: Story) -> None:
    """Slurm queues it again; Snakemake submits it again if it had asked just before that."""
    lost = story.jobs[story.lost]
    submitted_again = len(story.jobs) > 4  # three groups of runs, and the cancelled one again
    assert int(lost.shown["Restarts"]) >= 1 or submitted_again


def test_logs_are_where_a_person_looks_for_them(story: Story) -> None:
    assert len(list((story.folder / RESULTS).glob("runs/**/run.log"))) == 5
    assert list(story.folder.glob(f"results/logs/slurm/group_train*/{story.cancelled}.log"))
    said = (story.folder / "snakemake.txt").read_text()
    assert "results/logs/slurm/group_train" in said


def test_seconds_of_work_take_no_place_in_the_queue(story: Story) -> None:
    assert {job.rule for job in story.jobs.values()} == {"rule_train_train"}
    done = (story.folder / "snakemake.txt").read_text()
    for rule in ("collect", "table", "report"):
        assert f"done   {rule}" in done
