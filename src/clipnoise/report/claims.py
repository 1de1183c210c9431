"""Whether claims of a paper hold: paired differences over seeds, beside the bounds claimed."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from clipnoise.report.formats import ALONG, DROP, Metric, budget, count, metric_of
from clipnoise.report.published import BEST
from clipnoise.report.records import NON_PRIVATE, Place, split, where
from clipnoise.report.statistics import (
    Interval,
    Sample,
    chance_above,
    paired_differences,
    paired_interval,
    resolved,
    sample,
)
from clipnoise.report.tables import choose_metric
from clipnoise.studies.file import PaperClaim

Answer = Literal["holds", "does not hold", "cannot be told"]
WORST_FIRST: tuple[Answer, ...] = ("does not hold", "cannot be told", "holds")
NOT_EVIDENCE = "not evidence"
NOT_PRINTED = "not printed"
CHANCE = (
    0.8  # that a replication with the paper's own means and deviations shows that a claim holds
)
MOST_SEEDS = 10_000
CLAIM_NOTE = (
    "Difference: positive where the method named first is better; its mean over seeds, and in "
    "brackets the 95% t-interval of the paired differences. A claim holds if the whole interval "
    "lies within the bounds claimed, does not hold if all of it lies outside, and cannot be told "
    "otherwise, or where a run is missing or diverged. Of several competitors the table names the "
    "one that decides. “About” adds a margin, which follows from the standard deviations that the "
    "paper prints and from the number of seeds. In print: what the paper's own numbers give. Seeds "
    f"resolve a claim if runs with the means and deviations of the paper show that it holds with a "
    f"probability of {CHANCE:.0%}. Intervals are not corrected for the number of claims, nor for "
    "that of places and competitors: the verdict of a claim is its worst, so that one that is true "
    "in many places is called false more often than in one in twenty. Where the best of several "
    "competitors is subtracted, it was chosen on the same seeds, which is to the disadvantage of "
    "the claim. Equal differences on all seeds have no interval, and cannot be told."
)

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Found:
    """What runs, or numbers in print, say of a claim in one place, against one competitor.

    Attributes:
        place: dataset, model and budget in words; those of a mean together.
        sides: the method and its competitor, or the method alone.
        metric: how the advantage is written.
        values: how much better the method is than the competitor, by seed.
        lost: why there are no values; empty where there are some.
        exact: whether the only value holds for all seeds.
        spread: in print, the standard deviation over seeds of the advantage; NaN if unknown.
        seeds: in print, how many seeds the study plans.
    """

    place: str
    sides: str
    metric: Metric
    values: Mapping[int, float]
    lost: str = ""
    exact: bool = False
    spread: float = math.nan
    seeds: int = 0

    @property
    def interval(self) -> Interval:
        """Of the advantage."""
        return paired_interval(self.values)

    def verdict(self, bounds: Bounds) -> Answer:
        """Return whether the interval lies within bounds, beyond one of them, or across one."""
        (low, high), found = bounds, self.interval
        least, most = (found.mean, found.mean) if self.exact else (found.low, found.high)
        if low < least and most < high:
            return "holds"
        return "does not hold" if most < low or least > high else "cannot be told"

    def chance(self, bounds: Bounds, seeds: int) -> float:
        """Return how probably so many seeds show that a claim holds; at least so."""
        mean, (low, high) = self.interval.mean, bounds
        gaps = (gap for gap in (mean - low, high - mean) if math.isfinite(gap))
        return 1 - sum(1 - chance_above(gap, self.spread, seeds) for gap in gaps)


@dataclass(frozen=True)
class Printed:
    """What the paper's own numbers say of a claim.

    Attributes:
        found: every comparison of which both sides are printed.
        left_out: how many comparisons are not printed.
        bounds: the bounds of the claim, with its margin.
    """

    found: tuple[Found, ...]
    left_out: int
    bounds: Bounds

    @property
    def verdict(self) -> Answer | None:
        """Whether the printed numbers, taken as exact, lie within the bounds; None without any."""
        verdicts = [one.verdict(self.bounds) for one in self.found]
        return min(verdicts, key=WORST_FIRST.index) if verdicts else None

    @property
    def seeds(self) -> int:
        """How many seeds the study plans."""
        return min((one.seeds for one in self.found), default=0)

    @property
    def needed(self) -> int | None:
        """How many seeds resolve the claim; None if that is unknown or above `MOST_SEEDS`."""
        if self.verdict != "holds" or not self._resolve(MOST_SEEDS):
            return None
        numbers = range(2, MOST_SEEDS + 1)
        return numbers[bisect_left(numbers, True, key=self._resolve)]

    def _resolve(self, seeds: int) -> bool:
        return sum(1 - one.chance(self.bounds, seeds) for one in self.found) <= 1 - CHANCE

    @property
    def range(self) -> str:
        """The printed advantage: one number, or the smallest and the largest of each metric."""
        by_metric: dict[Metric, list[float]] = {}
        for one in self.found:
            # A difference of printed numbers has no more than a few digits, and no −0.
            by_metric.setdefault(one.metric, []).append(round(one.interval.mean, 9) + 0.0)
        ends = ((metric, (min(each), max(each))) for metric, each in by_metric.items())
        return ", ".join(
            " to ".join(dict.fromkeys(metric.show(end) for end in both)) for metric, both in ends
        )

    def say(self) -> str:
        """Return it in words."""
        if self.verdict is None:
            return "nothing"
        left = f" ({count(self.left_out, 'comparison')} not printed)" if self.left_out else ""
        return f"{self.range}{left}; {self._resolution()}"

    def _resolution(self) -> str:
        if self.verdict != "holds":
            contradicts = self.verdict == "does not hold"
            return "contradicts the claim" if contradicts else "exactly on a bound of the claim"
        if any(math.isnan(one.spread) for one in self.found):
            return "without a deviation, so how many seeds resolve it is unknown"
        needed, seeds = self.needed, count(self.seeds, "seed")
        if needed is not None and needed <= self.seeds:
            return f"{seeds} resolve it"
        most = f"more than {MOST_SEEDS:,}" if needed is None else f"{needed:,}"
        return f"not resolvable with {seeds} (it takes {most})"


@dataclass(frozen=True, kw_only=True)
class ClaimPlace:
    """The verdict on a claim in one place, in words."""

    place: str
    sides: str
    difference: str
    verdict: str


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """A claim with its verdict, in words.

    Attributes:
        text: what the paper says.
        source: where it says so.
        bounds: what is claimed of which metric.
        votes: in how many places it holds and does not, where that differs.
        print: what the paper's own numbers say.
        verdict: the worst of all places.
        found: the places.
        seeds: how many the study plans; None for claims that no study makes.
        needed: how many resolve it; None if that is unknown, or more than `MOST_SEEDS`.
    """

    text: str
    source: str
    bounds: str
    votes: str
    print: str = ""
    verdict: str
    found: list[ClaimPlace]
    seeds: int | None = None
    needed: int | None = None


def claims_data(
    claims: Iterable[Sequence[PaperClaim]],
    runs: pd.DataFrame,
    curves: pd.DataFrame,
    printed: pd.DataFrame,
    watermark: str,
) -> list[ClaimRow]:
    """Return every claim of a study with its verdict.

    Args:
        claims: of the study, each as one of each of its panels.
        runs, curves: as `read_runs` and `read_curves` return them.
        printed: what the paper prints, as `printed_runs` returns it.
        watermark: where there is one, no verdict is given.
    """
    every = _with_curves(runs, curves)
    rows = []
    for claim in claims:
        paper = in_print(claim, printed)
        found = deciding(comparisons(claim, every), paper.bounds)
        rows.append(_row(claim[0], paper, found, watermark))
    return rows


def printed_data(claims: Iterable[Sequence[PaperClaim]], printed: pd.DataFrame) -> list[ClaimRow]:
    """Return every claim of a study as `claims_data` does, judged by the printed numbers alone.

    Args:
        claims: of the study, each as one of each of its panels.
        printed: what the paper prints, as `printed_runs` returns it.
    """
    rows = []
    for claim in claims:
        paper = in_print(claim, printed)
        found = deciding(paper.found or comparisons(claim, printed), paper.bounds)
        row = _row(claim[0], paper, found, "")
        rows.append(row if paper.found else replace(row, verdict=NOT_PRINTED))
    return rows


def _row(claim: PaperClaim, paper: Printed, found: Sequence[Found], watermark: str) -> ClaimRow:
    row = claim_row((claim.text, claim.source), paper.bounds, found, watermark)
    about = "" if claim.about is None else f" (about {_size(claim.bounds, found[0].metric)})"
    return replace(
        row,
        bounds=row.bounds + about,
        print=" ".join(filter(None, [f"{paper.say()}.", claim.contradicted])),
        seeds=paper.seeds,
        needed=paper.needed,
    )


def _size(bounds: Bounds, metric: Metric) -> str:
    """Return in words what a paper says that an advantage is about."""
    low, high = (metric.show(bound) for bound in bounds)
    if math.isinf(bounds[1]):
        return f"{low} or more"
    return f"{high} or less" if math.isinf(bounds[0]) else " to ".join(dict.fromkeys((low, high)))


def in_print(claim: Sequence[PaperClaim], printed: pd.DataFrame) -> Printed:
    """Hold a claim against the paper's own numbers, as `printed_runs` returns them."""
    every = comparisons(claim, printed)
    found = tuple(one for one in every if not one.lost)
    ends = len(found) * sum(map(math.isfinite, claim[0].bounds))
    margin = math.inf
    if found and not any(math.isnan(one.spread) for one in found):
        # Each end of each interval is missed by so little that all of them together are found.
        spread, seeds = max(one.spread for one in found), min(one.seeds for one in found)
        margin = resolved(spread, seeds, 1 - (1 - CHANCE) / ends)
    return Printed(found, len(every) - len(found), claim[0].widened(margin))


