"""A study asks for metrics: they are measured, collected, and what methods are ranked by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from reporting_data import item_data, run_row, write_table

from clipnoise.data.base import dataset_class
from clipnoise.errors import UserError
from clipnoise.report.blocks import ListBlock
from clipnoise.report.formats import MEASURED
from clipnoise.report.publication import run_rows
from clipnoise.report.records import collected, read_runs
from clipnoise.report.tables import build_table, choose_metric
from clipnoise.report.verdict import verdict_data
from clipnoise.run.job import run_job
from clipnoise.run.results import read_run, run_folder
from clipnoise.studies.columns import RUN_COLUMNS
from clipnoise.studies.study import Study, load_study
from clipnoise.studies.tuning import choose
from clipnoise.tracking import note, read_notes
from clipnoise.tracking.view import means_of, saved_view, study_of

DOCS = Path(__file__).parents[2] / "docs" / "studies.md"


def shown() -> dict[str, Any]:
    """Return the example of the documentation."""
    section = DOCS.read_text().split("## Metrics\n")[1]
    found: dict[str, Any] = yaml.safe_load(section.split("```yaml\n")[1].split("```")[0])
    return found


def study(folder: Path, **changes: Any) -> Study:
    panel = {
        "datasets": ["digits"],
        "models": ["logistic"],
        "seeds": [1, 2],
        "methods": [{"id": "sgd", "learning_rate": 0.1}, {"id": "adam", "learning_rate": 1e-9}],
        "training": {"expected_batch_size": 100, "steps": 6, "evaluations": 2},
        **changes,
    }
    path = folder / "studies" / "mine.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump({"title": "t", "panels": {"p": panel}, "report": []}))
    return load_study(path)


def test_the_metrics_of_the_documentation_are_measured_collected_and_ranked_by(
    tmp_path: Path,
) -> None:
    mine, cache, results = study(tmp_path, **shown()), tmp_path / "cache", tmp_path / "results"
    dataset_class("digits")().prepare(cache)
    for run in mine.runs:
        run_job(run.spec, None, results=results, cache=cache, weights=cache, device="cpu")
    runs, curves = collected(mine, results)
    columns = [f"test_{name}" for name in shown()["metrics"]]
    assert runs[columns].notna().all(axis=None)
    assert curves[columns].notna().all(axis=None)
    assert choose_metric(runs).column == "test_balanced_accuracy"
    table = build_table(runs, "p")
    assert table.metric.column == "test_balanced_accuracy"
    means = {row.label: cell.sample.mean for row, _, cell in table.cells()}
    assert means["sgd"] > means["adam"]  # which does not move
    files = read_run(run_folder(results, mine.runs[0].spec))
    assert files is not None
    last, final, chance = files.metrics[-1], files.summary["final"], files.summary["chance"]
    assert [float(last[name]) for name in columns] == [final[name] for name in columns]
    assert chance["test_balanced_accuracy"] == pytest.approx(0.1)
    assert 0.1 < chance["test_accuracy"] < 0.2
    assert chance["name"] == "majority class"
    item = item_data("metrics", runs, curves, panels=("p",))
    (block,) = item.item.blocks(item)
    assert isinstance(block, ListBlock)
    assert len(block.rows) == 2
    assert len(block.rows[0]) == 4 + 2 + 4


def test_a_study_without_metrics_has_the_runs_and_columns_that_it_had(tmp_path: Path) -> None:
    plain = [run.spec.hash for run in study(tmp_path).runs]
    assert [run.spec.hash for run in study(tmp_path, rank_by="loss").runs] == plain
    runs, _ = collected(study(tmp_path), tmp_path)
    assert not {metric.column for metric in MEASURED} & set(runs.columns)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"metrics": ["mae"]}, r"panels\.p\.metrics: mae does not fit classification"),
        ({"metrics": ["f1"]}, r"unknown metric 'f1'\. .*Allowed: accuracy, auc"),
        ({"rank_by": "auc"}, r"panels\.p\.rank_by: auc is not among its metrics\. .*accuracy"),
        ({"rank_by": "acuracy"}, r"Did you mean 'accuracy'\?"),
    ],
)
def test_a_metric_that_cannot_be_measured_is_refused_before_training(
    tmp_path: Path, keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        _ = study(tmp_path, **keys).runs


def test_a_table_ranked_by_a_metric_where_lower_is_better_leads_with_the_lowest(
    tmp_path: Path,
) -> None:
    column = "test_calibration_error"
    rows = ranked_rows(column, {"dp-sgd": (0.9, 0.3), "dp-adam": (0.5, 0.1)})
    runs = read_runs(write_table(tmp_path / "runs.parquet", [*RUN_COLUMNS, column], rows))
    table = build_table(runs, "comparison")
    (verdict,) = table.verdicts.values()
    assert {method for method, _ in verdict.leaders} == {"dp-adam"}


def tuned(folder: Path, **changes: Any) -> Study:
    entry = {"id": "sgd", "tune": {"grid": {"learning_rate": [0.1, 1e-9]}, "seeds": [101]}}
    return study(folder, methods=[entry], seeds=[1], **changes)


def test_a_search_chooses_by_what_the_panel_is_ranked_by(tmp_path: Path) -> None:
    error = {"metrics": ["f1_macro", "calibration_error"], "rank_by": "calibration_error"}
    mine, cache, results = tuned(tmp_path, **error), tmp_path / "cache", tmp_path / "results"
    (search,) = mine.searches.values()
    assert search.metric == "validation_calibration_error"
    assert {spec.metrics for spec in search.runs} == {("calibration_error",)}
    dataset_class("digits")().prepare(cache)
    summaries = [
        run_job(spec, None, results=results, cache=cache, weights=cache, device="cpu")
        for spec in search.runs
    ]
    made = choose(summaries, search.parameters, search.metric)
    errors = [summary["final"]["validation_calibration_error"] for summary in summaries]
    assert [one.mean for one in made.tried] == errors
    assert made.choice == made.tried[errors.index(min(errors))].values


def test_a_search_says_itself_what_it_chooses_by_and_accuracy_and_loss_measure_no_more(
    tmp_path: Path,
) -> None:
    plain = next(iter(tuned(tmp_path).searches))
    by_loss = tuned(tmp_path, rank_by="loss").searches.values()
    assert [search.metric for search in by_loss] == ["validation_loss"]
    own = tuned(
        tmp_path,
        metrics=["auc"],
        rank_by="auc",
        tuning={"metric": "validation_accuracy"},
    )
    assert [*own.searches] == [plain]
    with pytest.raises(UserError, match=r"methods\.0\.tune\.metric: mae does not fit"):
        _ = tuned(tmp_path, tuning={"metric": "validation_mae"}).runs


def test_a_run_of_a_search_is_called_by_the_configuration_that_it_tries(tmp_path: Path) -> None:
    mine = tuned(tmp_path)
    names = [mine.names[spec.hash] for spec in mine.tuning_runs]
    assert [name.rpartition("tuning ")[2] for name in names] == [
        "learning_rate 0.1",
        "learning_rate 1e-09",
    ]


def test_mlflow_sorts_runs_by_what_they_are_ranked_by(tmp_path: Path) -> None:
    mine = study(tmp_path, metrics=["calibration_error"], rank_by="calibration_error")
    assert (study(tmp_path).ranked_by, mine.ranked_by) == ("accuracy", "calibration_error")
    assert note(tmp_path, ranked_by={"mine": mine.ranked_by}) == read_notes(tmp_path)
    for name, column in (("mine", "final"), (means_of("mine"), "mean")):
        (text,) = saved_view(name, read_notes(tmp_path).ranked_by[study_of(name)]).values()
        state = json.loads(json.loads(text)["state"])
        assert f"metrics.`{column}/test_calibration_error`" in state["selectedColumns"]
        assert state["orderByAsc"] == (name == "mine")


def ranked_rows(column: str, levels: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    """Return rows of runs.csv, ranked by a column, by method: accuracy, and the column's value."""
    return [
        {
            **run_row(method=method, seed=seed, test_accuracy=accuracy),
            "rank_by": column,
            column: value + 0.001 * seed,
        }
        for method, (accuracy, value) in levels.items()
        for seed in range(1, 7)
    ]


