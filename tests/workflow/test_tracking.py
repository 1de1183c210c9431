"""MLflow agrees with the result files, once per run, whatever happens to the writers."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import record, rows, spec
from tracked import STUDY, counts, shown, train, wait_for_a_run

from clipnoise.tracking import (
    LiveRun,
    Membership,
    init_store,
    sync,
)
from clipnoise.tracking.store import open_store, stamp_path, tracking_uri


def test_a_second_initialisation_changes_nothing(results: Path) -> None:
    first = stamp_path(results).read_text()
    init_store(results, {STUDY: "What it asks."})
    assert stamp_path(results).read_text() == first


def test_sync_shows_what_the_files_say(results: Path) -> None:
    run = spec("dp-adambc", epsilon=2.0, seed=3)
    record(results, run)
    said = Membership(study=STUDY, studies=(STUDY, "other"), label="DP-AdamBC", panel="main")
    assert counts(sync(results, runs={run.hash: said})) == {"added": 1}
    (found,) = shown(results)
    assert found.info.run_name == "DP-AdamBC · line · ε=2 · seed 3"
    assert found.info.status == "FINISHED"
    wanted = {"study": STUDY, "study.other": "yes", "method": "dp-adambc", "dataset": "toy"}
    wanted |= {"budget": "ε=2", "seed": "3", "hash": run.hash, "claim": "guarantee"}
    assert wanted.items() <= found.data.tags.items()
    assert found.data.params["method.learning_rate"] == "0.1"
    last = rows(run)[-1]
    assert found.data.metrics["final/test_accuracy"] == last["test_accuracy"]
    assert found.data.metrics["privacy/epsilon"] == last["epsilon"]
    client, _ = open_store(results, {})
    history = client.get_metric_history(found.info.run_id, "test_loss")
    assert [(m.step, m.value) for m in history] == [(r["step"], r["test_loss"]) for r in rows(run)]
    assert {a.path for a in client.list_artifacts(found.info.run_id)} == {
        "spec.yaml",
        "summary.json",
        "metrics.csv",
        "run.log",
    }


def test_a_finished_run_is_logged_in_two_calls(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking.client import MlflowClient

    calls, log = [], MlflowClient.log_batch

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(sorted(name for name, value in kwargs.items() if value))
        return log(*args, **kwargs)

    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    record(results, spec())
    sync(results)
    assert calls == [["metrics", "params", "synchronous"], ["synchronous", "tags"]]


def test_sync_skips_what_is_shown_and_replaces_what_changed(results: Path) -> None:
    runs = [spec(seed=seed) for seed in range(3)]
    for run in runs:
        record(results, run)
    assert counts(sync(results)) == {"added": 3}
    assert counts(sync(results)) == {"unchanged": 3}
    record(results, runs[1], offset=0.05)
    assert counts(sync(results)) == {"replaced": 1, "unchanged": 2}
    (changed,) = [run for run in shown(results) if run.data.tags["hash"] == runs[1].hash]
    wanted = rows(runs[1], offset=0.05)[-1]["test_accuracy"]
    assert changed.data.metrics["final/test_accuracy"] == wanted


def test_a_diverged_run_stands_out_with_its_reason(results: Path) -> None:
    record(results, spec(), status="diverged")
    sync(results)
    (found,) = shown(results)
    assert found.info.status == "FAILED"
    assert found.data.tags["status"] == "diverged"
    assert "step 150" in found.data.tags["reason"]
    assert "test_accuracy" in found.data.metrics
    assert "final/test_accuracy" not in found.data.metrics  # or means over seeds would count it


def test_another_study_changes_tags_but_rewrites_no_run(results: Path) -> None:
    run = spec()
    record(results, run)
    sync(results, runs={run.hash: Membership(study=STUDY, studies=("a",))})
    (before,) = shown(results)
    report = sync(results, runs={run.hash: Membership(study=STUDY, studies=("b",), label="New")})
    (after,) = shown(results)
    assert counts(report) == {"retagged": 1}
    assert after.info.run_id == before.info.run_id
    assert after.info.run_name.startswith("New · ")
    assert "study.b" in after.data.tags
    assert "study.a" not in after.data.tags


def test_a_sync_that_knows_no_study_leaves_runs_where_they_are(results: Path) -> None:
    run = spec()
    record(results, run)
    sync(results, runs={run.hash: Membership(study=STUDY, label="A", panel="main")})
    stamp_path(results).unlink()
    assert counts(sync(results)) == {"unchanged": 1}


def test_a_run_that_changes_its_home_study_moves(results: Path) -> None:
    run = spec()
    record(results, run)
    sync(results, runs={run.hash: Membership(study=STUDY)})
    assert counts(sync(results, runs={run.hash: Membership(study="b")})) == {"replaced": 1}
    (found,) = shown(results)
    assert found.data.tags["study"] == "b"


def test_an_experiment_deleted_by_hand_comes_back(results: Path) -> None:
    record(results, run := spec())
    said = {run.hash: Membership(study=STUDY)}
    sync(results, runs=said)
    client, ids = open_store(results, {STUDY: ""})
    client.delete_experiment(ids[STUDY])
    sync(results, runs=said)
    assert len(shown(results)) == 1


@pytest.mark.parametrize("mode", ["live", "after"])
def test_a_job_leaves_nothing_for_sync(results: Path, mode: str) -> None:
    run = spec()
    assert train(results, run, mode=mode, patience=60.0)
    assert counts(sync(results)) == {"unchanged": 1}
    (found,) = shown(results)
    client, _ = open_store(results, {})
    history = client.get_metric_history(found.info.run_id, "test_accuracy")
    assert [m.value for m in history] == [row["test_accuracy"] for row in rows(run)]


@pytest.mark.parametrize("mode", ["live", "after"])
def test_running_a_spec_again_updates_its_run(results: Path, mode: str) -> None:
    run = spec()
    assert train(results, run, mode=mode, patience=60.0)
    assert train(results, run, offset=0.05, mode=mode, patience=60.0)
    (found,) = shown(results)
    wanted = rows(run, offset=0.05)[-1]["test_accuracy"]
    assert found.data.metrics["final/test_accuracy"] == wanted


def test_metrics_appear_while_the_run_lasts(results: Path) -> None:
    run = spec()
    table = rows(run)
    with LiveRun(results, run, mode="live", patience=60.0) as live:
        live.log(table[0])
        deadline = time.monotonic() + 60
        while not (found := shown(results)) or "test_loss" not in found[0].data.metrics:
            assert time.monotonic() < deadline, "no metric appeared"
            time.sleep(0.2)
        assert found[0].info.status == "RUNNING"
        for row in table[1:]:
            live.log(row)
        record(results, run)
    assert counts(sync(results)) == {"unchanged": 1}


def test_a_strict_run_shows_no_time_of_an_evaluation(results: Path) -> None:
    """How far they are apart would be the speed, which metrics.csv withholds."""
    run = spec()
    assert run.privacy is not None
    strict = replace(run, privacy=replace(run.privacy, release="strict", secure_noise=True))
    with LiveRun(results, strict, mode="live", patience=60.0) as live:
        for row in rows(strict):
            live.log(row)
            time.sleep(0.01)
        record(results, strict)
    (found,) = shown(results)
    client, _ = open_store(results, {})
    history = client.get_metric_history(found.info.run_id, "test_loss")
    assert len(history) == len(rows(strict))
    assert {metric.timestamp for metric in history} == {found.info.start_time}


def test_an_interrupted_job_is_shown_as_killed(results: Path) -> None:
    def interrupted() -> None:
        with LiveRun(results, spec(), mode="live", patience=60.0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (found,) = shown(results)
    assert found.info.status == "KILLED"


def test_sync_leaves_a_run_to_the_job_that_is_writing_it(results: Path) -> None:
    run = spec()
    record(results, run)
    with LiveRun(results, run, mode="live", patience=60.0):
        wait_for_a_run(results)
        assert counts(sync(results)) == {"busy": 1}
    assert counts(sync(results)) == {"unchanged": 1}


def test_two_results_folders_of_one_study_stand_side_by_side_on_one_server(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = results / "other"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(results))
    assert init_store(other, {}).available
    for folder, offset in ((results, 0.0), (other, 0.25)):
        record(folder, spec(), offset=offset)
        assert counts(sync(folder)) == {"added": 1}
    for folder in (results, other):
        assert counts(sync(folder)) == {"unchanged": 1}
    assert len(shown(results)) == len({run.data.tags["results"] for run in shown(results)}) == 2
    assert train(other, spec(), offset=0.5, mode="live", patience=60.0)
    assert len(shown(results)) == 2
    assert counts(sync(results)) == {"unchanged": 1}


def test_a_results_folder_keeps_its_runs_when_it_is_moved(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(results))
    here, moved = results / "here", results / "moved"
    assert init_store(here, {}).available
    record(here, spec())
    assert counts(sync(here)) == {"added": 1}
    here.rename(moved)
    assert counts(sync(moved)) == {"unchanged": 1}


def test_runs_that_earlier_versions_wrote_are_taken_over(results: Path) -> None:
    record(results, spec())
    sync(results)
    client, _ = open_store(results, {})
    (run,) = shown(results)
    client.delete_tag(run.info.run_id, "results")
    assert counts(sync(results)) == {"retagged": 1}
    assert shown(results)[0].data.tags["results"].endswith(str(results))