def claim_row(
    claim: tuple[str, str], bounds: Bounds, found: Sequence[Found], watermark: str
) -> ClaimRow:
    """Return a claim with its verdict.

    Args:
        claim: its text and its source.
        bounds: what is claimed.
        found: the verdict in each place, each of which must hold.
        watermark: where there is one, no verdict is given.
    """
    verdicts = [one.verdict(bounds) for one in found]
    votes = Counter(() if watermark else verdicts)
    several = "; ".join(f"{name} in {votes[name]}" for name in votes) if len(votes) > 1 else ""
    said = dict.fromkeys(filter(None, (one.metric.heading for one in found)))
    words = ": ".join(filter(None, [" or ".join(said), _bounds_text(bounds, found[0].metric)]))
    return ClaimRow(
        text=claim[0],
        source=claim[1],
        bounds=words,
        votes=several,
        verdict=NOT_EVIDENCE if watermark else min(verdicts, key=WORST_FIRST.index),
        found=[
            ClaimPlace(
                place=one.place,
                sides=one.sides,
                difference=one.lost or one.interval.show(one.metric),
                verdict=NOT_EVIDENCE if watermark else verdict,
            )
            for one, verdict in zip(found, verdicts, strict=True)
        ],
    )


def _metric(claim: PaperClaim, runs: pd.DataFrame) -> Metric:
    return choose_metric(runs) if claim.metric is None else metric_of(claim.metric)


