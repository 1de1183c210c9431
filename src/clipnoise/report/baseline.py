"""Methods beside DP-SGD: what they gain over it across tasks, what they change, what they cost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import median

import numpy as np
import pandas as pd

from clipnoise.report.formats import Metric
from clipnoise.report.records import Key, Place, split
from clipnoise.report.statistics import (
    Interval,
    paired_differences,
    paired_interval,
)

BASELINE = "dp-sgd"
CONTENDED = 1.25  # wall clock over processor time, from which on a run was held up
RAN_ON = ("seed", "dataset", "model", "cpu", "gpu")


def baseline_of(keys: Iterable[Key]) -> Key | None:
    """Return the method and label that stand for DP-SGD, or None: its own label comes first."""
    those = [key for key in keys if key[0] == BASELINE]
    return next((key for key in those if key[1] == BASELINE), those[0] if those else None)


def scored(runs: pd.DataFrame, metric: Metric) -> dict[int, float]:
    """Return the score of each finished run by seed: higher is better, −∞ where it diverged."""
    ended = zip(runs["status"], runs["seed"], runs[metric.column], strict=True)
    return {
        int(seed): metric.sign * value
        if status == "completed" and math.isfinite(value)
        else -math.inf
        for status, seed, value in ended
        if status in ("completed", "diverged")
    }


# ---- What they change


def changes(
    runs: pd.DataFrame, reference: pd.DataFrame, metric: Metric
) -> dict[Key, dict[Place, float]]:
    """Return by how much methods are better in some panels than in others.

    Args:
        runs: of the panels.
        reference: of the panels that each is compared with.
        metric: what runs are compared by.

    Returns:
        By method and label, then by dataset, model and budget: the mean difference over the seeds
        that both have; NaN while planned runs of one have no result, or where there is nothing to
        compare with; −∞ where a run of the first diverged, else ∞ where one of the second did.
    """
    configuration = ("method", "label", "dataset", "model", "budget")
    others = dict(split(reference, *configuration))
    found: dict[Key, dict[Place, float]] = {}
    for names, rows in split(runs, *configuration):
        value = _change(rows, others.get(names, reference[:0]), metric)
        found.setdefault(names[:2], {})[names[2:]] = value
    return found


def change_intervals(
    runs: pd.DataFrame, reference: pd.DataFrame, metric: Metric
) -> dict[Key, Interval]:
    """Return the mean change of each method with its 95% t-interval over seeds.

    It is that of the mean over places, seed by seed. So it covers initial weights, batches and
    noise, but not which datasets were taken.

    Args:
        runs, reference, metric: as for `changes`.

    Returns:
        By method and label; nothing for one with a change that is not finite, or whose places have
        other seeds than each other.
    """
    configuration = ("method", "label", "dataset", "model", "budget")
    others = dict(split(reference, *configuration))
    found: dict[Key, list[dict[int, float]]] = {}
    for names, rows in split(runs, *configuration):
        other = others.get(names, reference[:0])
        able = math.isfinite(_change(rows, other, metric))
        pairs = paired_differences(scored(rows, metric), scored(other, metric)) if able else {}
        found.setdefault(names[:2], []).append(pairs)
    means = {
        key: {seed: float(np.mean([one[seed] for one in each])) for seed in each[0]}
        for key, each in found.items()
        if each[0] and all(one.keys() == each[0].keys() for one in each)
    }
    return {key: paired_interval(by_seed) for key, by_seed in means.items()}


def _change(rows: pd.DataFrame, other: pd.DataFrame, metric: Metric) -> float:
    """Return the mean difference between two configurations, as `changes` does."""
    scores, levels = scored(rows, metric), scored(other, metric)
    if len(scores) < len(rows) or len(levels) < len(other):
        return math.nan
    if -math.inf in scores.values():
        return -math.inf
    differences = list(paired_differences(scores, levels).values())
    return float(np.mean(differences)) if differences else math.nan


# ---- What they cost on the machine that trained them


def device_seconds(runs: pd.DataFrame) -> pd.Series:
    """Return the time that steps took of the processors, or of the GPU where one trained."""
    return runs["training_seconds"].where(runs["gpu"] != "", runs["cpu_seconds"])


def contended(runs: pd.DataFrame) -> bool:
    """Return whether other work held up most runs: only what trains on processors shows it."""
    on_cpu = runs[(runs["gpu"] == "") & runs["cpu_seconds"].notna()]
    return bool((on_cpu["training_seconds"] > CONTENDED * on_cpu["cpu_seconds"]).mean() > 0.5)


def cost_ratio(runs: pd.DataFrame, others: pd.DataFrame) -> float:
    """Return how many times the device time of other runs these took.

    It is the median over seeds, of pairs on the same kind of machine; NaN without such a pair.
    """
    first, second = _times(runs), _times(others)
    ratios = [time / second[place] for place, time in first.items() if place in second]
    return median(ratios) if ratios else math.nan


def _times(runs: pd.DataFrame) -> dict[tuple[object, ...], float]:
    """Return the median device time of completed runs, by seed, task and machine."""
    found: defaultdict[tuple[object, ...], list[float]] = defaultdict(list)
    columns = (runs[name] for name in ("status", *RAN_ON))
    for status, *place, time in zip(*columns, device_seconds(runs), strict=True):
        if status == "completed" and math.isfinite(time) and time > 0:  # clocks of processors tick
            found[tuple(place)].append(time)
    return {place: median(times) for place, times in found.items()}
