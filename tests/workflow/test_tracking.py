"""MLflow agrees with the files, once per run, while runs train and after that."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import STARTED, record, rows, spec
from tracked import STUDY, counts, curve, expected_curve, finish, note_some, shown, training

from clipnoise.run.spec import RunSpec
from clipnoise.tracking import MeansTable, Membership, note, read_notes, sync
from clipnoise.tracking.store import ARTEFACTS, connect, notes_path, tracking_uri
from clipnoise.tracking.view import flatten


def plan(results: Path, run: RunSpec, **fields: Any) -> None:
    """Note which studies plan a run."""
    note(results, {run.hash: Membership(**fields)})


def test_what_a_folder_notes_adds_up(results: Path) -> None:
    first, second = spec(), spec(seed=1)
    before = notes_path(results).read_text()
    note(results, {}, {STUDY: "What it asks."})
    assert notes_path(results).read_text() == before
    plan(results, first, study=STUDY)
    plan(results, second, study="other", studies=("other",), label="B", panel="main")
    note(results, descriptions={"other": "Another."})
    found = read_notes(results)
    assert found.runs[first.hash] == Membership(study=STUDY)
    assert found.runs[second.hash].panel == "main"
    assert found.descriptions == {STUDY: "What it asks.", "other": "Another."}


def test_those_who_note_at_once_lose_nothing(results: Path) -> None:
    names = [f"run {i}" for i in range(60)]
    with ThreadPoolExecutor(6) as several:
        list(several.map(lambda name: note(results, {name: Membership()}), names))
    assert {*names} <= read_notes(results).runs.keys()
    assert not list(results.glob("*.lock"))


def test_sync_shows_what_the_files_say(results: Path) -> None:
    run = spec("dp-adambc", epsilon=2.0, seed=3)
    record(results, run)
    plan(results, run, study=STUDY, studies=(STUDY, "other"), label="DP-AdamBC", panel="main")
    assert counts(sync(results)) == {"added": 1}
    (found,) = shown(results)
    assert found.info.run_name == "DP-AdamBC · toy · line · ε=2 · seed 3"
    assert found.info.status == "FINISHED"
    wanted = {"study": STUDY, "study.other": "yes", "method": "dp-adambc", "dataset": "toy"}
    wanted |= {"budget": "ε=2", "seed": "3", "hash": run.hash, "claim": "guarantee"}
    wanted |= {"adjacency": "add-remove", "setting": "DP-AdamBC · toy · line · ε=2"}
    assert wanted.items() <= found.data.tags.items()
    assert found.data.params["method.learning_rate"] == "0.1"
    last = rows(run)[-1]
    assert found.data.metrics["final/test_accuracy"] == last["test_accuracy"]
    assert found.data.metrics["privacy/epsilon"] == last["epsilon"]
    assert curve(results, found, "test_loss") == expected_curve(run, "test_loss")
    assert {a.path for a in connect(results).list_artifacts(found.info.run_id)} == {
        "spec.yaml",
        "summary.json",
        "metrics.csv",
        "run.log",
    }


def test_a_tuning_run_is_called_by_what_it_tries(results: Path) -> None:
    run = spec("dp-adambc")
    rates = (0.1, 0.3)
    runs = [replace(run, method=replace(run.method, learning_rate=rate)) for rate in rates]
    for run in runs:
        record(results, run)
        plan(results, run, study=STUDY, panel="tuning")
    sync(results)
    names = sorted(run.info.run_name for run in shown(results))
    assert [name.split(" · ")[:3] for name in names] == [["dp-adambc", "toy", "line"]] * 2
    assert [name.split(" · ")[4].split(",")[0] for name in names] == [
        "learning_rate 0.1",
        "learning_rate 0.3",
    ]
    assert all(name.endswith("· seed 0") and "beta" not in name for name in names)


def test_a_run_that_an_earlier_version_named_is_renamed_and_not_written_again(
    results: Path,
) -> None:
    record(results, spec())
    sync(results)
    (before,) = shown(results)
    connect(results).update_run(before.info.run_id, name="as it was called")
    assert counts(sync(results)) == {"retagged": 1}
    (after,) = shown(results)
    assert (after.info.run_id, after.info.run_name) == (before.info.run_id, before.info.run_name)


def test_runs_below_a_watermark_are_called_no_evidence_as_their_means_are(results: Path) -> None:
    run = spec()
    record(results, run)
    plan(results, run, study=STUDY)
    warning = "smoke run: not evidence"
    note(results, warnings={STUDY: warning})
    sync(results)
    for _ in range(2):
        (found,) = (one for one in shown(results) if one.data.tags["hash"] == run.hash)
        assert found.info.run_name.endswith("· seed 0 (not evidence)")
        assert found.data.tags["warning"] == warning
        assert counts(sync(results)) == {"unchanged": 1}


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


def test_names_that_mlflow_does_not_take_are_shown_all_the_same(results: Path) -> None:
    """Those of columns become one value; those of studies lose the characters."""
    run = spec()
    record(results, run)
    plan(results, run, study="toy (smoke)", studies=("toy (smoke)",))
    sync(results)
    plan(results, run, study="toy (smoke)", studies=("toy (smoke)", "other (smoke)"))
    assert counts(sync(results)) == {"retagged": 1}
    (found,) = shown(results)
    assert found.data.tags["study"] == "toy (smoke)"
    assert {"study.toy smoke", "study.other smoke"} <= found.data.tags.keys()
    columns = {"Age (years)": {"range": [0, 120]}, "sex": {"categories": ["f", "m"]}}
    assert dict(flatten({"columns": columns, "name": "a"})) == {
        "columns": json.dumps(columns), "name": "a",
    }  # fmt: skip


def test_another_study_changes_tags_but_rewrites_no_run(results: Path) -> None:
    run = spec()
    record(results, run)
    plan(results, run, study=STUDY, studies=("a",))
    sync(results)
    (before,) = shown(results)
    plan(results, run, study=STUDY, studies=("b",), label="New")
    report = sync(results)
    (after,) = shown(results)
    assert counts(report) == {"retagged": 1}
    assert after.info.run_id == before.info.run_id
    assert after.info.run_name.startswith("New · ")
    assert "study.b" in after.data.tags
    assert "study.a" not in after.data.tags


def test_a_sync_that_knows_no_study_leaves_runs_where_they_are(results: Path) -> None:
    run = spec()
    record(results, run)
    plan(results, run, study=STUDY, label="A", panel="main")
    sync(results)
    notes_path(results).unlink()
    assert counts(sync(results)) == {"unchanged": 1}


def test_a_run_that_changes_its_home_study_moves(results: Path) -> None:
    run = spec()
    record(results, run)
    plan(results, run, study=STUDY)
    sync(results)
    plan(results, run, study="b")
    assert counts(sync(results)) == {"replaced": 1}
    (found,) = shown(results)
    assert found.data.tags["study"] == "b"


def test_an_experiment_deleted_by_hand_comes_back(results: Path) -> None:
    record(results, run := spec())
    plan(results, run, study=STUDY)
    sync(results)
    client = connect(results)
    client.delete_experiment(client.get_experiment_by_name(STUDY).experiment_id)
    sync(results)
    assert len(shown(results)) == 1


def test_metrics_appear_while_the_run_lasts_and_its_end_continues_it(results: Path) -> None:
    """Who has the page of a run open sees its curve grow, and the page stays."""
    run = spec()
    plan(results, run, study=STUDY, label="SGD")
    with training(results, run) as evaluations:
        assert counts(sync(results)) == {"added": 1}
        (begun,) = shown(results)
        assert begun.info.run_name.startswith("SGD · ")
        assert begun.data.params["method.learning_rate"] == "0.1"
        for number in (2, 4):
            note_some(results, run, evaluations[number - 2 : number])
            assert counts(sync(results)) == {"continued": 1}
            (found,) = shown(results)
            assert (found.info.status, found.data.tags["status"]) == ("RUNNING", "running")
            assert curve(results, found) == expected_curve(run)[:number]
        assert counts(sync(results)) == {"unchanged": 1}
        note_some(results, run, evaluations[4:])
        finish(results, run)
    assert counts(sync(results)) == {"completed": 1}
    (ended,) = shown(results)
    assert ended.info.run_id == begun.info.run_id
    assert (ended.info.status, ended.data.tags["status"]) == ("FINISHED", "completed")
    assert curve(results, ended) == expected_curve(run)
    assert counts(sync(results)) == {"unchanged": 1}


def test_a_run_that_was_shown_while_it_trained_ends_like_any_other(results: Path) -> None:
    """Name, tags, params, points, times and artefacts are those of a run written at its end."""
    run, other = spec(), results / "other"
    plan(results, run, study=STUDY, studies=(STUDY,), label="SGD", panel="main")
    plan(other, run, study=STUDY, studies=(STUDY,), label="SGD", panel="main")
    with training(results, run) as evaluations:
        note_some(results, run, evaluations[:3])
        sync(results)
        finish(results, run)
    record(other, run)
    seen = []
    for folder in (results, other):
        sync(folder)
        (found,) = shown(folder)
        client = connect(folder)
        points = {
            name: [
                (p.step, p.value, p.timestamp)
                for p in client.get_metric_history(found.info.run_id, name)
            ]
            for name in found.data.metrics
        }
        files = [item.path for item in client.list_artifacts(found.info.run_id)]
        tags = {name: text for name, text in found.data.tags.items() if name != "results"}
        times = (found.info.start_time, found.info.end_time, found.info.status)
        seen.append((found.info.run_name, tags, found.data.params, points, files, times))
    assert seen[0] == seen[1]


def test_a_strict_run_shows_no_time_and_no_private_metric_of_an_evaluation(results: Path) -> None:
    """How far evaluations are apart would be the speed, which metrics.csv withholds."""
    run = spec()
    assert run.privacy is not None
    strict = replace(run, privacy=replace(run.privacy, release="strict", secure_noise=True))
    with training(results, strict) as evaluations:
        for number in range(len(evaluations)):
            note_some(results, strict, evaluations[number : number + 1])
            sync(results)
        (found,) = shown(results)
        history = connect(results).get_metric_history(found.info.run_id, "test_loss")
        assert len(history) == len(evaluations)
        assert {metric.timestamp for metric in history} == {found.info.start_time}
        assert set(found.data.metrics) == {
            "test_loss",
            "test_accuracy",
            "privacy/epsilon_by_step",
        }


def test_the_log_of_a_strict_run_which_has_times_is_not_kept_in_mlflow(results: Path) -> None:
    """Each line of run.log begins with the time at which it was written."""
    record(results, spec(), release="strict")
    sync(results)
    (found,) = shown(results)
    files = {item.path for item in connect(results).list_artifacts(found.info.run_id)}
    assert files == {"spec.yaml", "summary.json", "metrics.csv"}


def test_a_stopped_run_is_shown_as_killed_until_it_goes_on(results: Path) -> None:
    run = spec()
    with training(results, run) as evaluations:
        note_some(results, run, evaluations[:2])
        sync(results)
    for change in ("continued", "unchanged"):
        assert counts(sync(results)) == {change: 1}
        (found,) = shown(results)
        assert (found.info.status, found.data.tags["status"]) == ("KILLED", "interrupted")
        assert curve(results, found) == expected_curve(run)[:2]
    with training(results, run) as evaluations:
        note_some(results, run, evaluations[:3])
        sync(results)
        (found,) = shown(results)
        assert (found.info.status, found.data.tags["status"]) == ("RUNNING", "running")
        assert curve(results, found) == expected_curve(run)[:3]
        finish(results, run)
    sync(results)
    (found,) = shown(results)
    assert found.info.status == "FINISHED"
    assert curve(results, found) == expected_curve(run)


def test_a_run_that_resumes_later_is_shown_from_its_beginning(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process has another start, and its evaluations have other times."""
    run = spec()
    with training(results, run) as evaluations:
        note_some(results, run, evaluations[:2])
        sync(results)
    (before,) = shown(results)
    monkeypatch.setattr("tracked.STARTED", STARTED + timedelta(hours=1))
    with training(results, run) as evaluations:
        note_some(results, run, evaluations[:3])
        assert counts(sync(results)) == {"replaced": 1}
        (after,) = shown(results)
    assert after.info.start_time == before.info.start_time + 3_600_000
    assert curve(results, after) == expected_curve(run)[:3]


