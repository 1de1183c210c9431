"""Hyper-parameters: what every method was given, what was tuned, at what cost, and how clearly."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pandas as pd

from clipnoise.report.blocks import ListBlock
from clipnoise.report.formats import (
    ACCURACY,
    DASH,
    VALUES,
    budget,
    compact,
    count,
    merged,
    named,
    searched_by,
    shown,
    significant,
)
from clipnoise.report.records import is_private, split
from clipnoise.report.statistics import sampling_error
from clipnoise.run.choice import tuned_values
from clipnoise.run.spec import to_mapping
from clipnoise.studies.columns import FoundChoice
from clipnoise.studies.study import Study
from clipnoise.studies.tuning import Search, Tune, alternatives

SPREAD = "scale q99/q1"  # how much the factors of gradients vary over coordinates
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
    "run, composed in RDP. It is left out where a trial diverged.",
    "selection": f"{NOMINAL} With tuning: ε of publishing the best of a random number of runs, on "
    "average as many as there are configurations (Papernot and Steinke 2022, theorem 6). The "
    "search tried a fixed grid, so this ε is nominal.",
    "drawn": "With tuning: ε of the choice and one reported run, for a search whose number of "
    "trials was drawn first (Papernot and Steinke 2022; Koskela, Redberg and Wang 2024). It holds "
    "for whoever sees that run alone: not this report of the search, nor its seed. It is left out "
    "where a trial diverged, or where a scale tried fewer.",
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
            tried[name] = " or ".join(
                shown(ends) if isinstance(ends, dict) else " to ".join(map(shown, ends))
                for ends in alternatives(tune.ranges[name])
            )
        else:
            values = dict.fromkeys(shown(row[name]) for row in rows if row[name] is not None)
            tried[name] = ", ".join(values)
    return ", ".join(f"{name} [{values}]" for name, values in tried.items() if values)


def configurations(runs: pd.DataFrame, tried: Mapping[str, str]) -> ListBlock:
    """Return the hyper-parameters of every method and label, and what tuning tried and chose.

    Args:
        runs: of all panels.
        tried: what `candidates` returned.

    Returns:
        Of each label a row with what holds wherever it ran, and then a row for each further set of
        values, with the places where these hold.
    """
    rows = []
    place = ("panel", "dataset", "model", "budget")
    for (label, method), every in split(runs, "label", "method"):
        cells = [
            (key[:4], _settings(cell, tried))
            for key, cell in split(every, *place, "hyperparameters", "tuned")
        ]
        common = _common([values for _, values in cells])
        further = list(_rows(cells, common))
        rows.append((label if label == method else f"{label} ({method})", "", named(common)))
        rows += further if len(further) > 1 else []
    heads = ("method", "where", "settings")
    return ListBlock(title="", heads=heads, align="lll", rows=rows, notes=_notes(runs))


def _common(cells: list[Settings]) -> Settings:
    """Return what holds in all places, and what was tried where all searches tried the same."""
    common = {
        name: value
        for name, value in cells[0].items()
        if all(values.get(name) == value for values in cells)
    }
    tried = {values["tried"] for values in cells if "tried" in values}
    return {**common, "tried": tried.pop()} if len(tried) == 1 else common


def _settings(cell: pd.DataFrame, tried: Mapping[str, str]) -> Settings:
    """Return the hyper-parameters of one configuration in one place, and what its tuning cost."""
    first = cell.iloc[0]
    values = json.loads(first["hyperparameters"] or "{}")
    chosen = json.loads(first["tuned"] or "{}")
    found = {
        name + (TUNED if name in chosen else ""): shown(_clipped(value, first["unit"]))
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
    cost, nominal = with_tuning(cell)
    if not math.isnan(cost):
        found["ε with tuning"] = significant(cost) + (NOMINAL if nominal else "")
    return found


def _clipped(value: object, unit: str) -> object:
    """Return a hyper-parameter; a clip rule per example with what it really clips as a whole."""
    if isinstance(value, dict) and value.get("per") == "example" and unit:
        return {**value, "per": unit}
    return value


def with_tuning(runs: pd.DataFrame) -> tuple[float, bool]:
    """Return the largest ε of some runs with their searches, and whether it is nominal.

    It is NaN unless all that completed have one: it is left out where a trial diverged.
    """
    done = runs[runs["status"] == "completed"]
    nominal = (done["charge"] == "selection") | (done["claim"] == "nominal")
    shared = (done["charge"] != "drawn") & (done["randomness"] != "secure")
    known = done["epsilon_with_tuning"].notna().all()
    cost = float(done["epsilon_with_tuning"].max()) if known else math.nan
    return cost, bool((nominal | shared).any())


def _rows(
    cells: list[tuple[tuple[str, ...], Settings]], common: Settings
) -> Iterator[tuple[str, str, str]]:
    """Yield the settings of a label that are not the same everywhere, behind their places."""
    further = [
        (*place, tuple(f"{name} {value}" for name, value in values.items() if name not in common))
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
        yield "", VALUES.join(places), ", ".join(words)


def _notes(runs: pd.DataFrame) -> list[str]:
    """Return how the choices were made, and what is charged for them."""
    selected = runs[runs["configurations"].notna()]
    charges = list(selected["charge"].drop_duplicates())
    notes = [CHOICE] if (selected["tuned"] != "").any() else []
    notes += [CHARGED[charge] for charge in charges if charge in CHARGED]
    if ((selected["charge"] == "composition") & (selected["randomness"] != "secure")).any():
        notes.append(SHARED)
    if (is_private(selected) & (selected["charge"] == "nothing")).any():
        notes.append(UNCHARGED)
    return [*notes, *(text for text in selected["tuning_remark"].drop_duplicates() if text)]


# ---- How clear the choices were: the best and the next, and what validation can tell

HEADS = (
    *("panel", "dataset", "model", "method", "budget", "chosen", "score", "next best", "its score"),
    *("tried", "seeds", "validation examples", "choice"),
)
MOST = 12  # rows of the table
IMPLIED = {1: 0, 2: 0}  # datasets and models, where they follow from the panel
CLEAR, TIED, EDGE, PENDING = "clear", "tied", "at an edge", "not made yet"
SCORES = (
    "Score: the mean over the tuning seeds of what the search chose by, on the validation split: "
    "accuracy in %, loss, or what the panel is ranked by. Tied: the next best is nearer than one "
    "standard error of such an accuracy, √(p(1−p)/n) for n validation examples, so that another "
    "validation set may well choose otherwise; other metrics are not tested."
)
EVERY = (
    "Median lead: of the chosen one over the next best, in points, or the unit of the metric. "
    "Every choice with its scores is in the column “choice” of the study's runs.parquet."
)
BEYOND = (
    "the smallest or the largest value tried, so a value beyond the grid may be better, and the "
    "method may lose only for that."
)


def clarity(cell: pd.DataFrame) -> tuple[str, ...]:
    """Return how clear the choice behind a configuration was; nothing where none was made."""
    if cell["configurations"].isna().all():
        return ()
    made = _made(cell)
    if made is None:
        return (PENDING,)
    doubts = []
    if searched_by(made.metric) is ACCURACY and len(made.best) > 1:
        best, runner_up = (one.score for one in made.best[:2])
        error = sampling_error(best, cell["validation_examples"].iloc[0])
        doubts += [TIED] if best - runner_up < error else []
    doubts += [EDGE] if made.edges else []
    return tuple(doubts) or (CLEAR,)


def choices_data(runs: pd.DataFrame) -> ListBlock:
    """Return what tuning chose, beside the next best; no row where nothing is tuned.

    Of more than `MOST` choices the table counts, by method, how many were clear.
    """
    tuned = runs[runs["configurations"].notna()]
    searches = tuned["search"].map(lambda one: "" if pd.isna(one) else f", search {one:.0f}")
    tuned = tuned.assign(search=searches)
    cells = split(tuned, "panel", "dataset", "model", "label", "budget", "search")
    edges = sum(EDGE in clarity(cell) for _, cell in cells)
    warning = f"WARNING: {edges} of {count(len(cells), 'choice')} at an edge of the grid: {BEYOND}"
    notes = [*([warning] if edges else []), *([SCORES] if cells else [])]
    if len(cells) > MOST:
        return replace(_counted(cells), notes=[*notes, EVERY])
    rows = [_row(*cell) for cell in cells]
    return replace(compact(HEADS, rows, implied=IMPLIED), notes=notes)


def _made(cell: pd.DataFrame) -> FoundChoice | None:
    """Return what `clipnoise collect` found of a choice, or None before it is made."""
    found: list[FoundChoice] = cell["choice"].dropna().tolist()
    return found[0] if found and found[0].best else None


def _row(key: tuple[str, ...], cell: pd.DataFrame) -> tuple[str, ...]:
    *place, text, search = key
    made = _made(cell) or FoundChoice()
    show = searched_by(made.metric).show
    found = [(named(json.loads(one.hyperparameters)), show(one.score)) for one in made.best]
    best, runner_up = [*found, (DASH, DASH), (DASH, DASH)][:2]
    edge = f"{EDGE} of {', '.join(made.edges)}"
    remarks = [edge if one == EDGE else one for one in clarity(cell)]
    return (
        *(*place, budget(text) + search, *best, *runner_up),
        *(f"{cell['configurations'].iloc[0]:.0f}", str(made.seeds or DASH)),
        *(f"{cell['validation_examples'].iloc[0]:,.0f}", ", ".join(remarks)),
    )


def _counted(cells: list[tuple[tuple[str, ...], pd.DataFrame]]) -> ListBlock:
    """Return how many choices of each method were clear, tied, at an edge, and not made yet."""
    heads = ("method", "choices", CLEAR, TIED, EDGE, PENDING, "median lead")
    rows = []
    for label in dict.fromkeys(key[3] for key, _ in cells):
        own = [cell for key, cell in cells if key[3] == label]
        counts = Counter(word for cell in own for word in ("choices", *clarity(cell)))
        compared = [made for cell in own if (made := _made(cell)) and len(made.best) > 1]
        leads = [abs(one.best[0].score - one.best[1].score) for one in compared]
        lead = searched_by(compared[0].metric).show(statistics.median(leads)) if leads else DASH
        rows.append((label, *(str(counts[head]) for head in heads[1:-1]), lead))
    return compact(heads, rows, numbers=len(heads) - 1)