def test_a_verdict_by_a_metric_where_lower_is_better_names_the_lowest_mean(tmp_path: Path) -> None:
    column = "test_calibration_error"
    rows = ranked_rows(column, {"dp-sgd": (0.9, 0.3), "dp-adam": (0.5, 0.1)})
    runs = read_runs(write_table(tmp_path / "runs.parquet", [*RUN_COLUMNS, column], rows))
    found = verdict_data(runs, "")
    (row,) = found.table.rows
    said = dict(zip(found.table.heads, row, strict=True))
    assert said["best mean"] == "dp-adam"
    assert said["verdict"] == "best of 2"
    assert said["over dp-sgd"].startswith("0.2000")
    assert found.summary == "In one setting dp-adam is shown to be better than all others."


def test_each_panel_of_published_results_has_the_metric_that_it_is_ranked_by(
    tmp_path: Path,
) -> None:
    column = "test_auc"
    by_auc = ranked_rows(column, {"dp-sgd": (0.9, 0.7)})
    plain = [{**row, "panel": "other", "rank_by": "", column: ""} for row in by_auc]
    rows = [*plain, *by_auc]
    runs = read_runs(write_table(tmp_path / "runs.parquet", [*RUN_COLUMNS, column], rows))
    values = run_rows(runs).groupby("panel")[["metric", "value"]].first()
    assert values.loc["other"].tolist() == ["test_accuracy", 0.9]
    assert values.loc["comparison"].tolist() == [column, pytest.approx(0.701)]
