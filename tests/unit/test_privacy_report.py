"""The privacy statement of a report tells apart what differs, in the units of what is protected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from reporting_data import run_row, write_table

from clipnoise.report.blocks import ListBlock
from clipnoise.report.hyperparameters import configurations
from clipnoise.report.privacy import privacy_statement
from clipnoise.report.records import read_runs
from clipnoise.run.spec import RunSpec, from_mapping
from clipnoise.studies.columns import RUN_COLUMNS


def spec(dataset: Any = "digits", model: Any = "logistic", **privacy: Any) -> RunSpec:
    return from_mapping(
        {
            "dataset": dataset,
            "model": model,
            "method": {"id": "dp-sgd", "learning_rate": 1.0, "clip_norm": 1.0},
            "training": {"expected_batch_size": 100, "epochs": 2},
            "seed": 1,
            "privacy": {"epsilon": 1.0, "delta": 1e-5, **privacy},
        }
    )


def frame(folder: Path, rows: list[dict[str, Any]]) -> pd.DataFrame:
    return read_runs(write_table(folder / "runs.parquet", RUN_COLUMNS, rows))


def rows_of(specs: list[RunSpec], **values: Any) -> list[dict[str, Any]]:
    """Return a row for a run of each spec, with σ = 1, 2, …"""
    return [
        run_row(hash=one.hash, noise_multiplier=sigma, **values)
        for sigma, one in enumerate(specs, 1)
    ]


def numbers(runs: pd.DataFrame, *specs: RunSpec) -> ListBlock:
    """Return the table below the privacy statement."""
    table = privacy_statement(runs, {one.hash: one for one in specs})[-1]
    assert isinstance(table, ListBlock)
    return table


def test_rows_that_differ_in_the_correlation_of_noise_name_it(tmp_path: Path) -> None:
    noises = [{"kind": "independent"}, {"kind": "banded", "bands": 4}]
    specs = [spec(sampler="cyclic", noise=noise) for noise in noises]
    table = numbers(frame(tmp_path, rows_of(specs, sampler="cyclic")), *specs)
    assert table.heads == ["noise", "σ"]
    assert table.rows == [["–", "1"], ["banded (bands 4)", "2"]]


def test_rows_of_graphs_give_the_bound_on_degrees_and_the_unit_of_the_noise(
    tmp_path: Path,
) -> None:
    specs = [spec({"id": "synthetic-graph", "degree": k}, "gcn", accountant="rdp") for k in (3, 7)]
    table = numbers(frame(tmp_path, rows_of(specs, unit="node")), *specs)
    assert table.heads == ["σ", "K"]
    assert table.rows == [["1", "3"], ["2", "7"]]
    assert "σ is in units of 2(K+1)C" in table.notes[0]


def test_independent_noise_on_examples_has_no_further_column(tmp_path: Path) -> None:
    table = numbers(frame(tmp_path, [run_row(hash=spec().hash)]), spec())
    assert not {"noise", "K"} & set(table.heads)
    assert "K" not in table.notes[0]


def test_what_is_counted_and_clipped_has_the_unit_of_the_statement(tmp_path: Path) -> None:
    rule = {"kind": "hard", "gamma": None, "per": "example"}
    given = json.dumps({"id": "dp-fedavg", "clip_rule": rule})
    for unit, named in (("user", "user"), ("", "example")):
        row = run_row(unit=unit, adjacency="add-remove-user", hyperparameters=given)
        runs = frame(tmp_path, [row])
        assert f"n: private training {named}s." in numbers(runs).notes[0]
        assert f"clip_rule hard (per {named})" in configurations(runs, {}).rows[0][2]
