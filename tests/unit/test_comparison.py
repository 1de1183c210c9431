"""Published numbers beside ours: which correspond, and how significant the difference is."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from reporting_data import item_data, run_row, write_study, write_table

from clipnoise.cli import main
from clipnoise.errors import UserError
from clipnoise.report.document import document
from clipnoise.report.published import (
    Comparison,
    compare,
    comparison_block,
    to_csv,
)
from clipnoise.report.records import read_curves, read_runs
from clipnoise.studies.columns import CURVE_COLUMNS, RUN_COLUMNS
from clipnoise.studies.study import load_study, published_tables

HEAD = "dataset,model,method,variant,budget,metric,mean,std,n,unit,source,note\n"
STUDY: dict[str, Any] = {
    "title": "A table of a fifth paper",
    "panels": {"comparison": {"datasets": ["digits"], "models": ["logistic"]}},
    "report": [{"kind": "table", "panels": "comparison"}],
}
BESIDE = {**STUDY["report"][0], "published": "fifth-paper/table1"}
STUDY["panels"]["comparison"] |= {
    "methods": [{"id": "sgd", "learning_rate": 1}],
    "seeds": [1],
    "training": {"expected_batch_size": 100, "steps": 200},
}


def seeds(*accuracies: float, **identity: Any) -> list[dict[str, Any]]:
    return [
        run_row(seed=seed, test_accuracy=value, **identity)
        for seed, value in enumerate(accuracies, 1)
    ]


def joined(folder: Path, table: str, rows: list[dict[str, Any]]) -> Comparison:
    path = folder / "paper.csv"
    path.write_text(HEAD + table)
    runs = read_runs(write_table(folder / "runs.parquet", RUN_COLUMNS, rows))
    return compare(runs, ("comparison",), path)


def lines(one: Comparison) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv([one]))))


def shown(one: Comparison) -> list[tuple[str, ...]]:
    """Return row, text with its mark, published and difference of each cell, in order."""
    rows = [row for grid in comparison_block(one).grids for row in grid.rows]
    return [
        (row.label, cell.text + cell.mark, cell.published, cell.difference)
        for row in rows
        for cell in row.cells
    ]


def test_the_difference_is_ours_minus_published_with_welchs_standard_error(tmp_path: Path) -> None:
    table = "digits,logistic,dp-sgd,,eps=1,test_accuracy,89.50,2.0,4,%,A table,\n"
    one = joined(tmp_path, table, seeds(0.90, 0.92, 0.94))
    (pair,) = one.pairs
    assert pair.difference == pytest.approx(0.92 - 0.895)
    assert pair.standard_error == pytest.approx(math.sqrt(0.02**2 / 4 + 0.02**2 / 3))
    assert shown(one) == [("dp-sgd", "92.00 ± 2.00", "89.50 ± 2.0", "+2.50 ± 1.53")]
    (line,) = lines(one)
    assert line["published"] == "0.8950", "in the metric's own unit, with the digits printed"
    assert float(line["difference"]) == pair.difference


def test_panels_side_by_side_are_one_table_without_the_cells_of_other_panels(
    tmp_path: Path,
) -> None:
    """Two panels with the same budget are two columns; one without privacy spans them."""
    path = tmp_path / "paper.csv"
    numbers = {"sgd,,non-private": 95, "dp-sgd,,eps=1": 90, "dp-sgd,banded,eps=1": 91}
    numbers |= {"dp-adam,,eps=1": 80, "dp-rmsprop,,eps=1": 70}
    cells = [f"digits,logistic,{key},test_accuracy,{x},,,%,A,\n" for key, x in numbers.items()]
    path.write_text(HEAD + "".join(cells))
    rows = [
        *seeds(0.96, panel="free", method="sgd", budget="non-private", claim="non-private"),
        *seeds(0.92, panel="independent", method="dp-sgd"),
        *seeds(0.82, panel="independent", method="dp-adam"),
        *seeds(0.94, panel="correlated", method="dp-sgd", label="banded"),
    ]
    runs = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))
    panels = ("free", "independent", "correlated")
    titles = tuple(f"{panel} noise" for panel in panels)
    options = {"panels": panels, "titles": titles, "together": True}
    options |= {"published": "paper", "side_by_side": True}
    data: Any = item_data("table", runs, beside=path, **options)
    block = data.item.block(data)
    (grid,) = block.grids
    assert [one.title for one in grid.groups] == ["independent noise", "correlated noise"]
    found = {
        row.label: [(cell.text, cell.published, cell.span) for cell in row.cells]
        for row in (*grid.rows, *grid.references)
    }
    assert found == {
        "dp-sgd": [("92.00", "90", 1), ("94.00", "91", 1)],
        "dp-adam": [("82.00", "80", 1), ("", "", 1)],
        "sgd": [("96.00", "95", 2)],
    }
    assert "1 published cell without a run." in block.notes


@pytest.mark.parametrize("missing", ["89.5,,4", "89.5,2.0,", "89.5,,"])
def test_without_a_deviation_or_its_runs_the_difference_has_no_standard_error(
    tmp_path: Path, missing: str
) -> None:
    table = f"digits,logistic,dp-sgd,,eps=1,test_accuracy,{missing},%,A table,\n"
    one = joined(tmp_path, table, seeds(0.90, 0.92))
    assert math.isnan(one.pairs[0].standard_error)
    assert shown(one)[0][-1] == "+1.50"
    assert lines(one)[0]["standard_error"] == ""


def test_digits_of_the_paper_are_neither_added_nor_dropped(tmp_path: Path) -> None:
    table = (
        "digits,logistic,dp-sgd,,eps=1,test_accuracy,0.80,,,,A table,\n"
        "digits,logistic,dp-sgd,,eps=8,test_accuracy,1,,,,A table,\n"
        "digits,logistic,dp-adam,,eps=1,test_loss,5.013,.001,3,1/100,A table,\n"
    )
    one = joined(tmp_path, table, seeds(0.9))
    published = [cell[2] for cell in shown(one) if cell[2]]
    assert published == ["80", "100", "0.05013 ± 0.00001"]
    titles = [grid.groups[0].title for grid in comparison_block(one).grids]
    assert titles == ["Test accuracy (%): digits, logistic", "Test loss: digits, logistic"]


def test_a_published_number_without_runs_keeps_its_line(tmp_path: Path) -> None:
    table = (
        "digits,logistic,dp-sgd,,eps=1,test_accuracy,90,,,%,Here,\n"
        "digits,logistic,dp-adam,,eps=1,test_accuracy,91,,,%,Not run,\n"
        "letters,vit,dp-sgd,,eps=1,test_accuracy,92,,,%,Another dataset,\n"
    )
    one = joined(tmp_path, table, [*seeds(0.9), *seeds(0.8, method="stp-adam")])
    found = {line["source"]: (line["panel"], line["ours"]) for line in lines(one)}
    assert found == {
        "Here": ("comparison", "0.9"),
        "Not run": ("comparison", ""),
        "Another dataset": ("", ""),
        "": ("comparison", "0.8"),
    }
    notes = " ".join(comparison_block(one).notes)
    assert "1 published cell has no run in this panel" in notes
    assert "1 further published cell is for datasets or models" in notes
    assert shown(one) == [
        ("dp-sgd", "90.00", "90", "+0.00"),
        ("stp-adam", "80.00", "", ""),
        ("dp-adam", "–", "91", "–"),
    ]


def test_a_variant_is_the_label_of_a_configuration(tmp_path: Path) -> None:
    table = (
        "digits,logistic,dp-pmlf,k = 4,eps=1,test_accuracy,90,,,%,A table,\n"
        "digits,logistic,dp-pmlf,k = 6,eps=1,test_accuracy,91,,,%,A table,\n"
        "digits,logistic,dp-sgd,,eps=1,test_accuracy,80,,,%,A table,\n"
        "digits,logistic,dp-pmlf,,eps=1,test_accuracy,70,,,%,A table,\n"
    )
    rows = [
        *seeds(0.90, method="dp-pmlf", label="k = 2"),
        *seeds(0.94, method="dp-pmlf", label="k = 4"),
        *seeds(0.85, method="dp-sgd", label="the baseline"),
    ]
    ours = [
        pair.ours.sample.mean if pair.ours else None for pair in joined(tmp_path, table, rows).pairs
    ]
    assert ours == [0.94, None, 0.85, None], "one of two labels is never guessed"
    named, unnamed = joined(tmp_path, table, rows[1:]).pairs[0::3]
    assert named.ours is not None
    assert unnamed.ours is None, "the only label is another cell's"


def test_runs_that_failed_are_counted_and_a_nominal_epsilon_is_marked(tmp_path: Path) -> None:
    rows = [*seeds(0.9, 0.9, 0.9), *seeds(0.5, 0.6, method="dp-adam", claim="nominal")]
    rows[2] |= {"status": "diverged", "test_accuracy": ""}
    table = (
        "digits,logistic,dp-sgd,,eps=1,test_accuracy,90,,,%,A table,a remark\n"
        "digits,logistic,dp-adam,,eps=1,test_accuracy,50,,,%,A table,a remark\n"
    )
    one = joined(tmp_path, table, rows)
    content = comparison_block(one)
    cells = [row.cells[0] for row in content.grids[0].rows]
    assert [cell.runs for cell in cells] == ["2/3", ""]
    assert cells[1].mark == "†"
    assert any("nominal ε" in note for note in content.notes)
    assert content.notes.count("The paper: a remark") == 1
    assert [line["claim"] for line in lines(one)] == ["guarantee", "nominal"]


def study(folder: Path, **changes: Any) -> Path:
    path = folder / "studies" / "fifth-paper" / "table1.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({**STUDY, **changes}, sort_keys=False))
    return path


def publish(folder: Path, name: str) -> Path:
    path = folder / "published" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEAD + "digits,logistic,dp-sgd,,eps=1,test_accuracy,90,,,%,Table 1,\n")
    return path


def test_a_table_shows_the_published_numbers_that_it_names(tmp_path: Path) -> None:
    folder, table = tmp_path / "published", publish(tmp_path, "fifth-paper/table1")
    assert not published_tables(load_study(study(tmp_path)), folder)
    one = load_study(study(tmp_path, report=[BESIDE]))
    (found,) = published_tables(one, folder).items()
    assert found == (0, table)
    assert one.report[0].panel == "comparison"
    runs = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, seeds(0.9)))
    curves = read_curves(write_table(tmp_path / "curves.parquet", CURVE_COLUMNS, []))
    (item,) = document(one, runs, curves, {}, folder).items
    assert item.grids[0].rows[0].cells[0].published == "90"


def test_statistics_of_quantities_are_laid_out_as_a_paper_prints_them(tmp_path: Path) -> None:
    names = ("v_private.min", "v_private.max", "m_clipped.min", "m_clipped.max")
    table = "".join(
        f"digits,logistic,dp-sgd,,eps=1,{name},{number}e-8,,,,A table,\n"
        for number, name in enumerate(names, 1)
    )
    one = joined(tmp_path, table, seeds(0.9))
    (grid,) = comparison_block(one).grids
    assert grid.groups[0].headings == ["min", "max"]
    assert [cell[::2] for cell in shown(one)] == [
        ("second moment, with noise", "1 × 10⁻⁸"),
        ("second moment, with noise", "2 × 10⁻⁸"),
        ("first moment, without noise", "3 × 10⁻⁸"),
        ("first moment, without noise", "4 × 10⁻⁸"),
    ]


def test_a_note_is_printed_once_a_report(tmp_path: Path) -> None:
    publish(tmp_path, "fifth-paper/table1")
    report = [{**BESIDE, "panels": name} for name in ("comparison", "again")]
    panels = {"comparison": STUDY["panels"]["comparison"]}
    panels["again"] = panels["comparison"]
    one = load_study(study(tmp_path, panels=panels, report=report))
    rows = [*seeds(0.9), *seeds(0.9, panel="again")]
    runs = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))
    curves = read_curves(write_table(tmp_path / "curves.parquet", CURVE_COLUMNS, []))
    first, second = document(one, runs, curves, {}, tmp_path / "published").items
    assert first.notes
    assert not set(first.notes) & set(second.notes)


def test_a_study_may_name_another_table_or_give_its_path(tmp_path: Path) -> None:
    publish(tmp_path, "fifth-paper/table1")
    other = publish(tmp_path, "sixth-paper/table9")
    item = {**BESIDE, "published": "sixth-paper/table9"}
    one = load_study(study(tmp_path, report=[item, *STUDY["report"]]))
    assert list(published_tables(one, tmp_path / "published").values()) == [other]
    item["published"] = str(other)
    one = load_study(study(tmp_path, report=[item]))
    assert list(published_tables(one, tmp_path / "nowhere").values()) == [other]


def test_a_table_that_is_not_there_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    publish(tmp_path, "fifth-paper/table2")
    item = {**BESIDE, "published": "fifth-paper/tabel2"}
    one = load_study(study(tmp_path, report=[item]))
    with pytest.raises(UserError, match=r"report\.published: .* Did you mean 'fifth-paper/table2'"):
        published_tables(one, tmp_path / "published")


def test_the_command_writes_the_comparison_and_names_a_study_without_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = study(tmp_path)
    runs = write_table(tmp_path / "runs.parquet", RUN_COLUMNS, seeds(0.9, 0.92))
    words = ["compare", "--study", str(path), "--runs", str(runs)]
    words += ["--published", str(tmp_path / "published"), "--out", str(tmp_path / "out.csv")]
    assert main(words) == 2
    assert "names published numbers" in capsys.readouterr().err
    publish(tmp_path, "fifth-paper/table1")
    study(tmp_path, report=[BESIDE])
    assert main(words) == 0
    assert "1 of 1 published numbers" in capsys.readouterr().out
    (line,) = csv.DictReader((tmp_path / "out.csv").open())
    assert (line["published"], line["n"], line["planned"]) == ("0.90", "2", "2")


def test_the_report_shows_the_comparison(tmp_path: Path) -> None:
    publish(tmp_path, "fifth-paper/table1")
    given = {**STUDY, "report": [BESIDE]}
    path, runs, curves = map(str, write_study(tmp_path, seeds(0.9, 0.92), given))
    words = ["report", "--study", path, "--runs", runs, "--curves", curves]
    words += ["--figures", str(tmp_path)]
    words += ["--published", str(tmp_path / "published"), "--out", str(tmp_path / "r.pdf")]
    assert main(words) == 0
    assert (tmp_path / "r.pdf").read_bytes().startswith(b"%PDF")
