"""Statistics over seeds and across tasks: means, tests, intervals and profiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special, stats

from clipnoise.errors import UserError
from clipnoise.report.formats import ACCURACY, DASH, Metric
from clipnoise.report.inference.sign_flips import best_p_values, units_needed

ALPHA = 0.05
LEVEL = 0.95
SEEDS_NEEDED = units_needed(ALPHA)
ROUNDING = 1e-12  # of a difference of two metrics

K = TypeVar("K", bound=Hashable)
Withheld = Literal[
    "", "unfinished", "alone", "failed", "others failed", "seeds", "few seeds", "chance"
]

# ---- Over the seeds of one configuration


@dataclass(frozen=True)
class Sample:
    """The planned runs of one configuration: the values, and how many runs have none and why.

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

    def show(self, metric: Metric) -> str:
        """Return mean ± sample standard deviation; the mean of one run alone; a dash for none."""
        if not self.n:
            return DASH
        mean = metric.show(self.mean)
        return mean if self.n == 1 else f"{mean} ± {metric.show(self.deviation)}"

    def counted(self, metric: Metric) -> str:
        """Return the same, with n/N where not every planned run completed."""
        return f"{self.show(metric)} ({self.runs})" if self.runs else self.show(metric)

    @property
    def mean(self) -> float:
        """Mean over the completed runs; NaN without any."""
        return float(np.mean(list(self.values.values()))) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """Sample standard deviation (divisor n − 1) over the completed runs; NaN below two."""
        return float(np.std(list(self.values.values()), ddof=1)) if self.n > 1 else math.nan


def require_one_each(runs: pd.DataFrame) -> None:
    """Require that runs which differ only in their seed have one for each seed.

    Raises:
        UserError: two of them have the same seed, so that they are of two configurations.
    """
    twice = runs[runs["seed"].duplicated(keep=False)]
    if len(twice):
        labels = ", ".join(map(repr, twice["label"].drop_duplicates()))
        raise UserError(
            f"panel {twice['panel'].iloc[0]!r}: two runs of {labels} have seed "
            f"{twice['seed'].iloc[0]:g} in one place of a figure or table. Show settings that "
            "differ in anything else apart: in panels or under labels of their own."
        )


def sample(runs: pd.DataFrame, metric: Metric) -> Sample:
    """Gather the runs of one configuration, which differ only in their seed.

    Raises:
        UserError: two of them have the same seed, so that they are of two configurations.
    """
    require_one_each(runs)
    statuses = list(runs["status"])
    done = [
        (int(seed), float(score))
        for status, seed, score in zip(statuses, runs["seed"], runs[metric.column], strict=True)
        if status == "completed" and math.isfinite(score)
    ]
    missing, corrupt = statuses.count("missing"), statuses.count("corrupt")
    return Sample(
        values=dict(done),
        diverged=len(runs) - len(done) - missing - corrupt,
        missing=missing,
        corrupt=corrupt,
    )


def paired_differences(
    first: Mapping[int, float], second: Mapping[int, float], *, higher_is_better: bool = True
) -> dict[int, float]:
    """Return by how much the first is better than the second, for each seed that they share."""
    sign = 1.0 if higher_is_better else -1.0
    return {seed: sign * (first[seed] - second[seed]) for seed in sorted({*first} & {*second})}


@dataclass(frozen=True)
class Interval:
    """A mean and its 95% confidence interval, whose ends are NaN where there is none."""

    mean: float
    low: float
    high: float

    def show(self, metric: Metric) -> str:
        """Return the mean in the metric's unit, with the ends in brackets where there are some."""
        mean, low, high = (metric.show(value) for value in (self.mean, self.low, self.high))
        return mean if math.isnan(self.low) else f"{mean} [{low}, {high}]"


def t_quantile(freedom: float, level: float = LEVEL) -> float:
    """Return how many standard errors a two-sided t-interval reaches."""
    return float(stats.t.ppf((1 + level) / 2, freedom))


def paired_interval(differences: Mapping[int, float]) -> Interval:
    """Return the t-interval of a mean difference by seed.

    There is none of fewer than two values, nor of equal ones: few seeds agree by chance where
    accuracies are shares of a small test set, and their spread would say that the mean is exact.
    """
    values = list(differences.values())
    mean = float(np.mean(values)) if values else math.nan
    if len(values) < 2 or np.ptp(values) < ROUNDING:
        return Interval(mean, math.nan, math.nan)
    reach = t_quantile(len(values) - 1) * float(stats.sem(values))
    return Interval(mean, mean - reach, mean + reach)


def advantage(first: Mapping[int, float], second: Mapping[int, float], metric: Metric) -> Interval:
    """Return by how much the first is better, over the seeds that both have."""
    up = metric.higher_is_better
    return paired_interval(paired_differences(first, second, higher_is_better=up))


def chance_above(gap: float, spread: float, n: int) -> float:
    """Return how probably a t-interval of n values lies above a bound below their expectation.

    Args:
        gap: the expectation less the bound.
        spread: the standard deviation of the values, which are normal.
        n: how many there are.

    Returns:
        The power of the one-sided t-test at the level of one end of the interval.
    """
    if n < 2:
        return 0.0
    if spread == 0:
        return float(gap > 0)
    quantile = t_quantile(n - 1)
    return float(stats.nct.sf(quantile, n - 1, gap * math.sqrt(n) / spread))


def resolved(spread: float, n: int, chance: float) -> float:
    """Return the gap that `chance_above` gives this chance; infinite for fewer than two values."""
    if n < 2:
        return math.inf
    quantile = t_quantile(n - 1)
    return float(special.nctdtrinc(n - 1, 1 - chance, quantile)) * spread / math.sqrt(n)


