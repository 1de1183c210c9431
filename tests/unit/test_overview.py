"""The overview over tasks matches means worked out by hand, and names what it cannot average."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from reporting_data import item_data, run_row, write_study, write_table

from clipnoise.cli import main
from clipnoise.report.export import to_latex, to_markdown
from clipnoise.report.kinds.overview import Overview, build_overview, to_csv
from clipnoise.report.records import read_runs
from clipnoise.studies.columns import RUN_COLUMNS

TASKS = {"first": "set-0", "second": "set-1", "half": "set-0", "half-2": "set-1"}
Levels = dict[tuple[str, str], Any]  # test accuracy by seed, None where the run diverged

PLAIN: Levels = {
    ("first", "dp-sgd"): [0.60, 0.80],
    ("second", "dp-sgd"): [0.50, 0.50],
    ("first", "dp-adam"): [0.70, 0.92],  # 0.11 above
    ("second", "dp-adam"): [0.47, 0.47],  # 0.03 below
    ("half", "dp-adam"): [0.68],  # 0.02 less than with the same seed
    ("half-2", "dp-adam"): [0.53],  # 0.06 more
}


def runs_of(folder: Path, levels: Levels, **changed: Any) -> pd.DataFrame:
    rows = [
        run_row(
            panel=panel,
            dataset=TASKS[panel],
            method=method,
            seed=seed,
            **(
                {"status": value or "diverged"}
                if value is None or isinstance(value, str)
                else {"test_accuracy": value, "test_loss": value}
            ),
            **changed,
        )
        for (panel, method), values in levels.items()
        for seed, value in enumerate(values)
    ]
    return read_runs(write_table(folder / "runs.parquet", RUN_COLUMNS, rows))


def overview_of(runs: pd.DataFrame) -> Overview:
    others = {"changes.η ÷ 2": ("half", "half-2")}
    return build_overview(item_data("overview", runs, panels=("first", "second"), others=others))


def texts(overview: Overview) -> dict[str, dict[str, str]]:
    """Return what is shown, by method and heading."""
    (grid,) = overview.block.grids
    headings = [name for group in grid.groups for name in group.headings]
    return {
        row.label: dict(zip(headings, [cell.text for cell in row.cells], strict=True))
        for row in grid.rows
    }


def test_gains_and_changes_are_means_over_tasks(tmp_path: Path) -> None:
    shown = texts(overview_of(runs_of(tmp_path, PLAIN)))
    assert shown["dp-adam"] == {
        **{"ε = 1": "+4.0", "worst": "−3.0", "best": "+11.0"},
        **{"η ÷ 2": "+2.0", "time": "1.00"},
    }
    assert shown["dp-sgd"]["ε = 1"] == "0.0"
    assert shown["dp-sgd"]["η ÷ 2"] == "–"


def test_a_task_has_the_same_weight_however_many_budgets_a_change_has(tmp_path: Path) -> None:
    """At ε = 1 the changes are −0.02 and +0.06; the first task has a second budget: −0.10."""
    tight = runs_of(tmp_path, PLAIN)
    loose = runs_of(
        tmp_path,
        {("first", "dp-adam"): [0.7], ("half", "dp-adam"): [0.6], ("first", "dp-sgd"): [0.7]},
        budget="eps=8",
    )
    shown = texts(overview_of(pd.concat([tight, loose], ignore_index=True)))
    assert shown["dp-adam"]["η ÷ 2"] == "0.0"  # (−0.06 + 0.06) / 2
    assert shown["dp-adam"]["ε = 8"] == "0.0 (1/2)"


@pytest.mark.parametrize("lost", [[0.70, "missing"], ["corrupt", 0.92]])
def test_a_task_with_unfinished_runs_is_counted_out(tmp_path: Path, lost: list[Any]) -> None:
    overview = overview_of(runs_of(tmp_path, {**PLAIN, ("first", "dp-adam"): lost}))
    assert texts(overview)["dp-adam"]["ε = 1"] == "−3.0 (1/2)"
    assert any(note.startswith("(n/N)") for note in overview.notes)
    waiting = {**PLAIN, ("first", "dp-sgd"): [0.6, "missing"]}  # so no method has a gain there
    shown = texts(overview_of(runs_of(tmp_path, waiting)))
    assert [shown[name]["ε = 1"] for name in ("dp-sgd", "dp-adam")] == ["0.0 (1/2)", "−3.0 (1/2)"]


def test_a_method_without_any_ended_task_is_still_shown(tmp_path: Path) -> None:
    lost = {**PLAIN, ("first", "dp-adam"): ["missing"] * 2, ("second", "dp-adam"): ["missing"] * 2}
    shown = texts(overview_of(runs_of(tmp_path, lost)))["dp-adam"]
    assert shown["ε = 1"] == shown["worst"] == shown["time"] == "– (0/2)"


def test_a_diverged_run_leaves_no_mean_and_no_worst(tmp_path: Path) -> None:
    levels = {**PLAIN, ("first", "dp-adam"): [0.70, None]}
    overview = overview_of(runs_of(tmp_path, levels))
    shown = texts(overview)["dp-adam"]
    assert shown["ε = 1"] == shown["worst"] == "diverged 1/2"
    assert shown["best"] == "−3.0"
    assert any(note.startswith("Diverged n/N") for note in overview.notes)


def test_a_run_that_diverges_as_dp_sgd_does_is_not_left_out(tmp_path: Path) -> None:
    both = {("first", "dp-sgd"): [0.6, None], ("first", "dp-adam"): [0.7, None]}
    shown = texts(overview_of(runs_of(tmp_path, {**PLAIN, **both})))
    assert shown["dp-sgd"]["ε = 1"] == shown["dp-adam"]["ε = 1"] == "diverged 1/2"


def test_a_nominal_claim_is_marked_and_explained(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, PLAIN)
    runs.loc[runs["method"] == "dp-adam", "claim"] = "nominal"
    overview = overview_of(runs)
    assert "dp-adam †" in texts(overview)
    assert any(note.startswith("† nominal ε") for note in overview.notes)


def test_a_lower_loss_is_a_gain(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, PLAIN).assign(test_accuracy=float("nan"))
    assert texts(overview_of(runs))["dp-adam"]["ε = 1"] == "−0.040"


def test_time_is_the_median_over_tasks(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, PLAIN)
    adam = runs["method"] == "dp-adam"
    runs.loc[adam & (runs["panel"] == "first"), "cpu_seconds"] = 6.0  # dp-sgd takes 3
    assert texts(overview_of(runs))["dp-adam"]["time"] == "1.50"


def test_the_files_hold_all_digits_and_every_method(tmp_path: Path) -> None:
    levels = {**PLAIN, ("second", "dp-adam"): [None, 0.47]}
    overview = overview_of(runs_of(tmp_path, levels))
    table = pd.read_csv(io.StringIO(to_csv(overview, "not evidence"))).set_index(
        ["label", "column"]
    )
    assert table.loc[("dp-adam", "best"), "value"] == pytest.approx(0.11)
    assert pd.isna(table.loc[("dp-adam", "ε = 1"), "value"])
    assert table.loc[("dp-adam", "ε = 1"), "diverged"] == 1
    assert set(table["warning"]) == {"not evidence"}
    markdown, latex = to_markdown(overview.block, "not evidence"), to_latex(overview.block)
    assert "| dp-adam | diverged 1/2 |" in markdown
    assert "**not evidence**" in markdown
    assert r"\multicolumn{3}{c}{over dp-sgd} & \multicolumn{1}{c}{change}" in latex


def test_the_command_writes_the_overview_of_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs_of(tmp_path, PLAIN)
    runs = (tmp_path / "runs.parquet").rename(tmp_path / "kept.parquet")
    panel = {"datasets": ["digits"], "models": ["logistic"], "seeds": [1], "methods": ["dp-sgd"]}
    study = {
        "title": "Mine",
        "panels": {name: {**panel, "epsilons": [1]} for name in ("first", "second")},
        "report": [{"kind": "overview", "together": True}],
    }
    for number, report in enumerate([study["report"], [{"kind": "table"}]]):
        path, _, _ = write_study(tmp_path, [], {**study, "report": report})
        words = ["--study", str(path), "--runs", str(runs), "--out", str(tmp_path / "overview")]
        assert main(["table", *words, "--panel", "first.overview"]) == (0 if number == 0 else 2)
    assert "+4.0" in (tmp_path / "overview.md").read_text()
    assert (tmp_path / "overview.tex").is_file()
    assert "report: unknown table 'first.overview'" in capsys.readouterr().err
