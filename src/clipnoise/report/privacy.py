"""The sections on privacy and tuning: what is guaranteed, what is nominal, what tuning costs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from clipnoise.privacy.claim import NOT_COVERED, covered_by_epsilon
from clipnoise.report.formats import DASH, budget, count, settings, significant
from clipnoise.report.records import NON_PRIVATE

if TYPE_CHECKING:
    from clipnoise.core.query import Adjacency

GROUPING = [
    *("claim", "accountant", "sampler", "adjacency", "caveat", "randomness", "unit", "release")
]
NUMBERS = ["dataset", "budget", "delta", "noise_multiplier", "sampling_rate", "steps", "examples"]
SEEDED = (
    "Noise and batches are derived from the seed, and runs with the same seed share them. The "
    "guarantee holds neither against anyone who knows the seed nor for several such runs published "
    "together."
)
SECURE = "Noise and batches came from a cryptographic source and cannot be reproduced."
HEADS = {"guarantee": "Guarantee", "nominal": "Nominal ε, no guarantee"}
NAMES = {
    "rdp": "RDP",
    "prv": "PRV",
    "pld": "PLD",
    "poisson": "Poisson",
    "cyclic-poisson": "cyclic Poisson",
}


def headline(runs: pd.DataFrame) -> str:
    """Return the claim of a whole study in a few words, for the running header.

    Args:
        runs: distinct rows of runs.csv.
    """
    claims = set(runs["claim"]) - {""}
    if "nominal" in claims:
        return "ε is nominal in some runs" if "guarantee" in claims else "ε is nominal"
    if "guarantee" in claims:
        return "(ε, δ) guaranteed for private runs"
    return "no private run" if claims else "no result yet"


def privacy_statement(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the statement as blocks: a heading, a sentence, and the numbers behind it.

    Args:
        runs: distinct rows of runs.csv.

    Returns:
        Blocks with the keys head, text and rows; the last ones have no rows.
    """
    finished = runs[runs["claim"] != ""]
    private = finished[finished["claim"] != NON_PRIVATE]
    blocks = [
        {
            "head": HEADS[str(key[0])],
            "text": _sentence(*map(str, key), number=len(subset)),
            "rows": _rows(subset),
        }
        for key, subset in private.groupby(GROUPING, sort=True)
    ]
    references = finished[finished["claim"] == NON_PRIVATE]
    if len(references):
        methods = ", ".join(references["method"].drop_duplicates())
        text = (
            f"{count(len(references), 'run')} ({methods}) trained without protecting the examples. "
            "They have no ε and serve as references."
        )
        blocks.append({"head": "Non-private", "text": text, "rows": []})
    unfinished = len(runs) - len(finished)
    if unfinished:
        text = f"{count(unfinished, 'planned run')} without a result: nothing is claimed for them."
        blocks.append({"head": "No claim", "text": text, "rows": []})
    return blocks


def _sentence(*terms: str, number: int) -> str:
    claim, accountant, sampler, adjacency, caveat, randomness, unit, release = terms
    runs, used = count(number, "run"), f"{NAMES.get(accountant, accountant)} accountant"
    source = SECURE if randomness == "secure" else SEEDED
    drawn = f"{NAMES.get(sampler, sampler)} sampling"
    if claim == "guarantee":
        return (
            f"{runs}. The trained model and every iterate before it are (ε, δ)-differentially "
            f"private under {adjacency} adjacency. ε is an upper bound from the {used} for "
            f"{drawn}, which is how the batches were drawn. "
            f"{covered_by_epsilon(cast('Adjacency', adjacency), unit or 'example')} "
            f"{NOT_COVERED['strict' if release == 'strict' else 'full']} {source}"
        )
    gap = f"does not cover {drawn} under {adjacency} adjacency, as it was run"
    if caveat:
        gap = f"does not hold for these runs: {caveat}"
    return (
        f"{runs}. ε was computed by the {used}, whose analysis {gap}. These ε are nominal: they "
        f"order runs by noise and guarantee nothing. {source}"
    )


def _rows(runs: pd.DataFrame) -> list[dict[str, str]]:
    """Return one row per setting, with the largest ε that any of its runs reached."""
    rows = []
    for _, subset in runs.groupby(NUMBERS, sort=False, dropna=False):
        first = subset.iloc[0]
        target = budget(first["budget"])
        rows.append(
            {
                "dataset": first["dataset"],
                "target": target.removeprefix("ε = ") if "ε" in target else DASH,
                "achieved": significant(subset["epsilon_achieved"].max(), 5),
                "delta": significant(first["delta"]),
                "noise_multiplier": significant(first["noise_multiplier"]),
                "sampling_rate": significant(first["sampling_rate"]),
                "steps": significant(first["steps"], 12),
                "examples": significant(first["examples"], 12),
                "runs": str(len(subset)),
            }
        )
    return rows


# ---- The section about tuning

CELL = ["panel", "label", "dataset", "model", "budget"]
NOMINAL = "†"

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
        _tuned_row(dict(zip(CELL, map(str, key), strict=True)), cell)
        for key, cell in selected.groupby(CELL, sort=False)
    ]
    charges = list(selected["charge"].drop_duplicates())
    notes = [CHARGED[charge] for charge in charges if charge in CHARGED]
    if ((selected["charge"] == "composition") & (selected["randomness"] != "secure")).any():
        notes.append(SHARED)
    if "nothing" in charges:
        notes.append(UNCHARGED)
    remarks = [text for text in selected["tuning_remark"].drop_duplicates() if text]
    return {"rows": rows, "notes": [*notes, *remarks]}


def _tuned_row(place: dict[str, str], cell: pd.DataFrame) -> dict[str, str]:
    first = cell.iloc[0]
    chosen = [text for text in cell["tuned"].drop_duplicates() if text]
    nominal = (cell["charge"] == "selection") | (cell["claim"] == "nominal")
    doubtful = (nominal | (cell["randomness"] != "secure")).any()
    with_tuning = significant(cell["epsilon_with_tuning"].max())
    return {
        **place,
        "budget": budget(place["budget"]),
        "chosen": "; ".join(settings(json.loads(text)) for text in chosen) or "not chosen yet",
        "tried": f"{first['configurations']:.0f} in {first['tuning_runs']:.0f} runs",
        "with": with_tuning + (NOMINAL if doubtful and with_tuning != DASH else ""),
    }
