"""What was removed, and what MLflow was not told, the next call of Snakemake makes again."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from workflows import planned, snakemake

from clipnoise.studies.status import outlook
from clipnoise.studies.study import load_study

pytestmark = [pytest.mark.workflow, pytest.mark.long]

STUDY = {
    "title": "A small study",
    "panels": {
        "main": {
            "datasets": ["digits"],
            "models": ["logistic"],
            "methods": [{"id": "dp-sgd", "clip_norm": 1, "learning_rate": 1}],
            "epsilons": [1],
            "seeds": [1],
            "training": {"expected_batch_size": 50, "steps": 2},
        }
    },
    "report": [{"kind": "table", "panels": "main"}],
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which a study is done and recorded."""
    folder = tmp_path_factory.mktemp("done")
    (folder / "mine.yaml").write_text(yaml.safe_dump(STUDY))
    config = {"studies": ["mine.yaml"], "tracking": "sync"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    said = snakemake(folder)
    assert "MLflow does not show" not in said
    assert planned(snakemake(folder, "-n")) == {}
    return folder


def outcome(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        (folder / "results/studies/mine/tracked.json").read_text()
    )
    return found


def test_a_result_that_was_removed_is_trained_again_as_check_says(done: Path) -> None:
    (summary,) = (done / "results/runs").rglob("summary.json")
    before = summary.read_text()
    summary.unlink()
    study = load_study(done / "mine.yaml")
    assert outlook(study, done / "results").startswith("1 of 1 runs to train")
    assert planned(snakemake(done, "-n"))["train"] == 1
    snakemake(done)
    assert json.loads(summary.read_text())["final"] == json.loads(before)["final"]
    assert outlook(study, done / "results") == "all 1 runs are done"
    assert planned(snakemake(done, "-n")) == {}


def test_a_database_that_was_moved_away_is_made_again(done: Path) -> None:
    (done / "results/mlflow.db").rename(done / "moved.db")
    assert planned(snakemake(done, "-n")) == {"all": 1, "track": 1}
    snakemake(done)
    assert outcome(done)["added"] == 1
    assert planned(snakemake(done, "-n")) == {}


def test_a_store_of_another_version_is_named_at_the_end_and_tried_again(done: Path) -> None:
    database = done / "results/mlflow.db"
    original = database.read_bytes()
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("update alembic_version set version_num = 'ffffffffffff'")
    (done / "results/studies/mine/tracked.json").unlink()
    for _ in range(2):
        said = snakemake(done)
        assert said.count("MLflow does not show mine: MLflow store") == 1
        assert planned(snakemake(done, "-n")) == {"all": 1, "track": 1}
    database.write_bytes(original)
    assert "MLflow does not show" not in snakemake(done)
    assert outcome(done)["error"] is None
    assert planned(snakemake(done, "-n")) == {}
