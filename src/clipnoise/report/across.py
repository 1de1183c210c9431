"""Statistics across tasks: interquartile means, performance profiles, ranks and their cliques.

A task is a dataset and a model at one budget. What is drawn again in a bootstrap are the seeds
within each task, never the tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from clipnoise.report.statistics import ALPHA, holm

Scores = Sequence[NDArray[np.float64]]  # one array over seeds per task; higher is better
Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]

RESAMPLES = 2000
LEVEL = 0.95


def interquartile_mean(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the middle half, along the last axis.

    A run without a score counts as −∞: it is among the lowest quarter, or the mean is −∞.

    Args:
        scores: shape (…, n).
    """
    ordered = np.sort(scores, axis=-1)
    cut = int(0.25 * ordered.shape[-1])
    middle = ordered[..., cut : ordered.shape[-1] - cut]
    return np.asarray(middle.mean(axis=-1))


def bootstrap(
    tasks: Scores, statistic: Statistic, *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a percentile interval of a statistic over the runs of several tasks together.

    Seeds are drawn with replacement within each task (stratified), as many as there are.

    Args:
        tasks: scores over seeds, one array per task.
        statistic: of scores of shape (…, n), along the last axis; may add axes at the end.
        resamples: how many.
        seed: of the resampling: the same scores give the same interval.

    Returns:
        Lower and upper end at 95%, each of the statistic's shape.

    Source: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
    Precipice", section 4.
    """
    generator = np.random.default_rng(seed)
    drawn = [task[generator.integers(len(task), size=(resamples, len(task)))] for task in tasks]
    values = statistic(np.concatenate(drawn, axis=1))
    tail = (1 - LEVEL) / 2
    # The nearest rank: between −∞ and a number there is nothing to interpolate.
    low, high = np.quantile(values, [tail, 1 - tail], axis=0, method="nearest")
    return low, high


def profile(thresholds: NDArray[np.float64]) -> Statistic:
    """Return the statistic that gives the share of runs with at least each threshold's score.

    Args:
        thresholds: shape (k,).

    Source: Agarwal et al. 2021, section 4.2 (score distributions).
    """

    def share(scores: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((scores[..., None, :] >= thresholds[:, None]).mean(axis=-1))

    return share


@dataclass(frozen=True)
class Ranking:
    """Average ranks over datasets, and the groups of methods that no test tells apart.

    Attributes:
        datasets: how many there are.
        ranks: average rank by method, the best first.
        cliques: longest runs of neighbours by rank without a significant difference, of two or
            more methods each.
        needed: how many datasets it takes before any difference can be significant.
    """

    datasets: int
    ranks: Mapping[str, float]
    cliques: tuple[tuple[str, ...], ...]
    needed: int


def ranking(scores: Mapping[str, Sequence[float]]) -> Ranking:
    """Rank methods on each dataset, and find the cliques of a critical-difference diagram.

    Two methods are tested by a Wilcoxon signed-rank test over datasets, Holm-corrected over all
    pairs.

    Args:
        scores: by method, one score per dataset in the same order; higher is better.

    Source: Demšar 2006; Benavoli, Corani, Mangili 2016 for Wilcoxon and Holm instead of Nemenyi.
    """
    names = list(scores)
    table = np.array([scores[name] for name in names], dtype=float)
    average = stats.rankdata(-table, axis=0).mean(axis=1)
    order = sorted(range(len(names)), key=lambda index: average[index])
    pairs = list(combinations(range(len(names)), 2))
    adjusted = holm([wilcoxon(table[i], table[j]) for i, j in pairs])
    apart = {pair for pair, p_value in zip(pairs, adjusted, strict=True) if p_value < ALPHA}
    return Ranking(
        datasets=table.shape[1],
        ranks={names[index]: float(average[index]) for index in order},
        cliques=tuple(tuple(names[i] for i in one) for one in _cliques(order, apart)),
        needed=datasets_needed(len(names)),
    )


def wilcoxon(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the two-sided p-value of a signed-rank test over datasets.

    It is exact without ties. With ties it is the normal approximation, held to what n datasets can
    show at the most, 2^(1−n).
    """
    both_lost = np.isneginf(first) & np.isneginf(second)
    differences = np.where(both_lost, 0.0, np.nan_to_num(first) - np.nan_to_num(second))
    if not np.any(differences):
        return 1.0
    sizes = np.abs(differences)
    exact = bool(sizes.all()) and len(np.unique(sizes)) == len(sizes)
    method: Literal["exact", "approx"] = "exact" if exact else "approx"
    test = stats.wilcoxon(differences, zero_method="zsplit", method=method)
    return max(float(test.pvalue), 2.0 ** (1 - len(differences)))


def datasets_needed(methods: int) -> int:
    """Return how many datasets it takes before the smallest exact p-value survives Holm.

    The two-sided p-value on n datasets is at least 2^(1−n); the smallest of m is multiplied by m.
    """
    comparisons = max(1, math.comb(methods, 2))
    return 1 + math.floor(math.log2(comparisons / ALPHA)) + 1


def _cliques(order: Sequence[int], apart: set[tuple[int, int]]) -> list[Sequence[int]]:
    """Return the longest stretches of an order in which no two are apart."""
    found: list[tuple[int, int]] = []
    for start in range(len(order)):
        end = start + 1
        while end < len(order) and not any(
            tuple(sorted((order[end], other))) in apart for other in order[start:end]
        ):
            end += 1
        if end - start > 1 and not any(a <= start and end <= b for a, b in found):
            found.append((start, end))
    return [order[a:b] for a, b in found]
