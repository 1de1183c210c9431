"""The tables of runs and curves: what is written is read back, with types and meanings."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from reporting_data import run_row

from clipnoise.run.outcome import Chance, Histogram, Predicted, Recorded
from clipnoise.studies.columns import (
    ALL,
    CURVE_COLUMNS,
    PUBLISHED,
    RUN_COLUMNS,
    FoundChoice,
    Scored,
    read_table,
    require_types,
    table,
    to_csv,
    to_parquet,
)

CHOICE = FoundChoice(
    metric="validation_accuracy",
    best=(Scored(hyperparameters='{"betas": [0.9, 0.99]}', score=0.8),),
    edges=("clip_norm",),
    seeds=2,
)
RECORDED = Recorded(
    step=3,
    phi=1e-6,
    statistics={"v_private.median": 0.1, "v_private.max": None},
    histograms={"first": Histogram(low=0, high=1, log10=False, counts={"m_private": (1.0, 2.0)})},
    sorted={"v_private": (0.1, 0.2)},
    series={"step": (1.0, 2.0), "negative_fraction": (None, 0.5)},
)
CHANCE = Chance(name="majority class", levels={"test_accuracy": 0.25})
PREDICTED = Predicted(
    classes=(), column="sex", groups={"f": ((3, 1), (0, 2)), "m": ((1, 1), (1, 4))}
)
NESTED = {"choice": CHOICE, "diagnostics": RECORDED, "chance": CHANCE, "confusion": PREDICTED}


def test_nested_values_and_gaps_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [run_row(**NESTED), run_row(seed=2, test_loss=math.nan)]
    path = tmp_path / "runs.parquet"
    path.write_bytes(to_parquet(table(RUN_COLUMNS, rows)))
    first, second = read_table(path, RUN_COLUMNS).to_dict("records")
    assert {name: first[name] for name in NESTED} == NESTED
    assert [second[name] for name in NESTED] == [None] * len(NESTED)
    assert (first["reason"], first["test_loss"], first["seed"]) == ("", 0.3, 1)
    assert math.isnan(second["test_loss"])
    assert math.isnan(first["microbatch_size"])


def test_the_csv_holds_the_same_without_formulas() -> None:
    made = table(RUN_COLUMNS, [run_row(**NESTED, label="=1+1")])
    (row,) = csv.DictReader(io.StringIO(to_csv(made)))
    assert json.loads(row["chance"])["levels"] == CHANCE.levels
    assert (row["label"], row["caveat"], row["seed"]) == ("'=1+1", "", "1")
    assert float(row["delta"]) == 1 / 1257


def test_a_file_says_of_each_column_what_it_is_and_in_which_unit(tmp_path: Path) -> None:
    path = tmp_path / "runs.parquet"
    path.write_bytes(to_parquet(table(RUN_COLUMNS, [])))
    fields = pq.read_schema(path)
    assert fields.field("cpu_seconds").metadata[b"unit"] == b"s"
    for name in RUN_COLUMNS:
        assert fields.field(name).metadata[b"about"].decode().endswith(".")


def test_a_name_has_one_type_in_every_table() -> None:
    for columns in (RUN_COLUMNS, CURVE_COLUMNS, PUBLISHED):
        assert {name: one.kind for name, one in columns.items()} == {
            name: ALL[name].kind for name in columns
        }


@pytest.mark.parametrize("wrong", [{"seconds": "4"}, {"host": 1}, {"seed": 1.5}, {"choice": {}}])
def test_a_value_of_a_wrong_type_is_refused_by_its_column(wrong: dict[str, Any]) -> None:
    require_types(run_row(**NESTED) | {"epsilon": None, "seconds": 4})
    with pytest.raises(TypeError, match=next(iter(wrong))):
        require_types(wrong)
