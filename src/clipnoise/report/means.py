"""The means of a study's settings as runs of MLflow: the numbers of the report's tables."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime

import pandas as pd

from clipnoise.report.formats import ACCURACY, LOSS, measured_in
from clipnoise.report.hyperparameters import with_tuning
from clipnoise.report.records import NON_PRIVATE, Place, split
from clipnoise.report.statistics import sample
from clipnoise.report.tables import Cell, Row, Table, build_table
from clipnoise.tracking.view import (
    View,
    flatten,
    means_of,
    numbers,
    setting_name,
    with_digest,
    with_remarks,
)

TUNED = "epsilon_with_tuning"
PRIVACY = {  # column → metric
    "epsilon_achieved": "epsilon",
    "epsilon": "epsilon_target",
    "epsilon_with_tuning": "epsilon_with_tuning",
    "delta": "delta",
    "noise_multiplier": "noise_multiplier",
}
NOISE = ("noise_multiplier",)  # all that there is to say where no ε is claimed


def mean_views(runs: pd.DataFrame, experiment: str, report: str, warning: str) -> list[View]:
    """Return a run of MLflow for each method, dataset, model and budget of each panel.

    Args:
        runs: of a study.
        experiment: what MLflow calls the study.
        report: where its report is, for the reader.
        warning: the watermark of the report.

    Returns:
        The views in the report's order, best first within a column of a table. MLflow lists runs
        by their time, the latest first, so each starts a millisecond before the one above it.
    """
    tables = [build_table(one, panel) for (panel,), one in split(runs, "panel")]
    cells = [(table, *item) for table in tables for item in _in_order(table)]
    named = Counter(_name(row, place, cell) for _, row, place, cell in cells)
    moments = [text for text in runs["finished"] if text]
    latest = max(map(datetime.fromisoformat, moments), default=datetime.fromtimestamp(0))
    started = round(latest.timestamp() * 1000)
    said = {"study": experiment, "report": report, "warning": warning}
    views = []
    for number, (table, row, place, cell) in enumerate(cells):
        shared = named[_name(row, place, cell)] > 1
        name = _name(row, place, cell, table.panel if shared else "")
        views.append(_view(table, row, place, cell, started - number, {**said, "setting": name}))
    return views


def _in_order(table: Table) -> Iterator[tuple[Row, Place, Cell]]:
    """Yield the cells of a table column by column, the best first, unfinished ones last."""
    columns: dict[Place, list[tuple[Row, Place, Cell]]] = {}
    for item in table.cells():
        columns.setdefault(item[1], []).append(item)

    def rank(item: tuple[Row, Place, Cell]) -> tuple[bool, float]:
        found = item[2].sample
        return not found.complete, -table.metric.sign * found.mean if found.n else math.inf

    for column in columns.values():
        yield from sorted(column, key=rank)


def _name(row: Row, place: Place, cell: Cell, panel: str = "") -> str:
    """Return what a mean is called; of a dataset for which another stands in, with both."""
    dataset, model, budget = place
    data = _data(place, cell)
    both = dataset if data == dataset else f"{data} for {dataset}"
    return setting_name(row.label, both, model, _budget(budget), panel)


def _data(place: Place, cell: Cell) -> str:
    """Return the id of the dataset that was loaded, as runs name it; published rows have none."""
    return str(cell.runs["data"].max()) or place[0]


def _budget(label: str) -> str:
    return label.replace("eps=", "ε=").replace("sigma=", "σ=")


def _view(
    table: Table,
    row: Row,
    place: Place,
    cell: Cell,
    started: int,
    said: Mapping[str, str],
) -> View:
    _, model, budget = place
    runs = f"{cell.sample.runs} runs" if cell.sample.runs else ""
    identity = "\n".join([said["study"], table.panel, row.method, said["setting"]])
    tags = {
        **said,
        "panel": table.panel,
        "method": row.method,
        "label": row.label,
        "dataset": _data(place, cell),
        "model": model,
        "budget": _budget(budget),
        "claim": NON_PRIVATE if cell.oracle else cell.claim,
        "adjacency": str(cell.runs["adjacency"].max()),
        "runs": f"{cell.sample.n} of {cell.sample.planned}",
        "hash": f"mean-{hashlib.sha256(identity.encode()).hexdigest()[:12]}",
        "mlflow.source.name": "clipnoise",
        "mlflow.source.type": "JOB",
    }
    view = View(
        experiment=means_of(said["study"]),
        name=with_remarks(said["setting"], tags, runs),
        tags={key: value for key, value in tags.items() if value},
        params=_params(cell.runs),
        started=started,
        status="FINISHED" if cell.sample.complete else "FAILED",
        finished=started,
        finals=tuple(numbers(_values(cell), started)),
    )
    return with_digest(view)


def _params(runs: pd.DataFrame) -> dict[str, str]:
    """Return the hyper-parameters by name; where searches chose differently, all values."""
    texts = filter(None, runs["hyperparameters"].drop_duplicates())
    each = [dict(flatten(json.loads(text))) for text in texts]
    return {
        name: ", ".join(dict.fromkeys(one[name] for one in each if name in one))
        for name in dict.fromkeys(name for one in each for name in one)
    }


def _values(cell: Cell) -> dict[str, float]:
    """Return mean and standard deviation of each metric, n, and the privacy spent."""
    values = {"seeds/n": float(cell.sample.n), "seeds/planned": float(cell.sample.planned)}
    for metric in (ACCURACY, LOSS, *measured_in(cell.runs)):
        found = sample(cell.runs, metric)
        values |= {f"mean/{metric.column}": found.mean, f"std/{metric.column}": found.deviation}
    claimed = PRIVACY if cell.claim != NON_PRIVATE and not cell.oracle else NOISE
    spent = {name: float(cell.runs[name].max()) for name in claimed}
    if TUNED in spent:
        spent[TUNED], _ = with_tuning(cell.runs)
    return values | {f"privacy/{PRIVACY[name]}": value for name, value in spent.items()}
