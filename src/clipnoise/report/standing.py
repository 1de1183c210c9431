"""Where a method stands in the league: its rank, what it gains over a baseline, what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from clipnoise.errors import UserError
from clipnoise.report.baseline import contended, cost_ratio
from clipnoise.report.formats import METRICS
from clipnoise.report.publication import COLUMNS, NUMBERS, run_rows
from clipnoise.report.statistics import (
    ALPHA,
    holm,
    paired_differences,
    paired_interval,
    paired_p_value,
)

Scores = Mapping[int, float]  # of the metric, by seed


def read_published(path: Path) -> pd.DataFrame:
    """Read a study's results as `clipnoise publish` writes them, a row per run.

    Raises:
        UserError: the file is no such table.
    """
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
        numbers = {name: pd.to_numeric(rows[name]) for name in NUMBERS}
        return rows.assign(**numbers)[list(COLUMNS)]
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{path}: not a table of `clipnoise publish`: {error}") from None


def standing(
    runs: pd.DataFrame, league: pd.DataFrame, method: str, baseline: str
) -> dict[str, Any]:
    """Compare a method with a baseline, and rank it among the methods of the league.

    Args:
        runs: runs.csv of the two, tuned alike.
        league: the rows of the league's runs that have ended, as `run_rows` returns them.
        method: the id of the method.
        baseline: the id of the other one.

    Returns:
        Plain data: `settings`, one for each task and budget; `time`, the median device time as a
        multiple of the baseline's, None if unknown; and whether other work `held_up` the runs.
    """
    rows = run_rows(runs)
    known = league[~league["method"].isin([method, baseline])]
    both = pd.concat([rows, known], ignore_index=True)
    settings = []
    for (panel, epsilon), here in both.groupby(["panel", "epsilon"], sort=False):
        trained = runs[(runs["panel"] == panel) & (runs["epsilon"] == epsilon)]
        if len(trained):
            ratio = _ratio(trained, method, baseline)
            settings.append({**_setting(here, method, baseline), "time": ratio})
    time = _ratio(runs, method, baseline)
    return {"settings": settings, "time": time, "held_up": contended(runs)}


def _ratio(runs: pd.DataFrame, method: str, baseline: str) -> float | None:
    mine, others = (runs[runs["method"] == name] for name in (method, baseline))
    ratio = cost_ratio(mine, others)
    return None if pd.isna(ratio) else ratio


def _setting(rows: pd.DataFrame, method: str, baseline: str) -> dict[str, Any]:
    """Return how a method does at one task and budget, as plain data."""
    mine = rows[rows["method"] == method]
    done = mine[mine["status"] == "completed"]
    first, seeds = mine.iloc[0], set(mine["seed"])
    metric = METRICS[first["metric"]]
    scores = {
        str(label): dict(zip(one["seed"].astype(int), one["value"], strict=True))
        for label, one in _comparable(rows, str(first["adjacency"])).groupby("label", sort=False)
    }
    complete = {name: one for name, one in scores.items() if seeds <= one.keys()}
    own, base = scores.get(method, {}), scores.get(baseline, {})
    up = metric.higher_is_better
    over = paired_interval(paired_differences(own, base, higher_is_better=up))
    return {
        "task": str(first["panel"]),
        "epsilon": float(first["epsilon"]),
        "metric": metric.column,
        "mean": float(done["value"].mean()) if len(done) else None,
        "runs": len(done),
        "planned": len(mine),
        "over": [over.mean, over.low, over.high] if {*own} & {*base} else None,
        "rank": _rank(complete, method, higher_is_better=up) if method in complete else None,
        "not_ranked": sorted({*rows["label"]} - {*complete}),
        "hyperparameters": str(first["hyperparameters"]),
    }


def _comparable(rows: pd.DataFrame, adjacency: str) -> pd.DataFrame:
    """Return the completed runs whose ε is a guarantee under an adjacency."""
    claimed = (rows["claim"] == "guarantee") & (rows["adjacency"] == adjacency)
    return rows[claimed & (rows["status"] == "completed") & rows["value"].notna()]


def _rank(scores: Mapping[str, Scores], method: str, *, higher_is_better: bool) -> dict[str, Any]:
    """Return the rank of a method, with the ranks that cannot be excluded.

    A method is surely better or worse than another one if they differ in a two-sided paired t-test
    over seeds, Holm-corrected over the others. So the interval holds the rank of the expected
    results at a confidence of 1 − α.

    Args:
        scores: of every method at the method's seeds, its own among them.
        method: the label of the method.
        higher_is_better: the direction of the metric.
    """
    mine, others = scores[method], [name for name in scores if name != method]
    pairs = [{seed: scores[name][seed] for seed in mine} for name in others]
    p_values = holm([paired_p_value(mine, pair) for pair in pairs])
    gains = [
        paired_interval(paired_differences(mine, pair, higher_is_better=higher_is_better)).mean
        for pair in pairs
    ]
    surely = [gain for gain, p in zip(gains, p_values, strict=True) if p < ALPHA]
    return {
        "rank": 1 + sum(gain < 0 for gain in gains),
        "low": 1 + sum(gain < 0 for gain in surely),
        "high": len(scores) - sum(gain > 0 for gain in surely),
        "of": len(scores),
    }
