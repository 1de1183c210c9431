"""How clearly hyper-parameters were chosen: the best and the next, and what validation can tell."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from typing import Any

import pandas as pd

from clipnoise.report.compact import Cells, compact
from clipnoise.report.formats import ACCURACY, DASH, LOSS, Metric, budget, count, shown
from clipnoise.report.statistics import sampling_error

PLACE = ["panel", "dataset", "model", "label", "budget"]
HEADS = (
    *("panel", "dataset", "model", "method", "budget", "chosen", "score", "next best", "its score"),
    *("tried", "seeds", "validation examples", "choice"),
)
MOST = 12  # rows of the table
IMPLIED = {1: 0, 2: 0}  # datasets and models, where they follow from the panel
CLEAR, TIED, EDGE, PENDING = "clear", "tied", "at an edge", "not made yet"
SCORES = (
    "Score: mean validation accuracy in %, or validation loss, over the tuning seeds. Tied: the "
    "next best is nearer than one standard error of such an accuracy, √(p(1−p)/n) for n validation "
    "examples, so that another validation set may well choose otherwise; losses are not tested."
)
EVERY = (
    "Median lead: of the chosen one over the next best, in points or loss. Every choice with its "
    "scores is in the column `choice` of the study's runs.csv."
)
BEYOND = (
    "the smallest or the largest value tried, so a value beyond the grid may be better, and the "
    "method may lose only for that."
)


def clarity(cell: pd.DataFrame) -> tuple[str, ...]:
    """Return how clear the choice behind a configuration was; nothing where none was made.

    Args:
        cell: its rows of runs.csv.
    """
    if cell["configurations"].isna().all():
        return ()
    made = _made(cell)
    if made is None:
        return (PENDING,)
    best = made["best"]
    tied = made["metric"] == ACCURACY.column.replace("test", "validation") and len(best) > 1
    error = sampling_error(best[0]["score"], cell["validation_examples"].iloc[0]) if tied else 0.0
    tied = tied and best[0]["score"] - best[1]["score"] < error
    doubts = (*((TIED,) if tied else ()), *((EDGE,) if made["edges"] else ()))
    return doubts or (CLEAR,)


def choices_data(runs: pd.DataFrame) -> dict[str, Any]:
    """Return what tuning chose, beside the next best, as plain data for the PDF template.

    More than `MOST` choices have no row each: they are counted by method.

    Args:
        runs: runs.csv.

    Returns:
        `table`, without rows where nothing is tuned, and `notes` on it. Of many choices the table
        counts how many were clear.
    """
    groups = runs[runs["configurations"].notna()].groupby(PLACE, sort=False)
    cells = [(tuple(map(str, key)), cell) for key, cell in groups]
    edges = sum(EDGE in clarity(cell) for _, cell in cells)
    warning = f"WARNING: {edges} of {count(len(cells), 'choice')} at an edge of the grid: {BEYOND}"
    notes = [*([warning] if edges else []), *([SCORES] if cells else [])]
    if len(cells) > MOST:
        return {"table": _counted(cells), "notes": [*notes, EVERY]}
    rows = [_row(*cell) for cell in cells]
    return {"table": compact(HEADS, rows, implied=IMPLIED), "notes": notes}


def _metric(made: dict[str, Any]) -> Metric:
    return LOSS if made["metric"].endswith("loss") else ACCURACY


def _made(cell: pd.DataFrame) -> dict[str, Any] | None:
    """Return what `clipnoise collect` found of a choice, or None before it is made."""
    text = next((text for text in cell["choice"] if text), "")
    made: dict[str, Any] = json.loads(text) if text else {}
    return made if made.get("best") else None


def _row(key: tuple[str, ...], cell: pd.DataFrame) -> Cells:
    *place, text = key
    made = _made(cell) or {"best": [], "edges": [], "seeds": DASH, "metric": ""}
    found = [(_words(one["values"]), _metric(made).show(one["score"])) for one in made["best"]]
    best, runner_up = [*found, (DASH, DASH), (DASH, DASH)][:2]
    edge = f"{EDGE} of {', '.join(made['edges'])}"
    remarks = [edge if one == EDGE else one for one in clarity(cell)]
    words = (
        *(*place, budget(text), *best, *runner_up),
        *(f"{cell['configurations'].iloc[0]:.0f}", str(made["seeds"])),
        *(f"{cell['validation_examples'].iloc[0]:,.0f}", ", ".join(remarks)),
    )
    return tuple((word,) for word in words)


def _counted(cells: list[tuple[tuple[str, ...], pd.DataFrame]]) -> dict[str, Any]:
    """Return how many choices of each method were clear, tied, at an edge, and not made yet."""
    counts: dict[str, Counter[str]] = {}
    leads: dict[str, list[tuple[float, Metric]]] = {}
    for key, cell in cells:
        counts.setdefault(key[3], Counter()).update(["choices", *clarity(cell)])
        made = _made(cell)
        if made is not None and len(made["best"]) > 1:
            best, runner_up = (one["score"] for one in made["best"])
            leads.setdefault(key[3], []).append((abs(best - runner_up), _metric(made)))
    heads = ("method", "choices", CLEAR, TIED, EDGE, PENDING, "median lead")
    rows = []
    for label, count_of in counts.items():
        found = leads.get(label, [])
        lead = found[0][1].show(statistics.median(lead for lead, _ in found)) if found else DASH
        words = (label, *(str(count_of[head]) for head in heads[1:-1]), lead)
        rows.append(tuple((word,) for word in words))
    return compact(heads, rows, numbers=len(heads) - 1)


def _words(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in values.items())
