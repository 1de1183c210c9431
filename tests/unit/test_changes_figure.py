"""What methods gain from one panel to another, in a sentence below the figure."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from reporting_data import item_data, run_row, write_table

from clipnoise.report.blocks import FigureBlock
from clipnoise.report.items import study_items
from clipnoise.report.records import read_runs
from clipnoise.studies.columns import RUN_COLUMNS
from clipnoise.studies.study import load_study

ROOT = Path(__file__).parents[2]

Levels = dict[str, dict[str, list[float | None]]]  # by method and budget, one for each seed


def runs_of(folder: Path, first: Levels, second: Levels) -> pd.DataFrame:
    rows = [
        run_row(
            panel=panel,
            method=method,
            budget=budget,
            seed=seed,
            **({"status": "diverged"} if value is None else {"test_accuracy": value}),
        )
        for panel, levels in (("first", first), ("second", second))
        for method, by_budget in levels.items()
        for budget, values in by_budget.items()
        for seed, value in enumerate(values)
    ]
    return read_runs(write_table(folder / "runs.parquet", RUN_COLUMNS, rows))


def caption(runs: pd.DataFrame) -> str:
    options = {"panels": ("first",), "against": {"sampler": "poisson"}}
    data = item_data("changes", runs, others={"against": ("second",)}, **options)
    (block,) = data.item.blocks(data)
    assert isinstance(block, FigureBlock)
    return block.caption


def test_the_sentence_gives_the_mean_gain_its_interval_and_the_gain_at_each_epsilon(
    tmp_path: Path,
) -> None:
    first: Levels = {"dp-sgd": {"eps=1": [0.60, 0.62], "eps=8": [0.80, 0.82]}}
    second: Levels = {"dp-sgd": {"eps=1": [0.58, 0.58], "eps=8": [0.80, 0.80]}}
    said = caption(runs_of(tmp_path, first, second))
    # 2 and 4 points at ε = 1, 0 and 2 at ε = 8: by seed 1 and 3, 2 ± 12.7 · 1
    assert "Gain at equal ε in points" in said
    assert "dp-sgd 2.00 [−10.71, 14.71] (3.00 at ε = 1, 1.00 at ε = 8)." in said


@pytest.mark.parametrize(
    ("lost", "why"), [([0.6, None], "runs diverged"), ([0.6], "runs are missing")]
)
def test_a_method_that_cannot_be_compared_is_named_with_the_reason(
    lost: list[float | None], why: str, tmp_path: Path
) -> None:
    first: Levels = {"dp-sgd": {"eps=1": lost}, "dp-adam": {"eps=1": [0.7, 0.71]}}
    second: Levels = {"dp-sgd": {"eps=1": [0.6, 0.6]}, "dp-adam": {"eps=1": [0.6, 0.6]}}
    if why == "runs are missing":
        second = {"dp-adam": second["dp-adam"]}
    said = caption(runs_of(tmp_path, first, second))
    assert f"dp-sgd cannot be compared: {why}" in said
    assert "dp-adam 10.50 [4.15, 16.85]" in said  # 10.5 ± 12.7 · 0.5


def test_epsilons_of_different_adjacencies_are_said_to_be_incomparable(tmp_path: Path) -> None:
    levels: Levels = {"dp-sgd": {"eps=1": [0.6, 0.7]}}
    runs = runs_of(tmp_path, levels, levels)
    assert "not comparable" not in caption(runs)
    runs.loc[runs["panel"] == "second", "adjacency"] = "zero-out"
    said = caption(runs)
    assert "Difference in points at the same ε under different adjacencies" in said
    assert "not comparable (here add-remove, there zero-out)" in said
    assert "Gain" not in said


def test_the_axis_names_the_other_panel_by_its_title(tmp_path: Path) -> None:
    path = ROOT / "workflow" / "studies" / "banded-turns.yaml"
    study = load_study(path)
    number = next(n for n, item in enumerate(study.report) if item.kind == "changes")
    panels = {one.name for one in study.grids}
    rows = [run_row(panel=panel, seed=seed) for panel in panels for seed in (1, 2)]
    runs = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))
    data = study_items(study, runs, runs)[number]
    axis = data.item.draw(data).axes[0].get_xlabel()
    assert axis.startswith("Better than with cyclic Poisson sampling: ")
    assert "ticks: task and ε" in axis


def test_many_methods_have_no_sentence(tmp_path: Path) -> None:
    names = ("dp-sgd", "dp-adam", "dp-adamw", "dp-rmsprop", "dp-adambc", "dp-lion", "dp-muon")
    levels: Levels = {name: {"eps=1": [0.6, 0.7]} for name in names}
    assert caption(runs_of(tmp_path, levels, levels)) == ""
