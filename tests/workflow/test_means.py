"""MLflow shows the means of a study's settings: those of the report's tables, and no others."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from reporting_data import quickstart, run_row, write_study, write_table

from clipnoise.cli import main
from clipnoise.report.kinds.table import to_csv
from clipnoise.report.means import mean_views
from clipnoise.report.records import read_runs
from clipnoise.report.tables import build_table
from clipnoise.studies.columns import RUN_COLUMNS, table, to_parquet
from clipnoise.tracking.store import connect, experiment
from clipnoise.tracking.ui import study_pages
from clipnoise.tracking.view import View, means_of

MEANS = means_of("quickstart")


@pytest.fixture
def collected(results: Path) -> Path:
    """Return the folder of a study's runs.parquet, below the results; one run of it diverged."""
    folder = results / "studies" / "quickstart"
    folder.mkdir(parents=True)
    rows = quickstart()
    rows[8] = run_row(**{**rows[8], "status": "diverged"})
    _, runs, _ = write_study(results, rows)
    runs.rename(folder / "runs.parquet")
    return folder


def track(folder: Path) -> dict[str, Any]:
    """Do what the workflow does after it has collected a study."""
    results, out = folder.parents[1], folder / "tracked.json"
    words = ["mlflow-sync", "--study", str(results / "quickstart.yaml"), "--results", str(results)]
    words += ["--runs", str(folder / "runs.parquet"), "--report", "reports/quickstart/report.pdf"]
    assert main([*words, "--out", str(out)]) == 0
    outcome: dict[str, Any] = json.loads(out.read_text())
    assert outcome["error"] is None
    return outcome


def shown(results: Path) -> list[Any]:
    client = connect(results)
    found = client.get_experiment_by_name(MEANS)
    return [] if found is None else list(client.search_runs([found.experiment_id]))


def as_numbers(run: Any) -> tuple[float, float, float]:
    names = ("mean/test_accuracy", "std/test_accuracy", "seeds/n")
    mean, deviation, n = (run.data.metrics[name] for name in names)
    return mean, deviation, n


@pytest.mark.long
def test_the_means_are_exactly_those_of_the_tables(collected: Path) -> None:
    assert track(collected)["means"] > 20
    runs = read_runs(collected / "runs.parquet")
    wanted = {}
    for panel in runs["panel"].unique():
        for line in csv.DictReader(to_csv(build_table(runs, panel)).splitlines()):
            budget = line["budget"].replace("eps=", "ε=")
            place = (panel, line["dataset"], line["model"], budget, line["method"], line["label"])
            wanted[place] = tuple(float(line[name]) for name in ("mean", "std", "n"))
    found = {}
    for run in shown(collected.parents[1]):
        tags = run.data.tags
        names = ("panel", "dataset", "model", "budget", "method", "label")
        found[tuple(tags[name] for name in names)] = as_numbers(run)
        assert tags["report"] == "reports/quickstart/report.pdf"
    assert found == wanted


@pytest.mark.long
def test_a_second_call_writes_nothing_and_changed_runs_rewrite_their_mean(collected: Path) -> None:
    results = collected.parents[1]
    track(collected)
    before = {run.info.run_id for run in shown(results)}
    assert track(collected)["means"] == 0
    path = collected / "runs.parquet"
    rows = pq.read_table(path).to_pylist(maps_as_pydicts="strict")
    rows[0]["test_accuracy"] = 0.5
    write_table(path, RUN_COLUMNS, rows)
    assert track(collected)["means"] == 1
    assert len(before - {run.info.run_id for run in shown(results)}) == 1
    write_table(path, RUN_COLUMNS, [row for row in rows if row["method"] != "dp-pmlf"])
    track(collected)
    assert "dp-pmlf" not in {run.data.tags["method"] for run in shown(results)}


@pytest.mark.long
def test_a_lost_store_is_made_again_from_the_files_without_a_study(collected: Path) -> None:
    results = collected.parents[1]
    track(collected)
    without = results / "without"  # MLflow keeps a removed database open: take another folder
    shutil.copytree(collected, without / "studies" / "quickstart")
    assert main(["mlflow-sync", "--results", str(without)]) == 0
    assert sorted(map(as_numbers, shown(without))) == sorted(map(as_numbers, shown(results)))


