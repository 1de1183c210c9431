"""The section on hyper-parameters: what every method was given, what was tuned, at what cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from clipnoise.report.compact import merged
from clipnoise.report.formats import DASH, budget, shown, significant
from clipnoise.run.choice import tuned_values
from clipnoise.run.spec import to_mapping
from clipnoise.studies.study import Study
from clipnoise.studies.tuning import Search, Tune

SPREAD = "scale q99/q1"  # how much the factors of gradients vary over coordinates
CELL = ["panel", "dataset", "model", "budget", "hyperparameters", "tuned"]
TUNED, NOMINAL = "*", "†"
CHOICE = (
    f"{TUNED} Chosen on validation data among the values in brackets behind “tried”, before the "
    "runs that are reported."
)
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

Settings = dict[str, str]  # the value of every setting, by its name


def candidates(study: Study) -> dict[str, str]:
    """Return the values that were tried for each tuned run, in words, by its hash."""
    found: dict[str, str] = {}
    words: dict[str, str] = {}
    for run in study.runs:
        if run.spec.tuning and run.tune:
            key = run.spec.tuning.key
            if key not in words:
                words[key] = _tried(study.searches[key], run.tune)
            found[run.spec.hash] = words[key]
    return found


def _tried(search: Search, tune: Tune) -> str:
    """Return what a search tried: every candidate of a grid, the ends of a range."""
    rows = [
        tuned_values(to_mapping(specs[0]), search.parameters) for specs in search.configurations
    ]
    tried = {}
    for name in search.parameters:
        if name in tune.ranges:
            tried[name] = " to ".join(map(shown, tune.ranges[name]))
        else:
            values = dict.fromkeys(shown(row[name]) for row in rows if row[name] is not None)
            tried[name] = ", ".join(values)
    return ", ".join(f"{name} [{values}]" for name, values in tried.items() if values)


def configurations(runs: pd.DataFrame, tried: Mapping[str, str]) -> dict[str, Any]:
    """Return the hyper-parameters of every method and label, and what tuning tried and chose.

    Args:
        runs: runs.csv.
        tried: what `candidates` returned.

    Returns:
        `groups`, one for each label: `label`, `settings` that hold wherever it ran, and `rows` of
        further settings with the places `where` they hold; and `notes`.
    """
    groups = []
    for (label, method), every in runs.groupby(["label", "method"], sort=False):
        cells = [
            (tuple(map(str, place[:4])), _settings(cell, tried))
            for place, cell in every.groupby(CELL, sort=False)
        ]
        common = _common([values for _, values in cells])
        rows = list(_rows(cells, common))
        groups.append(
            {
                "label": label if label == method else f"{label} ({method})",
                "settings": _words(common),
                "rows": rows if len(rows) > 1 else [],
            }
        )
    return {"groups": groups, "notes": _notes(runs)}


def _common(cells: list[Settings]) -> Settings:
    """Return what holds in all places, and what was tried where all searches tried the same."""
    same = {
        name: value
        for name, value in cells[0].items()
        if all(values.get(name) == value for values in cells)
    }
    tried = {values["tried"] for values in cells if "tried" in values}
    return {**same, "tried": tried.pop()} if len(tried) == 1 else same


def _settings(cell: pd.DataFrame, tried: Mapping[str, str]) -> Settings:
    """Return the hyper-parameters of one configuration in one place, and what its tuning cost."""
    first = cell.iloc[0]
    values = json.loads(first["hyperparameters"] or "{}")
    chosen = json.loads(first["tuned"] or "{}")
    found = {
        name + (TUNED if name in chosen else ""): shown(value)
        for name, value in values.items()
        if name != "id"
    }
    if cell["scale_spread"].notna().any():
        found[SPREAD] = significant(float(cell["scale_spread"].mean()), 3)
    if pd.isna(first["configurations"]):
        return found
    if not chosen:
        found["tuned"] = "not chosen yet"
    grid = tried.get(first["hash"], "")
    counts = f"{first['configurations']:.0f} in {first['tuning_runs']:.0f} runs"
    found["tried"] = f"{counts}: {grid}" if grid else counts
    cost = significant(cell["epsilon_with_tuning"].max())
    if cost != DASH:
        nominal = (cell["charge"] == "selection") | (cell["claim"] == "nominal")
        doubtful = (nominal | (cell["randomness"] != "secure")).any()
        found["ε with tuning"] = cost + (NOMINAL if doubtful else "")
    return found


def _rows(
    cells: list[tuple[tuple[str, ...], Settings]], common: Settings
) -> Iterator[dict[str, Any]]:
    """Yield the settings of a label that are not the same everywhere, with their places."""
    further = [
        (
            *((word,) for word in place),
            tuple(f"{name} {value}" for name, value in values.items() if name not in common),
        )
        for place, values in cells
    ]
    where: dict[tuple[str, ...], list[str]] = {}
    for (panel,), *sites, words in merged(further, (3, 2, 1)):
        here = [place for place, _ in cells if place[0] == panel]
        scope = [
            ", ".join(map(budget, names))
            for number, names in enumerate(sites, 1)
            if set(names) != {place[number] for place in here}
        ]
        where.setdefault(words, []).append(f"{panel} ({'; '.join(scope)})" if scope else panel)
    for words, places in where.items():
        yield {"where": places, "settings": ", ".join(words)}


def _words(values: Settings) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _notes(runs: pd.DataFrame) -> list[str]:
    """Return how the choices were made, and what is charged for them."""
    selected = runs[runs["configurations"].notna()]
    charges = list(selected["charge"].drop_duplicates())
    notes = [CHOICE] if (selected["tuned"] != "").any() else []
    notes += [CHARGED[charge] for charge in charges if charge in CHARGED]
    if ((selected["charge"] == "composition") & (selected["randomness"] != "secure")).any():
        notes.append(SHARED)
    if "nothing" in charges:
        notes.append(UNCHARGED)
    return [*notes, *(text for text in selected["tuning_remark"].drop_duplicates() if text)]
