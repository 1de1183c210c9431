"""How clearly hyper-parameters were chosen: the best and the next, and what validation can tell."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pandas as pd

from clipnoise.report.compact import Cells, compact
from clipnoise.report.formats import ACCURACY, DASH, LOSS, budget, count, shown
from clipnoise.report.statistics import sampling_error

PLACE = ["panel", "dataset", "model", "label", "budget"]
HEADS = (
    *("panel", "dataset", "model", "method", "budget", "chosen", "score", "next best", "its score"),
    *("tried", "seeds", "validation examples", "choice"),
)
MOST = 36  # rows of the table; of more choices there are only counts
CLEAR, TIED, EDGE, PENDING = "clear", "tied", "at an edge", "not made yet"
SCORES = (
    "Score: mean validation accuracy in %, or validation loss, over the tuning seeds. Tied: the "
    "next best is nearer than one standard error of such an accuracy, √(p(1−p)/n) for n validation "
    "examples, so that another validation set may well choose otherwise; losses are not tested."
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

    Args:
        runs: runs.csv.

    Returns:
        `table`, without rows where nothing is tuned, and `notes` on it. Of many choices the table
        counts how many were clear.
    """
    tuned = runs[runs["configurations"].notna()]
    cells = [(tuple(map(str, key)), cell) for key, cell in tuned.groupby(PLACE, sort=False)]
    edges = sum(EDGE in clarity(cell) for _, cell in cells)
    warning = f"WARNING: {edges} of {count(len(cells), 'choice')} at an edge of the grid: {BEYOND}"
    notes = [*([warning] if edges else []), *([SCORES] if cells else [])]
    if len(cells) > MOST:
        return {"table": _counted(cells), "notes": notes}
    return {"table": compact(HEADS, (_row(*cell) for cell in cells)), "notes": notes}


def _made(cell: pd.DataFrame) -> dict[str, Any] | None:
    """Return what `clipnoise collect` found of a choice, or None before it is made."""
    text = next((text for text in cell["choice"] if text), "")
    made: dict[str, Any] = json.loads(text) if text else {}
    return made if made.get("best") else None


def _row(key: tuple[str, ...], cell: pd.DataFrame) -> Cells:
    *place, text = key
    made = _made(cell) or {"best": [], "edges": [], "seeds": DASH, "metric": ""}
    metric = LOSS if made["metric"].endswith("loss") else ACCURACY
    found = [(_words(one["values"]), metric.show(one["score"])) for one in made["best"]]
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
    for key, cell in cells:
        counts.setdefault(key[3], Counter()).update(["choices", *clarity(cell)])
    heads = ("method", "choices", CLEAR, TIED, EDGE, PENDING)
    rows = [
        tuple((word,) for word in (label, *(str(count[head]) for head in heads[1:])))
        for label, count in counts.items()
    ]
    return compact(heads, rows, numbers=len(heads) - 1)


def _words(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in values.items())
