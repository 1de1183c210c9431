"""Reading the tables that reports are made from: runs.csv and curves.csv of a study."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from clipnoise.data.measures import MEASURES, measured_columns
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.studies.collect import CURVE_COLUMNS, RUN_COLUMNS, TEXT, FoundChoice, collect
from clipnoise.studies.study import Study

NON_PRIVATE = "non-private"
ADJACENCY = "add-remove"  # ε under any other adjacency is marked and not compared
PLACE = ["dataset", "model", "budget", "method", "label"]  # identifies a configuration
STATUSES = ("completed", "diverged", "missing", "corrupt")

Task = tuple[str, str]  # dataset and model
Place = tuple[str, str, str]  # dataset, model, budget
Key = tuple[str, str]  # method and label


def read_runs(path: Path) -> pd.DataFrame:
    """Read runs.csv: one row per planned run, in the order of the study.

    Args:
        path: the file that `clipnoise collect` wrote.

    Returns:
        The columns of runs.csv; numbers as float64 with NaN where there is none, the rest as text.
        Statistics of diagnostics are columns of their own, such as `v_private.median`.

    Raises:
        UserError: the file is missing, lacks a column, or holds an unknown status or a malformed
            number.
    """
    return _runs(path, path)


def collected(study: Study, results: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs and the curves of a study that there are now.

    Args:
        study: every planned run gets a row, also if its result is missing or damaged.
        results: the folder of results.
    """
    runs, curves = map(io.StringIO, collect(study, results))
    return _runs(runs, results), _read(curves, results, CURVE_COLUMNS)


def _runs(source: Path | io.StringIO, path: Path) -> pd.DataFrame:
    runs = _read(source, path, RUN_COLUMNS)
    parsed = [json.loads(text)["statistics"] if text else {} for text in runs["diagnostics"]]
    runs = pd.concat([runs, pd.DataFrame(parsed, index=runs.index, dtype=float)], axis=1)
    for status in set(runs["status"]) - set(STATUSES):
        raise UserError(f"{path}: status: {status!r}. Allowed: {', '.join(STATUSES)}.")
    return runs


def read_curves(path: Path) -> pd.DataFrame:
    """Read curves.csv: one row per evaluation of every finished run.

    Args:
        path: the file that `clipnoise collect` wrote.

    Returns:
        Its columns, as from `read_runs`.

    Raises:
        UserError: the file is missing, lacks a column, or holds a malformed number.
    """
    return _read(path, path, CURVE_COLUMNS)


def _read(source: Path | io.StringIO, path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read everything as text first: a label may be called `NA`, a hash may look like a number.

    The path is for error messages.
    """
    try:
        frame = pd.read_csv(source, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. `clipnoise collect` writes it.") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a CSV table: {error}") from None
    for column in columns:
        if column not in frame.columns:
            raise UserError(f"{path}: no column {column!r}. `clipnoise collect` writes it again.")
    more = [name for name in measured_columns(MEASURES) if name in frame.columns]
    for column in [*columns, *more]:
        if column in TEXT:
            continue
        try:
            frame[column] = [float(text) if text else math.nan for text in frame[column]]
        except ValueError as error:
            raise UserError(f"{path}: {column}: {error}") from None
    return frame


def found_choice(text: str) -> FoundChoice | None:
    """Return what a search found, from the column `choice`; None before its choice is made."""
    return parse(FoundChoice, json.loads(text), file="runs.csv", key="choice") if text else None


def chance(runs: pd.DataFrame, column: str) -> tuple[str, float]:
    """Return what the best constant prediction is called and its level, where all runs agree.

    It is measured on the test split. Without it, the name is empty and the level nan.

    Args:
        runs: of one dataset and model.
        column: the metric.
    """
    texts = {text for text in runs.get("chance", default=pd.Series(dtype=str)) if text}
    if len(texts) != 1:
        return "", math.nan
    found = json.loads(texts.pop())
    return (found["name"], float(found[column])) if column in found else ("", math.nan)


def of_panels(rows: pd.DataFrame, panels: Sequence[str]) -> pd.DataFrame:
    """Return the rows of some panels, once each, under the name of the first panel."""
    shown = rows[rows["panel"].isin(panels)]
    return shown if len(panels) == 1 else shown.assign(panel=panels[0]).drop_duplicates()


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
