"""Statistics over seeds: mean, spread, and which methods may be called best."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import numpy as np
import pandas as pd
from scipy import stats

from clipnoise.report.formats import Metric

K = TypeVar("K", bound=Hashable)

ALPHA = 0.05
Withheld = Literal["", "unfinished", "alone", "failed", "one seed"]


@dataclass(frozen=True)
class Sample:
    """The planned runs of one configuration: their values and what became of the others.

    Attributes:
        values: metric by seed, of the completed runs whose value is finite.
        diverged: runs that ended with NaN or infinity, or without a finite value.
        missing: planned runs without a result.
        corrupt: runs whose result files are damaged.
    """

    values: Mapping[int, float] = field(default_factory=dict)
    diverged: int = 0
    missing: int = 0
    corrupt: int = 0

    @property
    def n(self) -> int:
        """Completed runs."""
        return len(self.values)

    @property
    def planned(self) -> int:
        """N, all planned runs."""
        return self.n + self.diverged + self.missing + self.corrupt

    @property
    def complete(self) -> bool:
        """Whether every planned run completed."""
        return self.n == self.planned > 0

    @property
    def runs(self) -> str:
        """`n/N` where not every planned run completed, else empty."""
        return "" if self.n == self.planned else f"{self.n}/{self.planned}"

    @property
    def mean(self) -> float:
        """Mean over the completed runs; NaN without any."""
        return float(np.mean(list(self.values.values()))) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """Sample standard deviation (divisor n − 1) over the completed runs; NaN below two."""
        return float(np.std(list(self.values.values()), ddof=1)) if self.n > 1 else math.nan


def sample(runs: pd.DataFrame, metric: Metric) -> Sample:
    """Gather the runs of one configuration.

    Args:
        runs: rows of runs.csv that differ in their seed alone.
        metric: the column to read.
    """
    done = runs[(runs["status"] == "completed") & np.isfinite(runs[metric.column])]
    status = runs["status"].value_counts()
    missing, corrupt = int(status.get("missing", 0)), int(status.get("corrupt", 0))
    return Sample(
        values={int(s): float(v) for s, v in zip(done["seed"], done[metric.column], strict=True)},
        diverged=len(runs) - len(done) - missing - corrupt,
        missing=missing,
        corrupt=corrupt,
    )


def paired_p_value(first: Mapping[int, float], second: Mapping[int, float]) -> float:
    """Test whether two methods differ, paired over the seeds they share.

    The same seed gives every method the same batches and the same initial weights, so the pairs
    are matched. A t-test is used because an exact two-sided Wilcoxon test on n seeds cannot go
    below p = 2^(1−n), which no correction for several comparisons survives at five or six seeds.

    Args:
        first: metric by seed.
        second: metric by seed.

    Returns:
        The two-sided p-value of the paired t-test; NaN with fewer than two shared seeds.
    """
    seeds = sorted(first.keys() & second.keys())
    differences = np.array([first[seed] - second[seed] for seed in seeds])
    if len(seeds) < 2:
        return math.nan
    rounding = 1e-12 * max(abs(value) for one in (first, second) for value in one.values())
    if np.ptp(differences) <= rounding:
        return 1.0 if np.max(np.abs(differences)) <= rounding else 0.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for the number of comparisons.

    Args:
        p_values: one per comparison.

    Returns:
        Adjusted p-values in the same order, none above 1.

    Source: Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    adjusted = [math.nan] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


@dataclass(frozen=True)
class Verdict(Generic[K]):
    """Who leads a column.

    Attributes:
        leaders: the best and all that are not significantly worse.
        p_values: Holm-adjusted p-value against the best; the best itself is not in it.
        withheld: why nobody leads; empty when somebody does.
    """

    leaders: frozenset[K] = frozenset()
    p_values: Mapping[K, float] = field(default_factory=dict)
    withheld: Withheld = ""


def judge(samples: Mapping[K, Sample], *, higher_is_better: bool) -> Verdict[K]:
    """Find the best competitor and all that are not significantly worse.

    The mean over the runs that survived flatters a method that diverges, so only methods whose
    planned runs all completed can lead; and a column in which runs are missing or damaged has no
    leader until they are there.

    Args:
        samples: the competitors of one column.
        higher_is_better: the direction of the metric.
    """
    if any(one.missing or one.corrupt for one in samples.values()):
        return Verdict(withheld="unfinished")
    if len(samples) < 2:
        return Verdict(withheld="alone")
    able = {key: one for key, one in samples.items() if one.complete}
    if not able:
        return Verdict(withheld="failed")
    if min(one.n for one in able.values()) < 2:
        return Verdict(withheld="one seed")
    sign = 1.0 if higher_is_better else -1.0
    best = max(able, key=lambda key: sign * able[key].mean)
    others = [key for key in able if key != best]
    raw = [paired_p_value(able[best].values, able[key].values) for key in others]
    p_values = dict(zip(others, holm(raw), strict=True))
    return Verdict(frozenset({best, *(k for k in others if p_values[k] >= ALPHA)}), p_values)