def sampling_error(share: float, examples: float) -> float:
    """Return the standard error √(p(1−p)/n) of a share p of n independent examples.

    The mean of scores between 0 and 1 has at most this.
    """
    return math.sqrt(share * (1 - share) / examples) if examples > 0 else math.nan


def exceeds_chance(mean: float, chance: float, metric: Metric, examples: float) -> bool:
    """Return whether a mean is better than a constant prediction; so it is where that is unknown.

    Args:
        mean, chance: the two levels.
        metric: what they are of. An accuracy must be better by more than the 95% reach of its
            standard error on the test split.
        examples: of the test split.
    """
    reach = 0.0
    if metric.column == ACCURACY.column:
        reach = float(stats.norm.ppf((1 + LEVEL) / 2)) * sampling_error(chance, examples)
    return not metric.sign * (mean - chance) <= reach


@dataclass(frozen=True)
class Verdict(Generic[K]):
    """Which methods lead a column.

    Attributes:
        leaders: all that can be the best; they are printed bold.
        p_values: of `best_p_values` for each method but the one with the best mean.
        withheld: why there are no leaders; empty where there are some.
    """

    leaders: frozenset[K] = frozenset()
    p_values: Mapping[K, float] = field(default_factory=dict)
    withheld: Withheld = ""


def judge(samples: Mapping[K, Sample], *, higher_is_better: bool) -> Verdict[K]:
    """Find all competitors that can be the best.

    The test is `best_p_values` over seeds, whose set contains the best with probability ≥ 1 − α,
    although the same seeds choose the highest mean. With fewer than `SEEDS_NEEDED` seeds it can
    exclude nothing, whatever the results.

    The mean over the runs that survived flatters a method that diverges, so only methods whose
    planned runs all completed can lead, and one of them alone is compared with nothing. A column
    with missing or damaged runs, or with methods on different seeds, has no leaders.
    `samples` are those of the competitors of one column.
    """
    if any(sample.missing or sample.corrupt for sample in samples.values()):
        return Verdict(withheld="unfinished")
    if len(samples) < 2:
        return Verdict(withheld="alone")
    able = {key: sample for key, sample in samples.items() if sample.complete}
    if not able:
        return Verdict(withheld="failed")
    if len(able) < 2:
        return Verdict(withheld="others failed")
    seeds, *others = (set(sample.values) for sample in able.values())
    if any(other != seeds for other in others):
        return Verdict(withheld="seeds")  # the highest mean could be one of easier seeds
    shared = sorted(seeds)
    if len(shared) < SEEDS_NEEDED:
        return Verdict(withheld="few seeds")
    sign = 1.0 if higher_is_better else -1.0
    scores = sign * np.array([[one.values[seed] for seed in shared] for one in able.values()])
    p_values = dict(zip(able, best_p_values(scores).tolist(), strict=True))
    leaders = frozenset(key for key, p_value in p_values.items() if p_value > ALPHA)
    best = max(able, key=lambda key: sign * able[key].mean)
    return Verdict(leaders, {key: p for key, p in p_values.items() if key != best})


# ---- Across tasks: a task is a dataset and a model at one budget

Scores = Sequence[NDArray[np.float64]]  # one array over seeds per task; higher is better
Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]

RESAMPLES = 2000


def interquartile_mean(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the middle half of scores of shape (…, n), along the last axis.

    A run without a score counts as −∞: either it falls in the lowest quarter, or the mean is −∞.
    """
    return np.asarray(stats.trim_mean(scores, 0.25, axis=-1))


def bootstrap(
    tasks: Scores, statistic: Statistic, *, resamples: int = RESAMPLES
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a percentile interval of a statistic over the runs of several tasks together.

    Seeds are resampled with replacement within each task (a stratified bootstrap); the tasks
    themselves are fixed. With few seeds the interval is too short. The same scores give the same
    interval.

    Args:
        tasks: scores over seeds, one array per task.
        statistic: of scores of shape (…, n), along the last axis; may add axes at the end.
        resamples: number of bootstrap samples.

    Returns:
        Lower and upper end at a nominal 95%, each of the statistic's shape; nan where a task has
        one seed alone, which says nothing of their spread.

    Source: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
    Precipice", section 4.
    """
    if min(map(len, tasks)) < 2:
        unknown = np.full_like(statistic(np.concatenate(tasks)), np.nan)
        return unknown, unknown
    generator = np.random.default_rng(0)
    drawn = [task[generator.integers(len(task), size=(resamples, len(task)))] for task in tasks]
    values = statistic(np.concatenate(drawn, axis=1))
    tail = (1 - LEVEL) / 2
    # The nearest rank, because nothing can be interpolated between −∞ and a number.
    low, high = np.quantile(values, [tail, 1 - tail], axis=0, method="nearest")
    return low, high


def interquartile_interval(tasks: Scores) -> Interval:
    """Return the interquartile mean over the runs of several tasks, with its bootstrap interval."""
    low, high = bootstrap(tasks, interquartile_mean)
    return Interval(float(interquartile_mean(np.concatenate(tasks))), float(low), float(high))


def profile(thresholds: NDArray[np.float64]) -> Statistic:
    """Return the statistic that gives the share of runs that reach each of k thresholds.

    Source: Agarwal et al. 2021, section 4.2 (score distributions).
    """

    def share(scores: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((scores[..., None, :] >= thresholds[:, None]).mean(axis=-1))

    return share
