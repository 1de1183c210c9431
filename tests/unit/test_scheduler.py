"""What jobs share: the slots of GPUs, names of studies, results that are left as they are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from clipnoise.cli import main
from clipnoise.cli.client import OWNER
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.run import scheduler
from clipnoise.run.job import is_finished
from clipnoise.run.spec import RunSpec, from_mapping, to_mapping
from clipnoise.studies.config import Config, Resources
from clipnoise.studies.plan import Plan

STUDY = """\
title: Small
defaults: {{training: {{expected_batch_size: 50, steps: 2, evaluations: 1}}}}
panels:
  panel:
    datasets: [digits]
    models: {models}
    seeds: {seeds}
    methods: [{{id: sgd, learning_rate: 0.1}}]
report: [{{kind: table, panels: panel}}]
"""


def run(seed: int, model: str = "logistic") -> RunSpec:
    return from_mapping(
        {
            "dataset": "digits",
            "model": model,
            "method": {"id": "sgd", "learning_rate": 0.1},
            "training": {"expected_batch_size": 50, "steps": 2, "evaluations": 1},
            "seed": seed,
        }
    )


def plan(folder: Path, *studies: str, **resources: object) -> Plan:
    return Plan.from_values(
        {"studies": list(studies), "results": str(folder / "results"), "resources": resources},
        folder,
    )


def write_study(folder: Path, name: str, seeds: list[int], models: str = "[logistic]") -> None:
    (folder / f"{name}.yaml").write_text(STUDY.format(seeds=seeds, models=models))


def test_where_slurm_has_shards_each_run_asks_for_its_share() -> None:
    resources = Resources(gpus=1, gpu_share={"logistic": 4}, shards_per_gpu=8)
    assert resources.slots("logistic") == scheduler.SLOTS
    assert (resources.gres("logistic"), resources.gres("cnn-5")) == ("shard:2", "shard:8")
    assert (Resources(gpus=2).gres("logistic"), Resources().gres("logistic")) == ("gpu:2", "")


def test_a_run_on_several_gpus_has_a_process_for_each() -> None:
    assert (Resources(gpus=4).together, Resources(gpus=4, threads=3).cpus) == (4, 12)
    assert (Resources(processes=2).together, Resources().together) == (2, 1)


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"gpus": 4, "processes": 2}, "processes: .* with gpus: 4 there are 4"),
        ({"gpus": 1, "gpu_share": {"logistc": 4}}, "gpu_share: .*'logistc'.*Did you mean"),
        ({"gpus": 0, "shards_per_gpu": 8}, "shards_per_gpu: .* need gpus: 1"),
        ({"gpus": 1, "gpu_share": {"logistic": 65}}, "less than or equal to 64"),
    ],
)
def test_what_would_be_ignored_is_refused(resources: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(Config, {"resources": resources}, file="config.yaml")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("a/trial", "b/trial"), "have the same name, trial"),
        (("my study",), "letters, digits"),
        (("v1.2",), "letters, digits"),
        (("audit",), "may not be audit or reaccounting"),
        (("mine", "mine/a"), "there is a folder of studies with this name"),
    ],
)
def test_names_that_the_workflow_cannot_carry_are_refused(
    tmp_path: Path, files: tuple[str, ...], message: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_study(tmp_path, name, [1])
    with pytest.raises(UserError, match=message):
        plan(tmp_path, *(str(tmp_path / f"{name}.yaml") for name in files))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two GPUs and no scheduler."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho GPU-one\necho GPU-two\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name in (scheduler.VISIBLE, "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "locks"


def test_jobs_take_different_gpus_and_give_them_back(machine: Path) -> None:
    with scheduler.hold_gpus(1, locks=machine) as first:
        assert os.environ[scheduler.VISIBLE] == first[0]
        del os.environ[scheduler.VISIBLE]  # as another process would find it
        with scheduler.hold_gpus(1, locks=machine) as second:
            assert sorted([*first, *second]) == ["GPU-one", "GPU-two"]
        os.environ[scheduler.VISIBLE] = first[0]
    assert scheduler.VISIBLE not in os.environ
    with scheduler.hold_gpus(5, locks=machine) as every:
        assert every == ["GPU-one", "GPU-two"]


def test_a_job_waits_until_a_gpu_is_free_also_when_its_holder_is_killed(machine: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from clipnoise.run.scheduler import hold_gpus\n"
        "with hold_gpus(2, locks=Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    words = [sys.executable, "-c", code, str(machine)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        threading.Timer(0.3, holder.kill).start()
        with scheduler.hold_gpus(1, locks=machine, poll=0.05):
            assert holder.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("name", [scheduler.VISIBLE, "SLURM_JOB_ID"])
def test_gpus_that_a_scheduler_has_dealt_out_are_left_as_they_are(
    machine: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "7")
    before = dict(os.environ)
    with scheduler.hold_gpus(1, locks=machine) as taken:
        assert taken == []
        assert dict(os.environ) == before


def test_a_gpu_is_shared_by_as_many_runs_as_its_slots_allow(machine: Path) -> None:
    thirds = Resources(gpus=1, gpu_share={"logistic": 3})
    share = thirds.slots("logistic")
    with ExitStack() as held:
        taken = [scheduler._take("GPU-one", share, machine, held) for _ in range(4)]
        assert taken == [True, True, True, False]
        with scheduler.hold_gpus(1, slots=share, locks=machine) as other:
            assert other == ["GPU-two"]
    with scheduler.hold_gpus(2, slots=thirds.slots("cnn-5"), locks=machine) as whole:
        assert whole == ["GPU-one", "GPU-two"]


MESSAGES = {  # of Slurm 22.05 without cgroups, of later versions with them, of a time limit
    "memory": [
        "slurmstepd-n1: error: StepId=7.batch exceeded memory limit (410566656 > 104857600), being"
        " killed",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have"
        " been OOM Killed.",
        "srun: error: n1: task 0: Out Of Memory",
    ],
    "time": ["slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-05 DUE TO TIME LIMIT ***"],
    "neither": [
        "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-05T12:00:00 ***",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "srun: error: n1: task 0: Terminated",
    ],
}


@pytest.mark.parametrize(
    ("lacked", "message"), [(limit, text) for limit, texts in MESSAGES.items() for text in texts]
)
def test_a_job_asks_for_more_only_of_what_an_earlier_one_lacked(
    lacked: str, message: str, tmp_path: Path
) -> None:
    write_study(tmp_path, "small", [1])
    planned = plan(tmp_path, str(tmp_path / "small.yaml"))
    (spec,) = planned.study("small").specs.values()
    folder = Path(planned.run_file(spec, ""))
    jobs = tmp_path / "jobs"
    for job in ("7", "8"):
        scheduler.note_job(folder, {"SLURM_JOB_ID": job})
        (jobs / "group_train").mkdir(parents=True, exist_ok=True)
        (jobs / "group_train" / f"{job}.log").write_text(f"srun: something\n{message}\n")
    (jobs / "group_train" / "9.log").write_text(message)  # a job of another run

    executor = SimpleNamespace(logdir=str(jobs))
    (folder / "run.log").unlink(missing_ok=True)  # as Snakemake does before each attempt
    for limit in scheduler.LIMITS:
        assert planned.factor(spec.hash, limit, 1, executor) == 1
        assert planned.factor(spec.hash, limit, 2, executor) == (3 if limit == lacked else 1)
        assert planned.factor(spec.hash, limit, 2, None) == 1  # on one machine


def train(
    tmp_path: Path, folder: str, spec: RunSpec, *words: str, owner: str | None = None
) -> Path:
    """Train a run, here or for an owner in a process of its own; return its folder."""
    results = tmp_path / folder
    command = ["train", "--spec", json.dumps(to_mapping(spec)), "--device", "cpu"]
    command += ["--cache", str(tmp_path / "data"), "--results", str(results), *words]
    if owner is None:
        assert main(command) == 0
    else:
        program = str(Path(sys.executable).parent / "clipnoise")
        subprocess.run([program, *command], check=True, env={**os.environ, OWNER: owner})
    (summary,) = results.rglob("summary.json")
    return summary.parent


def numbers(folder: Path) -> list[list[str]]:
    """Return losses and accuracies: speed and memory are another process's."""
    return [line.split(",")[:8] for line in (folder / "metrics.csv").read_text().splitlines()]


