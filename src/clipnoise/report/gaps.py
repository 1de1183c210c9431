"""What methods gain over DP-SGD across tasks: the closed share of the privacy gap, and changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from clipnoise.report.costs import baseline_of
from clipnoise.report.formats import Metric
from clipnoise.report.records import is_private
from clipnoise.report.statistics import Scores, closed_gap, paired_differences, sample
from clipnoise.report.tables import Place

FLOOR = 0.02  # of the metric: where privacy costs less, a share of it says nothing

Key = tuple[str, str]  # method and label
Task = tuple[str, str]  # dataset and model


@dataclass(frozen=True)
class Gaps:
    """The share of the privacy gap that methods close at one budget.

    Attributes:
        shares: by method and label, an array over seeds for each task that it has runs on.
        tasks: how many tasks there are.
        left_out: the tasks that do not count, because the gap is below the floor, or not known.
    """

    shares: Mapping[Key, Scores]
    tasks: int
    left_out: tuple[Task, ...]


def gaps(runs: pd.DataFrame, budget: str, metric: Metric) -> Gaps:
    """Compute the closed share of the privacy gap of every method at a budget.

    Args:
        runs: rows of runs.csv, those without privacy among them.
        budget: as in runs.csv.
        metric: what runs are compared by.
    """
    private = runs[is_private(runs) & (runs["budget"] == budget)]
    shares: dict[Key, list[np.ndarray]] = {}
    left_out: list[Task] = []
    tasks = list(private.groupby(["dataset", "model"], sort=False))
    for (dataset, model), here in tasks:
        task = (str(dataset), str(model))
        place = (runs["dataset"] == dataset) & (runs["model"] == model)
        found = _shares(here, runs[place & ~is_private(runs)], metric)
        if not found:
            left_out.append(task)
        for key, values in found.items():
            shares.setdefault(key, []).append(np.array(list(values.values())))
    return Gaps(shares, len(tasks), tuple(left_out))


def _shares(
    private: pd.DataFrame, without: pd.DataFrame, metric: Metric
) -> dict[Key, dict[int, float]]:
    """Return the closed share on one task by seed; nothing where the gap is small or unknown."""
    scores = {key: scored(rows, metric) for key, rows in by_key(private)}
    base = baseline_of(scores)
    sign = 1.0 if metric.higher_is_better else -1.0
    ceilings = [sign * sample(rows, metric).mean for _, rows in by_key(without)]
    ceiling = max((one for one in ceilings if math.isfinite(one)), default=math.nan)
    level = float(np.mean(list(scores[base].values()))) if base and scores[base] else math.nan
    if base is None or not FLOOR <= ceiling - level < math.inf:
        return {}
    return {key: closed_gap(values, scores[base], ceiling) for key, values in scores.items()}


def by_key(runs: pd.DataFrame) -> list[tuple[Key, pd.DataFrame]]:
    """Return the rows of each method and label, in order."""
    groups = runs.groupby(["method", "label"], sort=False)
    return [((str(method), str(label)), rows) for (method, label), rows in groups]


def scored(runs: pd.DataFrame, metric: Metric) -> dict[int, float]:
    """Return the score of each finished run by seed: higher is better, −∞ where it diverged."""
    sign = 1.0 if metric.higher_is_better else -1.0
    ended = zip(runs["status"], runs["seed"], runs[metric.column], strict=True)
    return {
        int(seed): sign * value if status == "completed" and math.isfinite(value) else -math.inf
        for status, seed, value in ended
        if status in ("completed", "diverged")
    }


def changes(
    runs: pd.DataFrame, reference: pd.DataFrame, metric: Metric
) -> dict[Key, dict[Place, float]]:
    """Return by how much methods are better in some panels than in others.

    Args:
        runs: rows of runs.csv of the panels.
        reference: those of the panels that each is compared with.
        metric: what runs are compared by.

    Returns:
        By method and label, then by dataset, model and budget: the mean difference over the seeds
        that both have; NaN while planned runs of one have no result, or where there is nothing to
        compare with; −∞ where a run of the first diverged, else ∞ where one of the second did.
    """
    configuration = ["method", "label", "dataset", "model", "budget"]
    others = dict(list(reference.groupby(configuration, sort=False)))
    found: dict[Key, dict[Place, float]] = {}
    for names, rows in runs.groupby(configuration, sort=False):
        method, label, *at = map(str, names)
        value = _change(rows, others.get(names, reference[:0]), metric)
        found.setdefault((method, label), {})[at[0], at[1], at[2]] = value
    return found


def _change(rows: pd.DataFrame, other: pd.DataFrame, metric: Metric) -> float:
    """Return the mean difference between two configurations, as `changes` does."""
    scores, levels = scored(rows, metric), scored(other, metric)
    if len(scores) < len(rows) or len(levels) < len(other):
        return math.nan
    if -math.inf in scores.values():
        return -math.inf
    differences = list(paired_differences(scores, levels).values())
    return float(np.mean(differences)) if differences else math.nan
