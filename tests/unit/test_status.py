"""`clipnoise status` reads the state of runs from their files."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from clipnoise.cli import main
from clipnoise.cli.studies import STATES, span
from clipnoise.data.cache import read_manifest, write_arrays
from clipnoise.files import locked, write_json
from clipnoise.run.checkpoint import Checkpoint, InterruptedRunError, StopRequest
from clipnoise.run.job import describe
from clipnoise.run.outcome import Metrics
from clipnoise.run.progress import LOCK, PROGRESS
from clipnoise.run.results import METRICS, SPEC, run_folder
from clipnoise.run.scheduler import describe_start
from clipnoise.run.spec import RunSpec, to_mapping
from clipnoise.studies.status import (
    SILENT_SECONDS,
    StudyStatus,
    failed_steps,
    outlook,
    study_status,
)
from clipnoise.studies.study import Study, load_study

STUDY: dict[str, Any] = {
    "title": "Status",
    "defaults": {"training": {"expected_batch_size": 50, "steps": 40, "evaluations": 4}},
    "panels": {
        "main": {
            "datasets": ["digits"],
            "models": ["logistic"],
            "seeds": list(range(9)),
            "methods": [{"id": "sgd", "learning_rate": 0.5}],
        }
    },
    "report": [],
}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    path = tmp_path / "workflow" / "studies" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(STUDY))
    folders = {name: str(tmp_path / name) for name in ("results", "cache", "reports")}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"studies": ["mine"], **folders}))
    return load_study(path)


def line(text: str) -> str:
    """Return a line of a log, as the format of `clipnoise train` makes it."""
    return f"2026-01-05 12:00:00,123 {text}\n"


def progress(step: int, seconds: float) -> str:
    numbers = dict.fromkeys(Metrics.__dataclass_fields__, 0.5)
    values = {**numbers, "step": step, "seconds": seconds, "epsilon": None}
    return line(describe(Metrics(**values), 40))  # type: ignore[arg-type]


def log(results: Path, spec: RunSpec, text: str, *, age: float = 0.0) -> None:
    path = run_folder(results, spec) / "run.log"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    moment = time.time() - age
    os.utime(path, (moment, moment))


def end(results: Path, spec: RunSpec, status: str, seconds: float) -> Path:
    path = run_folder(results, spec) / "summary.json"
    reason = None if status == "completed" else "the loss is not finite after step 10"
    values = {"hash": spec.hash, "status": status, "reason": reason, "seconds": seconds}
    values |= {"data": {}, "digest": ""}
    path.parent.mkdir(parents=True, exist_ok=True)
    for name in (METRICS, SPEC):
        (path.parent / name).touch()
    write_json(path, {**values, "final": {}, "privacy": {}, "spec": to_mapping(spec)})
    return path


def stop_message(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the log of a run that was interrupted after step 20."""
    monkeypatch.setattr("clipnoise.run.checkpoint.write", lambda *words: None)
    stopping = Checkpoint(folder / "x", {}, 1e9, StopRequest(signal.SIGTERM.name))
    with pytest.raises(InterruptedRunError) as stopped:
        stopping.save(20, {}, {})
    return str(stopped.value)


