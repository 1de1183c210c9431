"""A report shows what was tuned, how many values were tried, and whether ε accounts for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from reporting_data import run_row, write_csv

from clipnoise.report.privacy import CHARGED, SHARED, UNCHARGED, tuned
from clipnoise.report.records import read_runs
from clipnoise.studies.collect import RUN_COLUMNS


def runs(folder: Path, **changes: Any) -> pd.DataFrame:
    one: dict[str, Any] = {
        "tuned": json.dumps({"learning_rate": 0.5, "betas": [0.9, 0.99]}),
        "configurations": 12,
        "tuning_runs": 36,
        "charge": "composition",
        "epsilon_with_tuning": 3.25,
        **changes,
    }
    rows = [{**run_row(seed=seed), **one} for seed in (1, 2)]
    return read_runs(write_csv(folder / "runs.csv", RUN_COLUMNS, [*rows, run_row(method="sgd")]))


def test_the_choice_and_its_cost_are_one_row_per_setting(tmp_path: Path) -> None:
    said = tuned(runs(tmp_path))
    (row,) = said["rows"]
    assert row["chosen"] == "learning_rate 0.5, betas [0.9, 0.99]"
    assert row["tried"] == "12 in 36 runs"
    assert row["with"] == "3.25†"
    assert row["budget"] == "ε = 1"
    assert said["notes"] == [CHARGED["composition"], SHARED]


def test_an_epsilon_that_is_no_guarantee_is_marked(tmp_path: Path) -> None:
    (row,) = tuned(runs(tmp_path, charge="selection"))["rows"]
    assert row["with"] == "3.25†"
    (row,) = tuned(runs(tmp_path, claim="nominal", randomness="secure"))["rows"]
    assert row["with"] == "3.25†"


def test_runs_that_share_no_noise_compose_to_a_guarantee(tmp_path: Path) -> None:
    said = tuned(runs(tmp_path, randomness="secure"))
    assert said["rows"][0]["with"] == "3.25"
    assert said["notes"] == [CHARGED["composition"]]


def test_a_search_that_is_not_charged_says_so(tmp_path: Path) -> None:
    said = tuned(runs(tmp_path, charge="nothing", epsilon_with_tuning=""))
    assert said["rows"][0]["with"] == "–"
    assert said["notes"] == [UNCHARGED]


def test_a_pending_choice_is_reported(tmp_path: Path) -> None:
    said = tuned(runs(tmp_path, tuned="", epsilon_with_tuning="", tuning_remark="Some diverged."))
    assert said["rows"][0]["chosen"] == "not chosen yet"
    assert "Some diverged." in said["notes"]


def test_a_study_without_tuning_says_nothing(tmp_path: Path) -> None:
    frame = runs(tmp_path)
    assert tuned(frame[frame["method"] == "sgd"]) == {"rows": [], "notes": []}
