"""Published numbers: every table of the papers is there, and errors in a file are named."""

from __future__ import annotations

import csv
from decimal import Decimal
from pathlib import Path

import pytest

from clipnoise.errors import UserError
from clipnoise.methods.base import methods
from clipnoise.papers.base import read_published as read_quantities
from clipnoise.report.published import PublishedCell, read_published

FOLDER = Path(__file__).parents[2] / "reports" / "published"
FILES = sorted(FOLDER.rglob("*.csv"))

# Rows × columns as the papers print them, dashes left out; True where every cell has its deviation.
TABLES = {
    "adadps/table1": (3 * 2, True),
    "adadps/table2": (3 * 3 - 1, False),
    "adadps/table3": (2 * 3, False),
    "adadps/table4": (2 * 4, True),
    "adadps/table5": (5 * 5 * 2, False),
    "adadps/table6": (5 * 5, False),
    "adadps/table7": (3 * 3, False),
    "adadps/table8": (3 * 3, False),
    "adadps/table9": (4 * 4 - 1, False),
    "adadps/table10": (2 * 4, False),
    "design-principles/fig3": (3 + 7 * 3, False),
    "dp-adambc/table1": (4 * 3 * 3, True),
    "dp-adambc/table2": (8 * 6, False),
    "dp-pmlf/table1": (4 * 4 * 2, True),
    "dp-pmlf/table2": (4 * 4 * 2, True),
    "dp-pmlf/table3": (4 * 4 * 2, True),
    "dp-pmlf/table4": (8 * 2 * 4, True),
}
QUANTITIES = {"dp-adambc/tables3-5": 3 * 6 * 4, "design-principles/fig2": 9}
HEAD = "dataset,model,method,budget,metric,mean,source\n"
GOOD = "mnist,vit,dp-sgd,eps=1,test_accuracy,91.50,A paper\n"


def is_table(path: Path) -> bool:
    """Return whether a file is a table; the others hold the quantities of an experiment."""
    with path.open() as stream:
        return "quantity" not in next(csv.reader(stream))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_published_file_reads(path: Path) -> None:
    if is_table(path):
        known = {*methods(), "none"}
        for cell in read_published(path):
            assert cell.method in known
            assert cell.std is None or cell.n, "a deviation says over how many runs it is"
    else:
        read_quantities(path)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_of_the_papers_is_there_with_all_its_cells(name: str) -> None:
    count, deviations = TABLES[name]
    cells = read_published(FOLDER / f"{name}.csv")
    cells = tuple(cell for cell in cells if "Published as " not in cell.note)  # repeated
    assert len(cells) == count
    assert all((cell.std is not None) == deviations for cell in cells)
    table = name.rpartition("/")[2].replace("table", "Table ").replace("fig", "Figure ")
    assert all(f"{table}:" in cell.source for cell in cells)


@pytest.mark.parametrize("name", QUANTITIES)
def test_tables_that_are_computed_here_have_all_their_cells(name: str) -> None:
    assert len(read_quantities(FOLDER / f"{name}.csv")) == QUANTITIES[name]


def test_one_number_is_the_same_wherever_a_paper_repeats_it() -> None:
    def at(name: str, **wanted: str) -> set[Decimal]:
        cells = read_published(FOLDER / f"adadps/{name}.csv")
        return {c.value for c in cells if all(getattr(c, k) == v for k, v in wanted.items())}

    autoencoder = {"model": "autoencoder", "budget": "sigma=1"}
    for method in ("dp-sgd", "dp-adam", "adadps-rmsprop"):
        assert at("table1", method=method, **autoencoder) == at(
            "table6", method=method, **autoencoder
        )
    for table in ("table7", "table8"):
        assert at(table, method="dp-sgd", dataset="imdb-bow") == at(
            "table6", method="dp-sgd", dataset="imdb-bow"
        )


def read(tmp_path: Path, text: str) -> tuple[PublishedCell, ...]:
    path = tmp_path / "own.csv"
    path.write_text(text)
    return read_published(path)


def test_another_paper_may_use_ids_of_its_own(tmp_path: Path) -> None:
    text = "budget,dataset,model,method,metric,mean,std,n,unit,source\n"
    (cell,) = read(tmp_path, text + "eps=2,my-data,my-net,my-method,test_f1,91.50,0.25,3,%,Mine\n")
    assert (cell.dataset, cell.method, cell.metric) == ("my-data", "my-method", "test_f1")
    assert str(cell.value) == "0.9150", "in the metric's own unit, with the digits printed"
    assert cell.deviation == Decimal("0.0025")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + GOOD.replace("mnist", "MNIST"), r"own\.csv, line 2: dataset: .*, got 'MNIST'"),
        (HEAD + GOOD.replace("91.50", "ninety"), r"line 2: mean: .*decimal, got 'ninety'"),
        (HEAD + GOOD.replace("91.50", "nan"), r"line 2: mean: .*, got 'nan'"),
        (HEAD + GOOD.replace("eps=1", "eps=1.0"), r"line 2: budget: .*expected 'eps=1'"),
        (HEAD + GOOD.replace("eps=1", "ε = 1"), r"line 2: budget: written eps=1, sigma=0\.5"),
        (HEAD + GOOD.replace(",A paper", ","), r"line 2: source: required"),
        (HEAD + GOOD + GOOD, r"line 3: the same dataset, .* as line 2"),
        (HEAD.replace("mean", "men") + GOOD, r"men: unknown key\. Did you mean 'mean'\?"),
        (
            HEAD.replace("source", "source,unit") + GOOD.replace("paper", "paper,percent"),
            r"line 2: unit: .*'%'.*, got 'percent'",
        ),
        (HEAD + GOOD.replace("paper", "paper,5"), r"beyond the last column: unknown key"),
        (HEAD, r"own\.csv: no cells\. Columns: dataset, model"),
        ("", r"own\.csv: no cells"),
    ],
)
def test_a_wrong_file_is_refused_with_line_column_and_value(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.csv: no such file"):
        read_published(tmp_path / "gone.csv")
