"""The means of a study's settings as runs of MLflow: the numbers of the report's tables."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime

import pandas as pd

from clipnoise.report.formats import ACCURACY, LOSS, measured_in
from clipnoise.report.hyperparameters import with_tuning
from clipnoise.report.records import NON_PRIVATE, Place, split
from clipnoise.report.statistics import sample
from clipnoise.report.tables import Cell, Row, Table, build_table
from clipnoise.tracking.view import View, flatten, means_of, numbers, with_digest

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
    moments = [text for text in runs["finished"] if text]
    latest = max(map(datetime.fromisoformat, moments), default=datetime.fromtimestamp(0))
    started = round(latest.timestamp() * 1000)
    said = {"study": experiment, "report": report, "warning": warning}
    tables = [build_table(one, panel) for (panel,), one in split(runs, "panel")]
    cells = ((table, *item) for table in tables for item in _in_order(table))
    return [_view(*item, started - number, said) for number, item in enumerate(cells)]


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


def _view(
    table: Table, row: Row, place: Place, cell: Cell, started: int, said: Mapping[str, str]
) -> View:
    dataset, model, budget = place
    budget = budget.replace("eps=", "ε=").replace("sigma=", "σ=")
    claim = "oracle" if cell.oracle else cell.claim
    remarks = [
        claim if claim in ("nominal", "oracle") else "",
        f"{cell.adjacency} adjacency" if cell.adjacency else "",
        f"{cell.sample.runs} runs" if cell.sample.runs else "",
        "not evidence" if said["warning"] else "",
    ]
    name = " · ".join([row.label, model, dataset, budget])
    remark = ", ".join(filter(None, remarks))
    identity = "\n".join([said["study"], table.panel, row.method, name])
    tags = {
        **said,
        "panel": table.panel,
        "method": row.method,
        "label": row.label,
        "dataset": dataset,
        "model": model,
        "budget": budget,
        "claim": claim,
        "adjacency": str(cell.runs["adjacency"].max()),
        "runs": f"{cell.sample.n} of {cell.sample.planned}",
        "hash": f"mean-{hashlib.sha256(identity.encode()).hexdigest()[:12]}",
        "mlflow.source.name": "clipnoise",
        "mlflow.source.type": "JOB",
    }
    view = View(
        experiment=means_of(said["study"]),
        name=f"{name} ({remark})" if remark else name,
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
