"""Job groups: several runs in one job, some at a time on one GPU, each in its own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from clipnoise.cli import main
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.run import scheduler
from clipnoise.run.job import is_finished
from clipnoise.run.scheduler import Forks
from clipnoise.run.spec import RunSpec, from_mapping, to_mapping
from clipnoise.studies.config import MOST_RUNS, Config, Resources
from clipnoise.studies.groups import group_runs
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
report: [{{kind: table, panel: panel}}]
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


def test_every_run_is_in_one_group_and_every_group_but_the_last_is_full() -> None:
    runs = [run(seed, model) for seed in range(5) for model in ("logistic", "cnn-small")]
    dealt = list(group_runs([*runs, *runs], Resources(runs_per_job=2)))
    assert sorted(spec.hash for group in dealt for spec in group.runs) == sorted(
        spec.hash for spec in runs
    )
    assert [len(group.runs) for group in dealt] == [2, 2, 2, 2, 2]
    assert [group.key for group in dealt] == [
        group.key for group in group_runs(runs, Resources(runs_per_job=2))
    ]


def test_runs_that_ask_for_other_shares_of_a_gpu_are_in_other_groups() -> None:
    resources = Resources(gpus=1, gpu_share={"logistic": 4}, shards_per_gpu=8, runs_per_job=3)
    runs = [run(seed, model) for seed in range(3) for model in ("logistic", "cnn-small")]
    first, second = group_runs(runs, resources)
    assert {spec.model.id for spec in first.runs} == {"logistic"}
    assert {spec.model.id for spec in second.runs} == {"cnn-small"}


def test_runs_that_share_a_gpu_are_one_job_of_several_at_a_time() -> None:
    resources = Resources(gpus=1, gpu_share={"logistic": 4}, runs_per_job=2)
    runs = [run(seed, model) for seed in range(4) for model in ("logistic", "cnn-small")]
    shared, *alone = group_runs(runs, resources)
    assert (len(shared.runs), shared.parallel, shared.rounds) == (4, 4, 1)
    assert [(group.parallel, group.rounds) for group in alone] == [(1, 2), (1, 2)]


def test_where_slurm_has_shards_each_run_asks_for_its_share() -> None:
    resources = Resources(gpus=1, gpu_share={"logistic": 4}, shards_per_gpu=8)
    assert {len(group.runs) for group in group_runs(map(run, range(3)), resources)} == {1}
    assert (resources.gres("logistic"), resources.gres("cnn-5")) == ("shard:2", "shard:8")
    assert (Resources(gpus=2).gres("logistic"), Resources().gres("logistic")) == ("gpu:2", "")


def test_sharing_a_gpu_without_one_is_refused() -> None:
    with pytest.raises(UserError, match="gpu_share: runs that share a GPU need gpus: 1"):
        parse(Config, {"resources": {"gpu_share": {"logistic": 2}}}, file="config.yaml")


def test_the_jobs_of_a_study_with_many_runs_hold_several() -> None:
    resources = Resources(jobs_per_study=3)
    assert [len(one.runs) for one in group_runs(map(run, range(3)), resources)] == [1, 1, 1]
    assert [len(one.runs) for one in group_runs(map(run, range(7)), resources)] == [3, 3, 1]
    assert [resources.runs_in_a_job(runs) for runs in (1, 6, 7, 10**6)] == [1, 2, 3, MOST_RUNS]
    assert Resources(runs_per_job=5, jobs_per_study=3).runs_in_a_job(7) == 5


def test_a_run_with_its_own_job_is_requested_by_its_summary(tmp_path: Path) -> None:
    write_study(tmp_path, "study", [1, 2, 3])
    alone = plan(tmp_path, "study", jobs_per_study=3)
    runs = alone.study("study").runs
    assert alone.results("study") == [alone.run_file(one.spec, "summary.json") for one in runs]
    dealt = plan(tmp_path, "study", jobs_per_study=2)
    keys = [Path(file).stem for file in dealt.results("study")]
    assert [len(dealt.group(key).runs) for key in keys] == [2, 1]


def test_studies_that_share_runs_share_their_groups(tmp_path: Path) -> None:
    write_study(tmp_path, "first", [1, 2])
    write_study(tmp_path, "second", [1, 2, 3])
    both = plan(tmp_path, "first", "second", runs_per_job=8)
    (shared,) = both.results("first")
    assert both.results("second")[0] == shared
    assert len(both.results("second")) == 2


def test_a_job_that_knows_only_the_key_finds_its_group(tmp_path: Path) -> None:
    write_study(tmp_path, "asked", [1, 2, 3])
    write_study(tmp_path, "configured", [2])
    (file, *_) = plan(tmp_path, "configured", runs_per_job=2).results("asked")
    found = plan(tmp_path, "configured", runs_per_job=2).group(Path(file).stem)
    assert len(found.runs) <= 2


def test_a_result_lost_after_its_group_was_done_is_asked_for_by_itself(tmp_path: Path) -> None:
    write_study(tmp_path, "study", [1, 2])
    planned = plan(tmp_path, "study", runs_per_job=2)
    (group,) = planned.results("study")
    first, second = planned.group(Path(group).stem).runs
    Path(group).parent.mkdir(parents=True)
    Path(group).touch()
    kept = Path(planned.run_file(first, "summary.json"))
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert planned.results("study") == [group, planned.run_file(second, "summary.json")]


def test_a_queued_group_is_still_known_after_its_study_was_edited(tmp_path: Path) -> None:
    write_study(tmp_path, "study", [1, 2, 3])
    planned = plan(tmp_path, "study", runs_per_job=2)
    planned.note_groups()
    key = Path(planned.results("study")[0]).stem
    write_study(tmp_path, "study", [0, 1, 2, 3])
    edited = plan(tmp_path, "study", runs_per_job=2)
    assert edited.group(key) == planned.group(key)
    edited.note_groups()
    write_study(tmp_path, "study", [2, 3])
    with pytest.raises(UserError, match="no study plans it"):
        plan(tmp_path, "study", runs_per_job=2).group(key)


def test_a_result_that_a_larger_group_has_made_is_checked_by_a_group(tmp_path: Path) -> None:
    write_study(tmp_path, "study", [1])
    planned = plan(tmp_path, "study")
    (summary,) = planned.results("study")
    Path(summary).parent.mkdir(parents=True)
    Path(summary).touch()
    (group,) = planned.results("study")
    assert planned.group(Path(group).stem).runs == (planned.study("study").runs[0].spec,)
    (Path(summary).parent / "benchmark.jsonl").touch()
    assert planned.results("study") == [summary], "a job of its own has made it"


def test_a_group_requests_no_more_resources_than_its_runs_need() -> None:
    resources = Resources(gpus=1, gpu_share={"logistic": 8}, threads=2)
    (group,) = group_runs(map(run, range(3)), resources)
    assert (len(group.runs), group.parallel) == (3, 3)


def test_the_specs_of_a_group_fit_into_one_argument_of_a_command_line() -> None:
    columns = [f"a-column-with-a-long-name-{number}" for number in range(400)]
    own = {"id": "own", "inputs": columns, "shape": [400], "training_file": 300}
    values = to_mapping(run(0))
    runs = [from_mapping({**values, "dataset": own, "seed": seed}) for seed in range(64)]
    dealt = list(group_runs(runs, Resources(runs_per_job=64)))
    assert sum(len(group.runs) for group in dealt) == 64
    for group in dealt:
        assert len(json.dumps([to_mapping(one) for one in group.runs])) < 128 * 1024


@pytest.mark.parametrize(
    ("resources", "message"),
    [
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


def test_what_takes_long_to_load_is_loaded_once_for_all_runs(tmp_path: Path) -> None:
    sys.modules.pop("colorsys", None)
    loaded = {tmp_path / f"{n}": lambda: int("colorsys" not in sys.modules) for n in range(2)}
    assert set(Forks(1).run(loaded).values()) == {1}
    assert set(Forks(1).run(loaded, ["colorsys"]).values()) == {0}


def test_a_task_that_fails_stops_no_other_and_keeps_its_own_log(tmp_path: Path) -> None:
    def fail() -> int:
        raise RuntimeError("broken")

    def killed() -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def said() -> int:
        print("well")
        return 0

    tasks = {tmp_path / name: task for name, task in [("a", fail), ("b", killed), ("c", said)]}
    assert list(Forks(2).run(tasks).values()).count(0) == 1
    assert "RuntimeError: broken" in (tmp_path / "a").read_text()
    assert (tmp_path / "c").read_text() == "well\n"


def test_no_more_tasks_run_at_once_than_requested(tmp_path: Path) -> None:
    def counted() -> int:
        mark = tmp_path / f"running.{os.getpid()}"
        mark.touch()
        time.sleep(0.1)
        count = len(list(tmp_path.glob("running.*")))
        mark.unlink()
        return count

    codes = Forks(2).run({tmp_path / f"{number}": counted for number in range(4)})
    assert max(codes.values()) == 2


def test_a_signal_reaches_every_task_and_starts_no_other(tmp_path: Path) -> None:
    def patient() -> int:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
        (tmp_path / f"ready.{os.getpid()}").touch()
        time.sleep(60)
        return 0

    def stop() -> None:
        while len(list(tmp_path.glob("ready.*"))) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    forks = Forks(2)
    threading.Thread(target=stop).start()
    codes = forks.run({tmp_path / f"{number}": patient for number in range(3)})
    assert forks.stopped
    assert list(codes.values()) == [75, 75]


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


def test_a_group_gives_the_results_of_single_runs_and_repeats_only_what_is_lost(
    tmp_path: Path,
) -> None:
    """In a process of its own, which has not used torch's threads before it forks."""
    assert main(["data", "prepare", "digits", "--cache", str(tmp_path / "data")]) == 0
    specs = [to_mapping(run(seed)) for seed in (1, 2)]
    one, many = tmp_path / "one", tmp_path / "many"
    shared = ["--cache", str(tmp_path / "data"), "--device", "cpu"]
    program = str(Path(sys.executable).parent / "clipnoise")
    command = [program, "train-group", "--specs", json.dumps(specs)]
    command += ["--results", str(many), "--out", str(many / "group.json"), *shared]
    alone = ["--spec", json.dumps(specs[0]), "--results", str(one), *shared]
    subprocess.run(command, check=True)
    subprocess.run([program, "train", *alone], check=True)
    results = sorted(many.rglob("metrics.csv"))
    assert len(results) == 2
    (single,) = one.rglob("metrics.csv")
    (same,) = [path for path in results if path.parent.name == single.parent.name]
    assert values(same) == values(single)
    (other,) = set(results) - {same}
    (other.parent / "summary.json").write_text("{")
    before = same.stat().st_mtime_ns
    subprocess.run(command, check=True)
    assert same.stat().st_mtime_ns == before
    assert json.loads((other.parent / "summary.json").read_text())["status"] == "completed"
    cache = tmp_path / "data"
    assert is_finished(many, cache, run(1))
    manifest = cache / "digits" / "manifest.json"
    said = json.loads(manifest.read_text())
    said["files"]["inputs.npy"]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(said))
    assert not is_finished(many, cache, run(1)), "it was made from other data"


def values(path: Path) -> list[list[str]]:
    """Return losses and accuracies: speed and memory are another process's."""
    return [line.split(",")[:8] for line in path.read_text().splitlines()]


def test_a_run_names_what_else_it_loads() -> None:
    noise = {"kind": "banded", "bands": 2}
    privacy = {"epsilon": 8, "sampler": "cyclic-poisson", "noise": noise}
    correlated = from_mapping(
        to_mapping(run(1))
        | {"method": {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 1}, "privacy": privacy}
    )
    assert run(1).libraries == ()
    assert correlated.libraries == ("clipnoise.privacy.noise.strategies",)
    assert set(correlated.libraries) <= set(loaded_by(correlated))


def loaded_by(spec: RunSpec) -> list[str]:
    """Return the modules that are loaded once the noise of a run is there."""
    code = (
        "import sys, torch\n"
        "from clipnoise.run.spec import from_mapping\n"
        "from clipnoise.run.setup import noise_source\n"
        f"noise_source(from_mapping({to_mapping(spec)!r}), torch.zeros(2), 'cpu')\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()