def test_a_run_that_is_trained_again_replaces_its_result_unless_it_is_stopped(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = spec()
    record(results, run)
    sync(results)
    monkeypatch.setattr("tracked.STARTED", STARTED + timedelta(hours=1))
    with training(results, run, offset=0.05) as evaluations:
        note_some(results, run, evaluations[:2])
        sync(results)
        (found,) = shown(results)
        assert found.info.status == "RUNNING"
    sync(results)
    (found,) = shown(results)
    assert (found.info.status, curve(results, found)) == ("FINISHED", expected_curve(run))
    with training(results, run, offset=0.05):
        finish(results, run, offset=0.05)
    sync(results)
    (found,) = shown(results)
    assert curve(results, found) == expected_curve(run, offset=0.05)


def test_who_follows_looks_only_at_what_has_changed(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [spec(seed=seed) for seed in range(3)]
    for run in runs[:2]:
        record(results, run)
    seen: dict[str | Path, object] = {}
    made = []
    table = MeansTable(STUDY, [results / "runs.csv"], lambda: made.append(1) or [])
    assert counts(sync(results, seen=seen, tables=[table])) == {"added": 2}
    with monkeypatch.context() as offline:
        offline.setattr("clipnoise.tracking.syncer.connect", None)  # nobody is asked
        assert counts(sync(results, seen=seen, tables=[table])) == {}
    with training(results, runs[2]):
        assert counts(sync(results, seen=seen, tables=[table])) == {"added": 1}
    assert counts(sync(results, seen=seen, tables=[table])) == {"continued": 1}  # it was stopped
    record(results, runs[0], offset=0.05)
    assert counts(sync(results, seen=seen, tables=[table])) == {"replaced": 1}
    assert len(made) == 1
    (results / "runs.csv").touch()
    assert counts(sync(results, seen=seen, tables=[table])) == {}
    assert len(made) == 2
    plan(results, runs[1], study=STUDY)
    assert sync(results, seen=seen, tables=[table]).replaced == 1  # it has moved


def test_two_results_folders_of_one_study_stand_side_by_side_on_one_server(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = results / "other"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(results))
    for folder, offset in ((results, 0.0), (other, 0.25)):
        record(folder, spec(), offset=offset)
        assert counts(sync(folder)) == {"added": 1}
    for folder in (results, other):
        assert counts(sync(folder)) == {"unchanged": 1}
    assert len(shown(results)) == len({run.data.tags["results"] for run in shown(results)}) == 2
    with training(other, spec(), offset=0.5) as evaluations:
        note_some(other, spec(), evaluations[:2])
        assert counts(sync(other)) == {"replaced": 1}
    assert len(shown(results)) == 2
    assert counts(sync(results)) == {"unchanged": 1}


def test_a_results_folder_keeps_its_runs_when_it_is_moved(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri(results))
    here, moved = results / "here", results / "moved"
    record(here, spec())
    assert counts(sync(here)) == {"added": 1}
    here.rename(moved)
    assert counts(sync(moved)) == {"unchanged": 1}


def test_the_store_of_a_folder_that_was_copied_is_made_again_in_the_copy(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(results, spec())
    sync(results)
    before = sorted(results.rglob("*"))
    copy = results.with_name(f"{results.name}-copy")
    shutil.copytree(results, copy)
    record(copy, spec(seed=1))
    assert counts(sync(copy)) == {"added": 2}
    assert "was made where these results used to be. It is now mlflow-moved-" in (
        capsys.readouterr().err
    )
    assert sorted(results.rglob("*")) == before
    for run in shown(copy):
        assert run.info.artifact_uri.startswith((copy / ARTEFACTS).as_uri())
    assert counts(sync(copy)) == {"unchanged": 2}


def test_runs_that_earlier_versions_wrote_are_taken_over(results: Path) -> None:
    record(results, spec())
    sync(results)
    (run,) = shown(results)
    connect(results).delete_tag(run.info.run_id, "results")
    assert counts(sync(results)) == {"retagged": 1}
    assert shown(results)[0].data.tags["results"].endswith(str(results))


def test_the_owner_that_an_earlier_version_noted_is_kept(results: Path) -> None:
    stamp = {"uri": "", "available": True, "reason": None, "experiments": {STUDY: "1"}}
    stamp |= {"owner": "somebody@elsewhere:/results", "runs": {}}
    notes_path(results).write_text(json.dumps(stamp))
    record(results, spec())
    sync(results)
    (found,) = shown(results)
    assert found.data.tags["results"] == "somebody@elsewhere:/results"
    assert read_notes(results).owner == "somebody@elsewhere:/results"
