"""A study asks for metrics: they are measured, collected, and what methods are ranked by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from reporting_data import item_data, run_row, write_csv

from clipnoise.data.base import dataset_class
from clipnoise.errors import UserError
from clipnoise.report.blocks import ListBlock
from clipnoise.report.formats import MEASURED
from clipnoise.report.records import collected, read_runs
from clipnoise.report.tables import build_table, choose_metric
from clipnoise.run.job import run_job
from clipnoise.run.results import read_run, run_folder
from clipnoise.studies.collect import RUN_COLUMNS
from clipnoise.studies.study import Study, load_study

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
    rows = [
        {
            **run_row(method=method, seed=seed, test_accuracy=accuracy),
            "rank_by": column,
            column: error + 0.001 * seed,
        }
        for method, accuracy, error in (("dp-sgd", 0.9, 0.3), ("dp-adam", 0.5, 0.1))
        for seed in (1, 2, 3)
    ]
    runs = read_runs(write_csv(tmp_path / "runs.csv", [*RUN_COLUMNS, column], rows))
    table = build_table(runs, "comparison")
    (verdict,) = table.verdicts.values()
    assert {method for method, _ in verdict.leaders} == {"dp-adam"}