@pytest.mark.long
def test_a_study_that_is_named_gets_its_means_and_pages_without_the_workflow(
    collected: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = collected.parents[1]
    track(collected)
    runs = read_runs(collected / "runs.parquet")
    monkeypatch.setattr("clipnoise.report.records.collected", lambda *_: (runs, runs[:0]))
    study, other = str(results / "quickstart.yaml"), results / "other"
    assert main(["mlflow-sync", "--study", study, "--results", str(other)]) == 0
    assert sorted(map(as_numbers, shown(other))) == sorted(map(as_numbers, shown(results)))
    assert {"quickstart", MEANS} <= set(study_pages(other, "http://127.0.0.1:5000"))


def test_the_page_of_means_is_named_once_there_are_some(results: Path) -> None:
    experiment(connect(results), "quickstart", results, "**Quickstart**")
    assert list(study_pages(results, "http://127.0.0.1:5000")) == ["quickstart"]


@pytest.mark.long
def test_a_table_of_runs_that_cannot_be_read_is_named(
    collected: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    track(collected)
    (collected / "runs.parquet").write_bytes(to_parquet(table({"study": RUN_COLUMNS["study"]}, [])))
    assert main(["mlflow-sync", "--results", str(collected.parents[1])]) == 1
    assert f"{collected / 'runs.parquet'}: no column" in capsys.readouterr().err


def views(tmp_path: Path, *rows: dict[str, Any], warning: str = "") -> list[View]:
    path = write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows)
    return mean_views(read_runs(path), "study", "report.pdf", warning)


def test_what_searches_chose_differently_is_all_shown(tmp_path: Path) -> None:
    rows = [
        run_row(label="dp-adam", method="dp-adam", seed=seed, hyperparameters=json.dumps(chosen))
        for seed, chosen in enumerate(
            [{"learning_rate": 0.1, "clip_norm": 1}, {"learning_rate": 0.3, "clip_norm": 1}]
        )
    ]
    (view,) = views(tmp_path, *rows)
    assert view.params == {"learning_rate": "0.1, 0.3", "clip_norm": "1"}


def test_a_name_says_what_a_mean_does_not_hold(tmp_path: Path) -> None:
    lost = [run_row(seed=seed, status="diverged" if seed else "completed") for seed in range(3)]
    nominal = [run_row(method="dp-adam", claim="nominal", seed=seed) for seed in range(3)]
    incomplete, other = views(tmp_path, *nominal, *lost)[::-1]
    assert incomplete.name == "dp-sgd · digits · logistic · ε=1 (1/3 runs)"
    assert incomplete.status == "FAILED"
    assert other.name == "dp-adam · digits · logistic · ε=1 (nominal)"
    (small, _) = views(tmp_path, *nominal, *lost, warning="Reduced")
    assert "not evidence" in small.name
    assert small.tags["warning"] == "Reduced"


def test_a_non_private_mean_has_no_epsilon(tmp_path: Path) -> None:
    (one,) = views(tmp_path, run_row(method="sgd", budget="non-private"))
    (oracle,) = views(tmp_path, run_row(method="dp-adam-noiseless", claim="non-private"))
    for view in (one, oracle):
        assert not any(name.startswith("privacy/eps") for name, *_ in view.finals)
        assert view.tags["claim"] == "non-private"
    assert oracle.name.endswith("· ε=1 (non-private)")
    assert one.name.endswith("· non-private")


def test_means_of_several_panels_that_are_called_alike_have_their_panel(tmp_path: Path) -> None:
    rows = [run_row(panel=panel) for panel in ("small", "large")]
    found = views(tmp_path, *rows, run_row(method="dp-adam", panel="large"))
    assert {view.name for view in found} == {
        "dp-sgd · digits · logistic · ε=1 · small",
        "dp-sgd · digits · logistic · ε=1 · large",
        "dp-adam · digits · logistic · ε=1",
    }


def test_a_mean_names_the_data_that_was_loaded_as_its_runs_do(tmp_path: Path) -> None:
    (view,) = views(tmp_path, run_row(dataset="mnist", data="synthetic-images"))
    assert view.tags["dataset"] == "synthetic-images"
    assert view.name == "dp-sgd · synthetic-images for mnist · logistic · ε=1"


def test_mlflow_lists_the_best_of_a_column_first(tmp_path: Path) -> None:
    levels = {"dp-sgd": 0.7, "dp-adam": 0.9, "dp-adambc": 0.8}
    rows = [run_row(method=name, test_accuracy=level) for name, level in levels.items()]
    found = sorted(views(tmp_path, *rows), key=lambda view: view.started, reverse=True)
    assert [view.tags["method"] for view in found] == ["dp-adam", "dp-adambc", "dp-sgd"]
