"""A report shows what was tuned, how many values were tried, and whether ε accounts for it."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pandas as pd
from reporting_data import run_row, write_table

from clipnoise.report.formats import compact, listing, merged, shown
from clipnoise.report.hyperparameters import (
    CHARGED,
    CHOICE,
    SHARED,
    UNCHARGED,
    configurations,
)
from clipnoise.report.records import read_runs
from clipnoise.studies.columns import RUN_COLUMNS


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
    sgd = run_row(method="sgd", budget="non-private")
    return read_runs(write_table(folder / "runs.parquet", RUN_COLUMNS, [*rows, sgd]))


def said(frame: pd.DataFrame) -> str:
    """Return what the section says about the tuned method."""
    rows = [row for row in configurations(frame, {}).rows if row[0] != "sgd"]
    ((label, where, settings),) = rows  # one place, so nothing differs between places
    assert (label, where) == ("dp-sgd", "")
    return settings


def test_a_tuned_value_is_marked_and_stands_with_what_was_tried(tmp_path: Path) -> None:
    frame = runs(tmp_path)
    assert said(frame) == (
        "learning_rate* 2, clip_norm 0.5, betas* [0.9, 0.999], tried 12 in 36 runs, "
        "ε with tuning 3.25†"
    )
    assert configurations(frame, {}).notes == [CHOICE, CHARGED["composition"], SHARED]
    tried = dict.fromkeys(frame["hash"], "learning_rate [0.5, 2]")
    (tuned, _) = configurations(frame, tried).rows
    assert "tried 12 in 36 runs: learning_rate [0.5, 2]" in tuned[2]


def test_what_every_search_tried_is_said_once(tmp_path: Path) -> None:
    """Values that were given tried nothing; the star marks those that were chosen."""
    options = {"budget": "eps=8", "hyperparameters": '{"id": "dp-sgd", "learning_rate": 9}'}
    given = read_runs(write_table(tmp_path / "given.parquet", RUN_COLUMNS, [run_row(**options)]))
    tuned = runs(tmp_path)
    tried = dict.fromkeys(tuned["hash"], "learning_rate [0.5, 2]")
    (first, *rows, _) = configurations(pd.concat([tuned, given]), tried).rows
    assert first == ("dp-sgd", "", "tried 12 in 36 runs: learning_rate [0.5, 2]")
    assert [where for _, where, _ in rows] == ["comparison (ε = 1)", "comparison (ε = 8)"]
    assert not any("tried" in settings for *_, settings in rows)


def test_an_option_with_a_kind_says_its_kind_first() -> None:
    assert shown({"kind": "hard", "gamma": None, "per": "example"}) == "hard (per example)"
    assert shown({"kind": "hard"}) == "hard"


def test_an_epsilon_that_is_no_guarantee_is_marked(tmp_path: Path) -> None:
    assert said(runs(tmp_path, charge="selection")).endswith("ε with tuning 3.25†")
    nominal = runs(tmp_path, claim="nominal", randomness="secure")
    assert said(nominal).endswith("ε with tuning 3.25†")


def test_a_drawn_number_of_trials_is_charged_without_a_doubt(tmp_path: Path) -> None:
    frame = runs(tmp_path, charge="drawn")
    assert said(frame).endswith("ε with tuning 3.25")
    assert configurations(frame, {}).notes == [CHOICE, CHARGED["drawn"]]
    assert said(runs(tmp_path, charge="drawn", claim="nominal")).endswith("ε with tuning 3.25†")


def test_runs_that_share_no_noise_compose_to_a_guarantee(tmp_path: Path) -> None:
    frame = runs(tmp_path, randomness="secure")
    assert said(frame).endswith("ε with tuning 3.25")
    assert configurations(frame, {}).notes == [CHOICE, CHARGED["composition"]]


def test_a_search_that_is_not_charged_says_so(tmp_path: Path) -> None:
    frame = runs(tmp_path, charge="nothing", epsilon_with_tuning="")
    assert "with tuning" not in said(frame)
    assert configurations(frame, {}).notes == [CHOICE, UNCHARGED]
    public = runs(
        tmp_path,
        charge="nothing",
        epsilon_with_tuning="",
        budget="non-private",
        claim="non-private",
    )
    assert configurations(public, {}).notes == [CHOICE]


def test_a_pending_choice_is_reported(tmp_path: Path) -> None:
    frame = runs(tmp_path, tuned="", epsilon_with_tuning="", tuning_remark="Some diverged.")
    assert "tuned not chosen yet, tried 12 in 36 runs" in said(frame)
    assert "Some diverged." in configurations(frame, {}).notes


def test_a_study_without_tuning_has_no_notes_on_it(tmp_path: Path) -> None:
    frame = runs(tmp_path)
    section = configurations(frame[frame["method"] == "sgd"], {})
    assert [label for label, *_ in section.rows] == ["sgd"]
    assert section.notes == []


def test_what_differs_between_places_is_said_once_for_all_places_where_it_holds(
    tmp_path: Path,
) -> None:
    rates = {("a", "eps=1"): 1, ("a", "eps=8"): 2, ("b", "eps=1"): 2, ("b", "eps=8"): 2}
    rows = [
        run_row(
            panel=panel,
            budget=budget,
            seed=seed,
            hyperparameters=json.dumps({"id": "dp-sgd", "clip_norm": 0.5, "learning_rate": rate}),
        )
        for (panel, budget), rate in rates.items()
        for seed in (1, 2)
    ]
    frame = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))
    assert configurations(frame, {}).rows == [
        ("dp-sgd", "", "clip_norm 0.5"),
        ("", "a (ε = 1)", "learning_rate 1"),
        ("", "a (ε = 8); b", "learning_rate 2"),
    ]


def test_joined_rows_hold_for_exactly_the_combinations_that_there_were() -> None:
    source = random.Random(0)
    pairs = {(a, b, c) for a in "abc" for b in "123" for c in "xy" if source.random() < 0.6}
    rows = [tuple((cell,) for cell in row) for row in sorted(pairs)]
    joined = merged(rows, (1, 0))
    assert sorted(row for one in joined for row in itertools.product(*one)) == sorted(pairs)
    assert len(joined) < len(rows)


def test_a_column_that_is_the_same_in_all_rows_is_said_once() -> None:
    rows = [(("a",), ("0.1",), ("6",)), (("b",), ("0.1",), ("6",)), (("c",), ("0.2",), ("6",))]
    table = compact(("panel", "rate", "seeds"), rows, merge=(0,), numbers=2)
    assert table.heads == ["panel", "rate"]
    assert table.align == "lr"
    assert table.rows == [["a; b", "0.1"], ["c", "0.2"]]
    assert table.caption == "In all rows: seeds 6."


def test_a_column_that_follows_from_another_is_left_out_unless_it_says_more() -> None:
    rows = [(("a",), ("mnist",), ("x",)), (("b",), ("cifar",), ("y",))]
    heads = ("panel", "dataset", "method")
    assert compact(heads, rows, implied={1: 0}).heads == ["panel", "method"]
    more = [*rows, (("a",), ("cifar",), ("x",))]
    assert compact(heads, more, implied={1: 0}).heads == list(heads)
    same = [(("a",), ("mnist",), ("x",)), (("b",), ("mnist",), ("y",))]
    assert compact(heads, same, implied={1: 0}).caption == "In all rows: dataset mnist."


def test_lists_of_labels_with_commas_are_parted_by_semicolons() -> None:
    labels = ("b {0.15, -0.05}", "none")
    rows = [(panel, labels, "6") for panel in ("a", "b")]
    found = compact(("panel", "methods", "seeds"), rows)
    assert found.caption == "In all rows: methods b {0.15, -0.05}; none · seeds 6."
    assert listing(list(labels)) == "b {0.15, -0.05} and none"
    assert listing([*labels, "z"]) == "b {0.15, -0.05}; none; and z"
    assert listing(["x", "y", "z"]) == "x, y and z"