def _bounds_text(bounds: Bounds, metric: Metric) -> str:
    """Return the bounds of a claim in words, in the unit of the metric."""
    low, high = (metric.show(bound) for bound in bounds)
    if math.isinf(bounds[1]):
        return "above 0" if bounds[0] == 0 else f"at least {low}"
    return f"at most {high}" if math.isinf(bounds[0]) else f"between {low} and {high}"


# ---- From runs to differences


def _with_curves(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Add the statistics of each run's curve to its row."""
    accuracy = curves.drop_duplicates(["hash", "step"]).groupby("hash")["test_accuracy"]
    drops = accuracy.apply(lambda values: float((-values.diff()).clip(lower=0).max()))
    columns = {DROP.column: drops, ALONG.column: accuracy.mean()}
    return runs.assign(**{name: runs["hash"].map(values) for name, values in columns.items()})


def comparisons(claims: Sequence[PaperClaim], runs: pd.DataFrame) -> list[Found]:
    """Return what was found in each place against each competitor, or of the mean over places.

    Args:
        claims: one claim, of each of its panels.
        runs: of the study, or what a paper prints of them.
    """
    claim = claims[0]
    every = [found for one in claims for found in _against_each(one, runs)]
    if not every:
        return [Found("", claim.method, _metric(claim, runs), {}, "no such run")]
    if claim.over == "each":
        return every
    if claim.against == "best":
        return [_mean(every, f"{claim.method} − the best of each")]
    sides = dict.fromkeys(one.sides for one in every)
    return [_mean([one for one in every if one.sides == side], side) for side in sides]


def deciding(found: Iterable[Found], bounds: Bounds) -> list[Found]:
    """Return the competitor that decides in each place: the worst verdict, then the nearest."""
    at: dict[str, list[Found]] = {}
    for one in found:
        at.setdefault(one.place, []).append(one)

    def rank(one: Found) -> tuple[int, float]:
        mean, (low, high) = one.interval.mean, bounds
        return WORST_FIRST.index(one.verdict(bounds)), min(mean - low, high - mean)

    return [min(each, key=rank) for each in at.values()]


def _mean(found: Sequence[Found], sides: str) -> Found:
    """Return the mean over places, seed by seed; unknown if it is in one place."""
    lost = next((one.lost for one in found if one.lost), "")
    seeds = set.intersection(*(set(one.values) for one in found))
    means = {seed: sum(one.values[seed] for one in found) / len(found) for seed in sorted(seeds)}
    return Found(
        f"mean of {count(len(found), 'place')}",
        sides,
        found[0].metric,
        means,
        lost,
        found[0].exact,
        math.hypot(*(one.spread for one in found)) / len(found),
        min(one.seeds for one in found),
    )


@dataclass(frozen=True)
class _Reading:
    """What a table of runs, or of printed numbers, has of a configuration.

    Attributes:
        sample: its runs; in print one value that holds for all seeds.
        deviation: in print, the standard deviation over seeds; NaN if unknown.
        seeds: in print, how many the study plans; 0 of runs.
    """

    sample: Sample
    deviation: float = math.nan
    seeds: int = 0


def _against_each(claim: PaperClaim, runs: pd.DataFrame) -> Iterator[Found]:
    """Yield what was found in each place: against each competitor, or the best of them."""
    (panel,) = claim.panels
    here, beside = (where(runs, panel=name) for name in (panel, claim.than_panel or panel))
    metric = _metric(claim, here)
    ours = _readings(where(here, label=claim.method), claim, metric, claim.datasets)
    there = (claim.than_dataset,) if claim.than_dataset else claim.datasets
    theirs = {
        label: _readings(where(beside, label=label), claim, metric, there)
        for label in (BEST, *claim.than)
    }
    best = theirs.pop(BEST)
    if claim.against == "best" and best:
        theirs = {BEST: best}
    for at, method in ours.items():
        dataset, model, text = at
        # A panel is often named for its dataset.
        place = ", ".join(dict.fromkeys([panel, dataset, model, budget(text)]))
        if not theirs:
            yield _compared(place, claim.method, method, None, metric)
        at_theirs = (claim.than_dataset or dataset, model, text)
        on = f" on {claim.than_dataset}" if claim.than_dataset else ""
        found = ((f"{label}{on}", _beside(at_theirs, each)) for label, each in theirs.items())
        others = {label: other for label, other in found if other is not None}
        for label, other in _chosen(others, claim, metric):
            yield _compared(place, f"{claim.method} − {label}", method, other, metric)


def _beside(at: Place, others: Mapping[Place, _Reading]) -> _Reading | None:
    """Return a competitor at a place, or at the only budget that it has there."""
    alike = [other for place, other in others.items() if place[:2] == at[:2]]
    return others.get(at, alike[0] if len(alike) == 1 else None)


def _chosen(
    others: Mapping[str, _Reading], claim: PaperClaim, metric: Metric
) -> Iterable[tuple[str, _Reading]]:
    """Return the competitors of a place, or its best one, which is unknown if one is not known."""
    if claim.against == "each" or not others:
        return others.items()
    lost = [(label, other) for label, other in others.items() if not other.sample.complete]
    return lost[:1] or [max(others.items(), key=lambda pair: metric.sign * pair[1].sample.mean)]


def _readings(
    chosen: pd.DataFrame, claim: PaperClaim, metric: Metric, datasets: Sequence[str]
) -> dict[Place, _Reading]:
    """Return the runs of a method by place, where the claim is about that place."""
    for column, names in (("dataset", datasets), ("model", claim.models)):
        chosen = chosen[chosen[column].isin(names)] if names else chosen
    budgets = [NON_PRIVATE, *(f"eps={epsilon:g}" for epsilon in claim.epsilons)]
    chosen = chosen[chosen["budget"].isin(budgets)] if claim.epsilons else chosen
    if metric.column not in chosen.columns:
        return {}
    places = split(chosen, "dataset", "model", "budget")
    return {place: _reading(rows, metric) for place, rows in places}


def _reading(rows: pd.DataFrame, metric: Metric) -> _Reading:
    if "seeds" not in rows.columns:
        return _Reading(sample(rows, metric))
    deviation = float(rows[f"{metric.column} deviation"].iloc[0])
    return _Reading(sample(rows, metric), deviation, int(rows["seeds"].iloc[0]))


def _compared(
    place: str, sides: str, method: _Reading, other: _Reading | None, metric: Metric
) -> Found:
    """Take the differences by shared seed, or the values themselves without a competitor."""
    for one in (method, other):
        if one is not None and not one.sample.complete:
            runs = f"{one.sample.n}/{one.sample.planned} runs"
            return Found(place, sides, metric, {}, NOT_PRINTED if method.seeds else runs)
    exact, seeds = method.seeds > 0, method.seeds
    if other is None:
        values, spread = method.sample.values, method.deviation
    else:
        up = metric.higher_is_better
        values = paired_differences(method.sample.values, other.sample.values, higher_is_better=up)
        spread = math.hypot(method.deviation, other.deviation)
    return Found(place, sides, metric, values, "", exact, spread, seeds)


def quantity_found(sides: str, value: float) -> Found:
    """Return what one computed number, of an experiment without seeds, says of a claim."""
    return Found("", sides, Metric("", ""), {0: value}, exact=True)