@pytest.mark.long
def test_a_warm_process_changes_no_result_and_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    assert main(["data", "prepare", "digits", "--cache", str(tmp_path / "data")]) == 0
    alone = train(tmp_path, "alone", run(1), owner="")
    with subprocess.Popen(["sleep", "600"]) as owner:
        warm = train(tmp_path, "warm", run(1), owner=str(owner.pid))
        again = train(tmp_path, "again", run(1), owner=str(owner.pid))
        owner.kill()
    assert numbers(alone) == numbers(warm) == numbers(again)

    before = (warm / "summary.json").stat().st_mtime_ns
    train(tmp_path, "warm", run(1), "--keep-finished")
    assert (warm / "summary.json").stat().st_mtime_ns == before
    train(tmp_path, "warm", run(1))
    assert (warm / "summary.json").stat().st_mtime_ns > before
    (warm / "summary.json").write_text("{")
    train(tmp_path, "warm", run(1), "--keep-finished")
    assert json.loads((warm / "summary.json").read_text())["status"] == "completed"


def test_a_run_is_not_finished_if_its_data_have_changed(tmp_path: Path) -> None:
    cache = tmp_path / "data"
    assert main(["data", "prepare", "digits", "--cache", str(cache)]) == 0
    train(tmp_path, "results", run(1))
    assert is_finished(tmp_path / "results", cache, run(1))
    manifest = cache / "digits" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["files"]["inputs.npy"]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(content))
    assert not is_finished(tmp_path / "results", cache, run(1))


@pytest.mark.parametrize(("state", "asked"), [("RUNNING", 3), ("CANCELLED", 0)])
def test_a_controller_that_refuses_at_first_is_asked_again_unless_the_job_has_ended(
    state: str, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([None, None, ""])
    waited: list[float] = []
    said = {"squeue": lambda: state, "scontrol": lambda: next(answers)}
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(scheduler, "output_of", lambda program, *_: said[program]())
    monkeypatch.setattr(scheduler.time, "sleep", waited.append)
    assert scheduler.requeue_job() == (asked > 0)
    assert len(list(answers)) == 3 - asked
    assert len(waited) == max(asked, 1)
