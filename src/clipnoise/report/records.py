"""Reading the tables that reports are made from: runs.parquet and curves.parquet of a study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from clipnoise.errors import UserError
from clipnoise.studies.collect import collect
from clipnoise.studies.columns import (
    CURVE_COLUMNS,
    MEASURED,
    NESTED,
    PUBLISHED,
    RUN_COLUMNS,
    frame,
    read_table,
    table,
)
from clipnoise.studies.study import Study

NON_PRIVATE = "non-private"
PLACE = ["dataset", "model", "budget", "method", "label"]  # identifies a configuration
STATUSES = ("completed", "diverged", "missing", "corrupt")

Task = tuple[str, str]  # dataset and model
Place = tuple[str, str, str]  # dataset, model, budget
Key = tuple[str, str]  # method and label


def read_runs(path: Path) -> pd.DataFrame:
    """Read the runs of a study: one row per planned run, in the order of the study.

    Args:
        path: runs.parquet of `clipnoise collect`, or the Parquet file of `clipnoise publish`.

    Returns:
        Its columns, as from `columns.frame`. Statistics of diagnostics are columns of their own,
        such as `v_private.median`. Published runs have no folder.

    Raises:
        UserError: there is no such table in the file, or it holds an unknown status.
    """
    found = read_table(path, RUN_COLUMNS, PUBLISHED)
    runs = found if "folder" in found else published_runs(found)
    for status in set(runs["status"]) - set(STATUSES):
        raise UserError(f"{path}: status: {status!r}. Allowed: {', '.join(STATUSES)}.")
    return _with_statistics(runs)


def collected(study: Study, results: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs and the curves of a study that there are now.

    Args:
        study: every planned run gets a row, also if its result is missing or damaged.
        results: the folder of results.
    """
    runs, curves = map(frame, collect(study, results))
    return _with_statistics(runs), curves


def published_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return published rows with the columns of runs.parquet.

    What is not published is empty: processor times, machines, and how hyper-parameters were found.

    Args:
        rows: what `publication.read_run_rows` returned.
    """
    private = rows["claim"] != NON_PRIVATE
    noise = "sigma=" + rows["noise_multiplier"].map("{:g}".format)
    budgets = ("eps=" + rows["epsilon"].map("{:g}".format)).where(rows["epsilon"].notna(), noise)
    known = rows.assign(
        budget=budgets.where(private, NON_PRIVATE),
        git_commit=rows["commit"],
        rank_by=rows["metric"].where(rows["metric"].isin(MEASURED), ""),
        **{name: rows["value"].where(rows["metric"] == name) for name in rows["metric"].unique()},
    )
    more = {name: one for name, one in MEASURED.items() if name in known}
    return frame(table({**RUN_COLUMNS, **more}, known.to_dict("records")))


def _with_statistics(runs: pd.DataFrame) -> pd.DataFrame:
    found = [one.statistics if one else {} for one in runs["diagnostics"]]
    return pd.concat([runs, pd.DataFrame(found, index=runs.index, dtype=float)], axis=1)


def read_curves(path: Path) -> pd.DataFrame:
    """Read curves.parquet: one row per evaluation of every finished run, as `read_runs` does."""
    return read_table(path, CURVE_COLUMNS)


def chance(runs: pd.DataFrame, column: str) -> tuple[str, float]:
    """Return what the best constant prediction is called and its level, where all runs agree.

    It is measured on the test split. Without it, the name is empty and the level nan.

    Args:
        runs: of one dataset and model.
        column: the metric.
    """
    found = runs.get("chance", default=pd.Series(dtype=object))
    first, *others = found.dropna().tolist() or [None]
    if first is None or column not in first.levels or any(one != first for one in others):
        return "", math.nan
    return first.name, first.levels[column]


def of_panels(rows: pd.DataFrame, panels: Sequence[str]) -> pd.DataFrame:
    """Return the rows of some panels, once each, under the name of the first panel."""
    shown = rows[rows["panel"].isin(panels)]
    if len(panels) == 1:
        return shown
    plain = [name for name in shown if name not in NESTED]
    return shown.assign(panel=panels[0]).drop_duplicates(plain)


def split(rows: pd.DataFrame, *columns: str) -> list[tuple[Any, pd.DataFrame]]:
    """Return the rows of each combination of values of some columns, in the order of the study.

    Each comes with its values, as a tuple of text.
    """
    groups = rows.groupby(list(columns), sort=False)
    return [(tuple(map(str, key)), part) for key, part in groups]


def by_key(runs: pd.DataFrame) -> list[tuple[Key, pd.DataFrame]]:
    """Return the rows of each method and label."""
    return split(runs, "method", "label")


def where(rows: pd.DataFrame, **values: object) -> pd.DataFrame:
    """Return the rows that have these values in the columns of these names."""
    for column, value in values.items():
        rows = rows[rows[column] == value]
    return rows


def is_private(runs: pd.DataFrame) -> pd.Series:
    """Return which rows have a privacy budget, missing runs included."""
    return runs["budget"] != NON_PRIVATE


def private_or_all(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a privacy budget, or all where none has one."""
    private = runs[is_private(runs)]
    return private if len(private) else runs
