"""Several panels in one table or figure."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest
from reporting_data import item_data, run_row, write_table

from clipnoise.report.figures.lines import squared_difference
from clipnoise.report.formats import ACCURACY, LOSS
from clipnoise.report.items import TableItem
from clipnoise.report.records import of_panels, read_runs
from clipnoise.studies.columns import RUN_COLUMNS
from clipnoise.studies.placement import titles_of
from clipnoise.studies.study import load_study

STUDIES = Path(__file__).parents[2] / "workflow" / "studies"


def test_panels_that_are_shown_together_are_one_item_with_their_titles() -> None:
    study = load_study(STUDIES / "dp-adambc" / "fig9.yaml")
    assert [(item.kind, item.named) for item in study.report] == [
        ("curves", ("snli", "sst2")),
        ("table", ("snli", "sst2")),
    ]
    assert titles_of(study.report[0], study.grids) == ("SNLI", "SST-2")


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(STUDIES.rglob("*.yaml")) if path.stem != "shared"],
    ids=lambda path: path.stem,
)
def test_titles_tell_the_panels_of_a_study_apart(path: Path) -> None:
    study = load_study(path)
    assert study.titles.keys() == study.panels.keys()
    assert len(set(study.titles.values())) == len(study.panels)


def test_a_title_names_the_options_and_the_panel_only_where_two_share_a_title() -> None:
    titles = load_study(STUDIES / "league" / "digits-correlated.yaml").titles
    assert titles["confirm"] == "confirmation, banded noise"
    assert titles["confirm-tree"] == "confirmation, tree noise"
    shared = load_study(STUDIES / "dp-adambc" / "fig1.yaml").titles
    assert all(title == f"SNLI ({panel})" for panel, title in shared.items() if "SNLI" in title)


def test_a_run_of_two_panels_is_shown_once() -> None:
    rows = pd.DataFrame({"panel": ["a", "b", "b", "c"], "hash": ["x", "x", "y", "z"]})
    shown = of_panels(rows, ("a", "b"))
    assert list(shown["hash"]) == ["x", "y"]
    assert set(shown["panel"]) == {"a"}


def test_the_files_of_a_table_have_all_panels_that_it_shows(tmp_path: Path) -> None:
    rows = [
        run_row(panel=name, dataset=f"set-{name}", seed=seed) for name in "ab" for seed in (1, 2)
    ]
    runs = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))
    data = item_data("table", runs, panels=("a", "b"), together=True)
    assert isinstance(data.item, TableItem)
    for text in data.item.files(data).values():
        assert "set-a" in text
        assert "set-b" in text


def test_losses_are_compared_seed_by_seed_after_the_start() -> None:
    rows = [
        {"method": method, "seed": seed, "step": step, "test_loss": step * seed + shift}
        for method, shift in (("a", 0.0), ("b", 0.5))
        for seed in (1, 2)
        for step in (0, 1, 2)
    ]
    curves = pd.DataFrame(rows)
    every: Any = [
        SimpleNamespace(of=lambda frame, name=name: frame[frame["method"] == name])
        for name in ("a", "b")
    ]
    assert squared_difference(curves, every, LOSS) == "mean squared difference: 0.25"
    assert squared_difference(curves, every, ACCURACY) == ""
    assert squared_difference(curves, cast("Any", every[:1]), LOSS) == ""
