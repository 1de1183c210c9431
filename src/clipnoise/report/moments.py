"""What diagnostics saw of the moments, read back from runs.csv, and its table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pandas as pd

from clipnoise.report.formats import DASH, budget, count, significant
from clipnoise.report.records import PLACE
from clipnoise.studies.study import ReportItem

HEADS = ("configuration", "quantity", "min", "q1", "median", "q3", "max", "mean")
QUANTITIES = {
    "m_clipped": "first moment, without noise",
    "m_private": "first moment, with noise",
    "v_clipped": "second moment, without noise",
    "v_private": "second moment, with noise",
    "v_corrected": "second moment, corrected",
    "update_clipped": "update, clean second moment",
    "update_private": "update, with noise",
    "update_corrected": "update, corrected",
    "negative_fraction": "share of coordinates below Φ",
    "clipped_gradient_norm": "norm of mean clipped gradient / C",
}
WITHOUT_NOISE = {
    "m_clipped": "first moment",
    "v_clipped": "second moment",
    "update_clipped": "update",
}


@dataclass(frozen=True)
class Seen:
    """What diagnostics saw of one configuration.

    Attributes:
        method: its id.
        label: its label.
        title: the configuration in words.
        values: the summary's diagnostics, of the first of its seeds that has some.
        seed: that seed.
        runs: rows of runs.csv, of every seed.
    """

    method: str
    label: str
    title: str
    values: dict[str, Any]
    seed: int
    runs: pd.DataFrame


def seen(runs: pd.DataFrame) -> list[Seen]:
    """Return what diagnostics saw, once for each configuration that has some, in study order.

    Args:
        runs: rows of runs.csv.
    """
    places = runs[["dataset", "model"]].drop_duplicates()
    found = []
    for key, own in runs[runs["diagnostics"] != ""].groupby(PLACE, sort=False):
        dataset, model, text, method, label = map(str, key)
        values = json.loads(own["diagnostics"].iloc[0])
        where = [dataset, model] if len(places) > 1 else []
        title = ", ".join([*where, label, *([budget(text)] if "=" in text else [])])
        found.append(Seen(method, label, title, values, int(own["seed"].iloc[0]), own))
    return found


def moments_data(item: ReportItem, runs: pd.DataFrame) -> dict[str, Any]:
    """Return the table of a panel's moments as plain data for the PDF template.

    Args:
        item: the report item.
        runs: runs.csv.
    """
    own = runs[runs["panel"] == item.panel]
    rows: list[list[str]] = []
    for one in seen(own):
        names = QUANTITIES if one.values["phi"] > 0 else WITHOUT_NOISE
        known = {name: said for name, said in names.items() if _known(one, name)}
        rows += [
            [one.title if not rank else "", said, *(_mean(one, name, key) for key in HEADS[2:])]
            for rank, (name, said) in enumerate(known.items())
        ]
    return {
        "kind": "rows",
        "title": item.title or item.panel,
        "caption": item.caption,
        "heads": list(HEADS),
        "numbers": len(HEADS) - 2,
        "rows": rows or [["no completed run with diagnostics", *[DASH] * (len(HEADS) - 1)]],
        "notes": _notes(own),
    }


def _known(one: Seen, name: str) -> bool:
    column = f"{name}.mean"
    return column in one.runs.columns and bool(one.runs[column].notna().any())


def _mean(one: Seen, name: str, key: str) -> str:
    return significant(float(one.runs[f"{name}.{key}"].mean()))


def _notes(runs: pd.DataFrame) -> list[str]:
    steps = sorted({one.values["step"] for one in seen(runs)})
    said = ", ".join(f"{step:,}" for step in steps) or DASH
    have = int((runs["diagnostics"] != "").sum())
    return [
        f"Over the coordinates of the parameters, after step {said}; shares below Φ and norms are "
        f"over the steps. Means over seeds: {count(have, 'run')} of {len(runs)} planned.",
        "Non-private: diagnostics read gradients before the noise is added, so these runs have no "
        "ε whatever their noise.",
    ]