@pytest.fixture
def states(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyStatus:
    """One run in each state."""
    results, specs = tmp_path / "results", [run.spec for run in study.runs]
    end(results, specs[0], "completed", 100.0)
    end(results, specs[1], "diverged", 50.0)
    damaged = end(results, specs[2], "completed", 1.0)
    damaged.write_text(damaged.read_text()[:30])
    trace = "Traceback (most recent call last):\n  File ...\nOSError: [Errno 28] No space left\n"
    begun = line("digits on cpu") + progress(0, 0.0) + progress(10, 30.0)
    log(results, specs[3], trace + line(describe_start({})) + begun)
    log(results, specs[4], begun + line("checkpoint after step 15"), age=SILENT_SECONDS + 60)
    log(results, specs[5], begun + line(stop_message(tmp_path, monkeypatch)))
    log(results, specs[6], begun + trace)
    outdated = end(results, specs[7], "completed", 90.0)
    write_json(outdated, {**json.loads(outdated.read_text()), "fingerprint": "0" * 12})
    return study_status(study, results)


def test_every_run_is_in_one_state_with_its_reason(states: StudyStatus) -> None:
    found = [(run.state, run.reason) for run in states.runs]
    assert found[2][1].count("damaged result file") == 1
    found[2] = (found[2][0], "")
    assert found == [
        ("done", ""),
        ("diverged", "the loss is not finite after step 10"),
        ("damaged", ""),
        ("running", "step 10/40"),
        ("silent", "step 15/40"),
        ("stopped", "stopped by SIGTERM, checkpoint after step 20"),
        ("failed", "OSError: [Errno 28] No space left"),
        ("outdated", "its code has changed since"),
        ("not started", ""),
    ]


def test_a_run_whose_files_are_not_complete_is_damaged(study: Study, tmp_path: Path) -> None:
    spec = study.runs[0].spec
    end(tmp_path, spec, "completed", 1.0).with_name(METRICS).unlink()
    found = study_status(study, tmp_path).runs[0]
    assert found.state == "damaged"
    assert "lacks metrics.csv. Delete it, and the run is trained again" in found.reason


def test_a_run_is_outdated_where_its_data_have_been_prepared_from_others(
    study: Study, tmp_path: Path
) -> None:
    spec = study.runs[0].spec
    summary = end(tmp_path, spec, "completed", 1.0)
    folder = tmp_path / "data" / spec.dataset.prepared
    facts = {"source": "made up", "licence": "none"}
    write_arrays(folder, {"train_inputs": np.zeros(3)}, facts)
    recorded = read_manifest(folder, "digits").digests()
    write_json(summary, {**json.loads(summary.read_text()), "data": recorded})
    assert study_status(study, tmp_path, tmp_path / "data").runs[0].state == "done"
    write_arrays(folder, {"train_inputs": np.ones(3)}, facts)
    found = study_status(study, tmp_path, tmp_path / "data").runs[0]
    assert (found.state, found.reason) == ("outdated", "its data have changed since")
    assert study_status(study, tmp_path).runs[0].state == "done"


def test_a_failure_is_told_though_an_older_result_was_restored(
    study: Study, tmp_path: Path
) -> None:
    spec = study.runs[0].spec
    summary = end(tmp_path, spec, "completed", 1.0)
    write_json(summary, {**json.loads(summary.read_text()), "fingerprint": "0" * 12})
    trace = "Traceback (most recent call last):\n  File ...\nValueError: oops\n"
    summary.with_name("run.log").write_text(line(describe_start({})) + trace)
    found = study_status(study, tmp_path).runs[0]
    assert (found.state, found.reason) == ("failed", "ValueError: oops")


def test_a_run_whose_process_was_killed_is_not_called_running(study: Study, tmp_path: Path) -> None:
    spec = study.runs[0].spec
    log(tmp_path, spec, line("digits on cpu") + progress(0, 0.0) + progress(10, 30.0))
    folder = run_folder(tmp_path, spec)
    (folder / PROGRESS).touch()
    assert study_status(study, tmp_path).runs[0].state == "silent"
    with locked(folder / LOCK):
        assert study_status(study, tmp_path).runs[0].state == "running"


def test_the_time_left_follows_from_runs_of_the_same_kind(states: StudyStatus) -> None:
    running = states.runs[3]
    assert running.seconds == pytest.approx(120)  # 30 s for a quarter of the steps
    assert running.left == pytest.approx(90, abs=5)
    typical = (100 + 50 + 120 + 90) / 4
    assert states.work_left == pytest.approx(6 * typical + 90, abs=5)
    assert states.time_left == states.work_left  # one runs


def test_a_fault_that_training_outlives_is_no_failure(study: Study, tmp_path: Path) -> None:
    trace = "Traceback (most recent call last):\n  File ...\nConnectionError: gone\n"
    log(tmp_path, study.runs[0].spec, line("begun") + trace + progress(10, 30.0))
    log(tmp_path, study.runs[1].spec, "clipnoise train: digits: not prepared.\nRun prepare.\n")
    log(tmp_path, study.runs[2].spec, "")
    first, second, third = study_status(study, tmp_path).runs[:3]
    assert (first.state, first.reason) == ("running", "step 10/40")
    assert (second.state, second.reason) == ("failed", "clipnoise train: digits: not prepared.")
    assert (third.state, third.reason) == ("running", "before its first step")


def test_a_command_that_never_started_is_a_failure(study: Study, tmp_path: Path) -> None:
    said = "/usr/bin/bash: line 1: exec: clipnoise: not found"
    log(tmp_path, study.runs[0].spec, f"{said}\n")
    (failed,) = study_status(study, tmp_path).of("failed")
    assert failed.reason == said


def test_a_result_that_was_set_aside_is_not_on_its_way(study: Study, tmp_path: Path) -> None:
    for run, said in zip(
        study.runs, ("completed", "diverged: the loss is not finite"), strict=False
    ):
        log(tmp_path, run.spec, progress(10, 30.0) + line(said))
    first, second = study_status(study, tmp_path).runs[:2]
    assert {first.state, second.state} == {"not started"}
    assert first.reason == second.reason == "its result has been removed"


def test_a_clock_that_is_behind_makes_no_run_silent(study: Study, tmp_path: Path) -> None:
    spec = study.runs[0].spec
    log(tmp_path, spec, progress(10, 30.0), age=-3600)
    (run, *_) = study_status(study, tmp_path).runs
    assert (run.state, run.age) == ("running", 0.0)


def test_a_step_that_runs_wait_for_is_named_when_it_failed(study: Study, tmp_path: Path) -> None:
    results, cache = tmp_path / "results", tmp_path / "cache"
    of_mnist = {**STUDY["panels"]["main"], "datasets": ["mnist"]}
    other = study.path.with_name("of-mnist.yaml")
    other.write_text(yaml.safe_dump({**STUDY, "panels": {"main": of_mnist}}))
    for name in ("mnist", "digits", "adult"):  # the last is of a study that is not asked for
        path = results / "logs" / "prepare" / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("clipnoise data: no such file.\n")
    write_json(cache / "digits" / "manifest.json", {})  # a later try went well
    (found,) = failed_steps(results, cache, [study, load_study(other)]).items()
    assert found[0] == ("prepare", "mnist")
    assert found[1].startswith("clipnoise data: no such file. (")


def test_the_command_shows_a_line_per_study_and_the_reasons(
    states: StudyStatus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--config", str(tmp_path / "config.yaml")]) == 0
    head, row, *rest = capsys.readouterr().out.splitlines()
    names = ("study", "runs", *STATES, "time left")
    assert re.split(r"  +", head) == list(names)
    assert row.split()[:11] == ["mine", "9", *["1"] * 9]
    assert row.endswith("10 min with 1 at a time")
    said = "\n".join(rest)
    assert "  digits, logistic, sgd, non-private, seed " in said
    assert "step 10/40" in said
    assert "OSError: [Errno 28] No space left" in said
    assert str(tmp_path / "results") in said


def test_as_json_every_run_is_there_and_a_folder_that_cannot_be_written_will_do(
    states: StudyStatus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted((tmp_path / "results").rglob("*"))
    (tmp_path / "results").chmod(0o555)
    words = ["status", "mine", "--json", "--config", str(tmp_path / "config.yaml")]
    assert main(words) == 0
    (study,) = json.loads(capsys.readouterr().out)["studies"]
    assert study["counts"] == dict.fromkeys(study["counts"], 1)
    assert [run["hash"] for run in study["each"]] == [run.spec.hash for run in states.runs]
    (tmp_path / "results").chmod(0o755)
    assert sorted((tmp_path / "results").rglob("*")) == before


def test_what_snakemake_will_train_again_is_not_called_done(
    states: StudyStatus, study: Study, tmp_path: Path
) -> None:
    said = outlook(study, tmp_path / "results")
    assert said.startswith(
        "7 of 9 runs to train (1 of them again, because code or data have changed)"
    )


def hostile(folder: Path, values: dict[str, Any], kind: str) -> None:
    """Put something in the place of a run's summary that no run has written."""
    path = folder / "summary.json"
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "endless":
            path.symlink_to("/dev/zero")
        case "deep":
            path.write_text("[" * 100_000)
        case "list":
            path.write_text("[]")
        case _:
            write_json(path, {**values, kind: [{}]})


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "kind", ["pipe", "endless", "deep", "list", "status", "seconds", "spec", "privacy", "hash"]
)
def test_a_hostile_summary_is_damaged_and_the_other_runs_are_shown(
    kind: str, states: StudyStatus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_folder(tmp_path / "results", states.runs[0].spec)
    hostile(path, json.loads((path / "summary.json").read_text()), kind)
    assert main(["status", "--config", str(tmp_path / "config.yaml")]) == 0
    said = capsys.readouterr().out
    assert f"{path / 'summary.json'}: damaged result file" in said
    assert said.splitlines()[1].split()[:4] == ["mine", "9", "0", "1"]


def test_a_log_that_never_ends_is_not_read(states: StudyStatus, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "results", states.runs[8].spec)
    folder.mkdir(parents=True)
    os.mkfifo(folder / "run.log")
    assert main(["status", "--config", str(tmp_path / "config.yaml")]) == 0


def test_ten_thousand_runs_cost_few_looks_at_the_disk(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most two files of a run are opened or looked at: that is what keeps it fast."""
    looks: list[str] = []
    for name in ("open", "stat"):
        real = getattr(Path, name)

        def look(self: Path, *words: Any, _real: Any = real, **options: Any) -> Any:
            if "runs" in self.parts:
                looks.append(self.name)
            return _real(self, *words, **options)

        monkeypatch.setattr(Path, name, look)
    study_status(study, tmp_path)
    assert len(looks) <= 2 * len(study.runs)


def test_a_study_that_is_not_there_is_named(
    states: StudyStatus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "mime", "--config", str(tmp_path / "config.yaml")]) == 2
    assert "Did you mean 'mine'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(8.2, "8 s"), (720, "12 min"), (11_100, "3 h 5 min"), (187_200, "2 d 4 h")],
)
def test_spans_of_time_are_short(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_folders_are_relative_to_the_configuration(
    states: StudyStatus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = yaml.safe_load((tmp_path / "config.yaml").read_text())
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**values, "results": "results"}))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["status", "--config", "../config.yaml"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:11] == ["mine", "9", *["1"] * 9]


def test_a_configuration_that_is_no_file_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--config", str(tmp_path)]) == 2
    (tmp_path / "latin").write_bytes(b"title: caf\xe9")
    assert main(["status", "--config", str(tmp_path / "latin")]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "cannot be read: Is a directory" in first
    assert "not valid YAML" in second
