"""Published runs repeat from their file alone, which then names the code that repeated them."""

from __future__ import annotations

import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import yaml
from pyarrow import parquet

from clipnoise.cli import main
from clipnoise.privacy.calibration import calibrate
from clipnoise.report.league import published_rows
from clipnoise.run.job import run_job
from clipnoise.studies.columns import LEAGUE, read_table
from clipnoise.studies.repetition import one_of_each
from clipnoise.studies.study import load_study

TASK: dict[str, Any] = {
    "title": "League: digits",
    "scales": "none",
    "panels": {
        "confirm": {
            "datasets": ["digits"],
            "models": ["logistic"],
            "epsilons": [8],
            "seeds": [1, 2],
            "privacy": {"delta": 1e-5},
            "training": {
                **{"expected_batch_size": 130, "steps": 3, "evaluations": 1},
                "correctness": True,
            },
            "methods": [
                {"id": "sgd", "learning_rate": 0.1},
                {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 1},
            ],
        }
    },
    "report": [],
}


FILE = Path("docs/league/v3/tiny.parquet")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """Return a folder with the published file of a task of two methods with two seeds each."""
    folder = tmp_path_factory.mktemp("league")
    with chdir(folder):
        study = Path("workflow/studies/league/tiny.yaml")
        study.parent.mkdir(parents=True)
        study.write_text(yaml.safe_dump(TASK))
        config = {"studies": ["league/tiny"], "device": "cpu", "cache": str(cache)}
        Path("config.yaml").write_text(yaml.safe_dump(config))
        task = load_study(study)
        for spec in task.specs.values():
            calibration = None if spec.budget is None else calibrate(spec.budget)
            run_job(
                spec,
                calibration,
                results=Path("results"),
                cache=cache,
                weights=Path("weights"),
                device="cpu",
            )
        FILE.parent.mkdir(parents=True)
        parquet.write_table(published_rows(task, Path("results")), FILE)
    return folder


@pytest.fixture
def published(task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a copy of the folder, and return its published file."""
    shutil.copytree(task, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "results")  # the file is enough
    monkeypatch.chdir(tmp_path)
    return FILE


def changed(path: Path, column: str, value: object) -> None:
    """Write one value into a column of all rows of a published file."""
    rows = parquet.read_table(path)
    field = rows.schema.field(column)
    values = pa.array([value] * rows.num_rows, field.type)
    parquet.write_table(rows.set_column(rows.schema.get_field_index(column), field, values), path)


def test_runs_that_repeat_get_the_digest_of_the_code_that_repeated_them(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_table(published, LEAGUE)
    changed(published, "training_code", "earlier")
    assert main(["league", "repeat", "tiny"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("equal: sgd, seed ")
    assert said[1].startswith("equal: dp-sgd, ε = 8, seed ")
    assert said[-1] == "2 of 2 runs repeated bit for bit, of 4"
    assert read_table(published, LEAGUE).equals(before)


@pytest.mark.parametrize(
    ("column", "value"), [("test_accuracy", 0.25), ("correct", "AAAA"), ("epsilon_achieved", 7.9)]
)
def test_a_number_that_does_not_repeat_is_named_and_the_file_stays(
    column: str, value: object, published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(published, "training_code", "earlier")
    changed(published, column, value)
    before = published.read_bytes()
    assert main(["league", "repeat", "tiny"]) == 1
    assert f"    {column}: {value} before, " in capsys.readouterr().out
    assert published.read_bytes() == before


def test_another_processor_is_named_beside_what_does_not_repeat(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(published, "cpu", "another")
    assert main(["league", "repeat", "tiny"]) == 0
    changed(published, "test_accuracy", 0.25)
    assert main(["league", "repeat", "tiny"]) == 1
    said = capsys.readouterr().out
    assert said.count("    processor: another before, ") == 2
    assert said.count("another processor, which may round sums differently") == 1


def test_a_run_that_the_study_no_longer_has_is_refused(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(published, "hash", "0" * 12)
    assert main(["league", "repeat", "tiny"]) == 2
    assert "(000000000000) was published, but is no run of the study" in capsys.readouterr().err


def test_one_run_of_each_method_and_budget_is_drawn(published: Path) -> None:
    runs = read_table(published, LEAGUE)
    drawn = [set(one_of_each(runs, draw)["seed"]) for draw in range(8)]
    assert set.union(*drawn) == {1, 2}
    assert list(one_of_each(runs)["label"]) == ["sgd", "dp-sgd"]
