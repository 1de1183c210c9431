"""What runs cost on the machine that trained them, beside DP-SGD, and what audits found of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import median

import pandas as pd

BASELINE = "dp-sgd"
CONTENDED = 1.25  # wall clock over processor time, from which on a run was held up
RAN_ON = ("seed", "dataset", "model", "cpu", "gpu")
NOT_AUDITED = "not audited"
FEW = 8  # methods that are named one by one


def baseline_of(keys: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the method and label that stand for DP-SGD, or None: its own label comes first."""
    those = [key for key in keys if key[0] == BASELINE]
    return next((key for key in those if key[1] == BASELINE), those[0] if those else None)


def device_seconds(runs: pd.DataFrame) -> pd.Series:
    """Return the time that steps took of the processors, or of the GPU where one trained."""
    return runs["training_seconds"].where(runs["gpu"] != "", runs["cpu_seconds"])


def contended(runs: pd.DataFrame) -> bool:
    """Return whether other work held up most runs: only what trains on processors shows it."""
    on_cpu = runs[(runs["gpu"] == "") & runs["cpu_seconds"].notna()]
    return bool((on_cpu["training_seconds"] > CONTENDED * on_cpu["cpu_seconds"]).mean() > 0.5)


def cost_ratio(runs: pd.DataFrame, others: pd.DataFrame) -> float:
    """Return how many times the device time of other runs these took.

    Args:
        runs: rows of runs.csv of one method.
        others: those of another.

    Returns:
        The median over seeds, of pairs on the same kind of machine; NaN without such a pair.
    """
    first, second = _times(runs), _times(others)
    ratios = [time / second[place] for place, time in first.items() if place in second]
    return median(ratios) if ratios else math.nan


def _times(runs: pd.DataFrame) -> dict[tuple[object, ...], float]:
    """Return the median device time of completed runs, by seed, task and machine."""
    found: defaultdict[tuple[object, ...], list[float]] = defaultdict(list)
    columns = (runs[name] for name in ("status", *RAN_ON))
    for status, *place, time in zip(*columns, device_seconds(runs), strict=True):
        if status == "completed" and math.isfinite(time):
            found[tuple(place)].append(time)
    return {place: median(times) for place, times in found.items()}


def audit_target(runs: pd.DataFrame) -> str:
    """Return the command that audits exactly the methods of the study that runs belong to."""
    return f"snakemake --cores all reports/{runs['study'].iloc[0]}/audit.pdf"


def audit_note(runs: pd.DataFrame) -> str:
    """Return whether the claims of the private methods of a study were audited, and how to do it.

    Args:
        runs: rows of runs.csv with an ε.
    """
    pairs = runs.groupby("method", sort=False)["audit"].max()
    found = {str(method): str(words) for method, words in pairs.items()}
    refuted = [name for name, words in found.items() if words.startswith("refuted")]
    kept = [name for name, words in found.items() if words and name not in refuted]
    bounds = [f"{name} ({found[name].partition(': ')[2]})" for name in kept]
    missing = [name for name, words in found.items() if not words]
    said = [
        f"{outcome}: {', '.join(names) if len(names) <= FEW else f'{len(names)} methods'}."
        for outcome, names in (("Not refuted", bounds), ("Not audited", missing))
        if names
    ]
    said = [*([f"REFUTED: {', '.join(refuted)}."] if refuted else []), *said]
    return (
        f"{' '.join(said)} `{audit_target(runs)}` attacks exactly the methods of this study, at "
        "settings of its own. It can refute a claim of ε, and never prove one."
    )
