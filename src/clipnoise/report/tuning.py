"""The tuning section: what was chosen, how many configurations were tried, and what that costs."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from clipnoise.report.formats import DASH, budget, settings, significant

CELL = ["panel", "label", "dataset", "model", "budget"]
NOMINAL = "†"

SECURE = "secure"
SHARED = (
    f"{NOMINAL} Runs with the same seed share noise and batches, so together they reveal more than "
    "composition accounts for: nominal. With secure noise every run draws its own."
)
UNCHARGED = "ε is that of one run. The search is not charged, so its true cost is higher."
CHARGED = {
    "composition": "With tuning: ε of publishing every private run of the search and one reported "
    "run, composed in RDP.",
    "selection": f"{NOMINAL} With tuning: ε of publishing the best of a random number of runs, on "
    "average as many as there are configurations (Papernot and Steinke 2022, theorem 6). The "
    "search tried a fixed grid, so this ε is nominal.",
}


def tuned(runs: pd.DataFrame) -> dict[str, Any]:
    """Return the rows of the section about tuning, and the notes below them.

    Args:
        runs: runs.csv.
    """
    selected = runs[runs["configurations"].notna()]
    rows = [
        _row(dict(zip(CELL, map(str, key), strict=True)), cell)
        for key, cell in selected.groupby(CELL, sort=False)
    ]
    charges = list(selected["charge"].drop_duplicates())
    notes = [CHARGED[charge] for charge in charges if charge in CHARGED]
    if ((selected["charge"] == "composition") & (selected["randomness"] != SECURE)).any():
        notes.append(SHARED)
    if "nothing" in charges:
        notes.append(UNCHARGED)
    remarks = [text for text in selected["tuning_remark"].drop_duplicates() if text]
    return {"rows": rows, "notes": [*notes, *remarks]}


def _row(place: dict[str, str], cell: pd.DataFrame) -> dict[str, str]:
    first = cell.iloc[0]
    chosen = [text for text in cell["tuned"].drop_duplicates() if text]
    nominal = (cell["charge"] == "selection") | (cell["claim"] == "nominal")
    doubtful = (nominal | (cell["randomness"] != SECURE)).any()
    with_tuning = significant(cell["epsilon_with_tuning"].max())
    return {
        **place,
        "budget": budget(place["budget"]),
        "chosen": "; ".join(settings(json.loads(text)) for text in chosen) or "not chosen yet",
        "tried": f"{first['configurations']:.0f} in {first['tuning_runs']:.0f} runs",
        "with": with_tuning + (NOMINAL if doubtful and with_tuning != DASH else ""),
    }
