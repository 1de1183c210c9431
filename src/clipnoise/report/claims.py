"""Whether claims of a paper hold: paired differences over seeds, beside the bounds claimed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from clipnoise.report.formats import ALONG, DROP, Metric, budget, count, metric_of
from clipnoise.report.records import NON_PRIVATE, Place, split, where
from clipnoise.report.statistics import (
    Interval,
    Sample,
    paired_differences,
    paired_interval,
    sample,
)
from clipnoise.report.tables import choose_metric
from clipnoise.studies.claims import Contrast, PlacedClaim, Side
from clipnoise.studies.file import PaperClaim

Answer = Literal["holds", "does not hold", "cannot be told"]
WORST_FIRST: tuple[Answer, ...] = ("does not hold", "cannot be told", "holds")
NOT_EVIDENCE = "not evidence"
CLAIM_NOTE = (
    "Difference: positive where the method named first is better; its mean over seeds, and in "
    "brackets the 95% t-interval of the paired differences. A claim holds if the whole interval "
    "lies within the bounds claimed, does not hold if all of it lies outside, and cannot be told "
    "otherwise, or where a run is missing or diverged. Of several competitors the table names the "
    "one that decides. Intervals are not corrected for the number of claims."
)

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Found:
    """What the runs say of a claim in one place.

    Attributes:
        place: dataset, model and budget in words; those of a mean together.
        sides: the method and its competitor, or the method alone.
        interval: of the advantage.
        verdict: on the claim here.
        metric: how the advantage is written.
        lost: why there is no interval; empty where there is one.
    """

    place: str
    sides: str
    interval: Interval
    verdict: Answer
    metric: Metric
    lost: str = ""


def answer(interval: Interval, bounds: Bounds) -> Answer:
    """Return whether an interval lies within bounds, beyond one of them, or across one."""
    low, high = bounds
    if low < interval.low and interval.high < high:
        return "holds"
    if interval.high < low or interval.low > high:
        return "does not hold"
    return "cannot be told"


def claims_data(
    claims: Iterable[PlacedClaim], runs: pd.DataFrame, curves: pd.DataFrame, watermark: str
) -> list[dict[str, Any]]:
    """Return every claim of a study with its verdict as plain data for the PDF template.

    Where there is a watermark, no verdict is given.
    """
    every = _with_curves(runs, curves)
    return [
        claim_row(
            (placed.claim.text, placed.claim.source),
            placed.claim.bounds,
            list(_found(placed, every)),
            watermark,
        )
        for placed in claims
    ]


def claim_row(
    claim: tuple[str, str], bounds: Bounds, found: Sequence[Found], watermark: str
) -> dict[str, Any]:
    """Return a claim as plain data.

    Args:
        claim: its text and its source.
        bounds: what is claimed.
        found: the verdict in each place, each of which must hold.
        watermark: where there is one, no verdict is given.
    """
    overall = min((one.verdict for one in found), key=WORST_FIRST.index)
    votes = Counter(one.verdict for one in found if not watermark)
    several = "; ".join(f"{name} in {votes[name]}" for name in votes) if len(votes) > 1 else ""
    said = dict.fromkeys(filter(None, (one.metric.heading for one in found)))
    words = ": ".join(filter(None, [" or ".join(said), _bounds_text(bounds, found[0].metric)]))
    return {
        **{"text": claim[0], "source": claim[1], "bounds": words, "votes": several},
        "verdict": NOT_EVIDENCE if watermark else overall,
        "found": [
            {
                **{"place": one.place, "sides": one.sides},
                "difference": one.lost or one.interval.show(one.metric),
                "verdict": NOT_EVIDENCE if watermark else one.verdict,
            }
            for one in found
        ],
    }


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


def _found(placed: PlacedClaim, runs: pd.DataFrame) -> Iterator[Found]:
    """Yield what was found in each place, or of the mean over all places."""
    pairs = [pair for one in placed.contrasts for pair in _pairs(one, placed.claim, runs)]
    bounds = placed.claim.bounds
    if not pairs:
        nothing = Interval(math.nan, math.nan, math.nan)
        metric = _metric(placed.claim, runs)
        yield Found("", placed.claim.method, nothing, "cannot be told", metric, "no such run")
    elif placed.claim.over == "each":
        for place in dict.fromkeys(place for place, _, _ in pairs):
            here = [(sides, advantage) for at, sides, advantage in pairs if at == place]
            yield _decisive(place, here, bounds)
    else:
        by_sides: dict[str, list[Advantage]] = {}
        for _, sides, advantage in pairs:
            by_sides.setdefault(sides, []).append(advantage)
        means = [(sides, _mean(advantages)) for sides, advantages in by_sides.items()]
        yield _decisive(f"mean of {count(len({p for p, _, _ in pairs}), 'place')}", means, bounds)


@dataclass(frozen=True)
class Advantage:
    """How much better a method is than another one, by seed; `lost` says why that is unknown."""

    values: Mapping[int, float]
    metric: Metric
    lost: str = ""


def _decisive(place: str, here: Sequence[tuple[str, Advantage]], bounds: Bounds) -> Found:
    """Return the finding against the competitor that decides: the worst verdict, then the nearest
    competitor.
    """
    every = []
    for sides, advantage in here:
        interval = paired_interval(advantage.values)
        told: Answer = "cannot be told" if advantage.lost else answer(interval, bounds)
        every.append(Found(place, sides, interval, told, advantage.metric, advantage.lost))
    return min(every, key=lambda one: (WORST_FIRST.index(one.verdict), one.interval.mean))


def _mean(advantages: Sequence[Advantage]) -> Advantage:
    """Return the mean over places, seed by seed; unknown if it is in one place."""
    lost = next((one.lost for one in advantages if one.lost), "")
    seeds = set.intersection(*(set(one.values) for one in advantages))
    means = {s: sum(one.values[s] for one in advantages) / len(advantages) for s in sorted(seeds)}
    return Advantage(means, advantages[0].metric, lost)


def _pairs(
    contrast: Contrast, claim: PaperClaim, runs: pd.DataFrame
) -> Iterator[tuple[str, str, Advantage]]:
    """Yield place, sides and advantage of a method over each of its competitors."""
    metric = _metric(claim, where(runs, panel=contrast.method.panel))
    ours = _samples(contrast.method, claim, runs, metric)
    theirs = {side: _samples(side, claim, runs, metric) for side in contrast.than}
    for (dataset, model, text), method in ours.items():
        # A panel is often named for its dataset.
        place = ", ".join(dict.fromkeys([contrast.method.panel, dataset, model, budget(text)]))
        if not theirs:
            yield place, contrast.method.label, _advantage(method, None, metric)
        for side, samples in theirs.items():
            alike = [other for at, other in samples.items() if at[:2] == (dataset, model)]
            other = samples.get((dataset, model, text), alike[0] if len(alike) == 1 else None)
            if other is not None:
                sides = f"{contrast.method.label} − {side.label}"
                yield place, sides, _advantage(method, other, metric)


def _samples(
    side: Side, claim: PaperClaim, runs: pd.DataFrame, metric: Metric
) -> dict[Place, Sample]:
    """Return the runs of a method by place, where the claim is about that place."""
    chosen = where(runs, panel=side.panel, label=side.label)
    for column, names in (("dataset", claim.datasets), ("model", claim.models)):
        chosen = chosen[chosen[column].isin(names)] if names else chosen
    budgets = [NON_PRIVATE, *(f"eps={epsilon:g}" for epsilon in claim.epsilons)]
    chosen = chosen[chosen["budget"].isin(budgets)] if claim.epsilons else chosen
    if metric.column not in chosen.columns:
        return {}
    places = split(chosen, "dataset", "model", "budget")
    return {place: sample(rows, metric) for place, rows in places}


def _advantage(method: Sample, other: Sample | None, metric: Metric) -> Advantage:
    """Return the differences by shared seed, or the values themselves without a competitor."""
    for one in (method, other):
        if one is not None and not one.complete:
            return Advantage({}, metric, f"{one.n}/{one.planned} runs")
    if other is None:
        return Advantage(method.values, metric)
    up = metric.higher_is_better
    return Advantage(paired_differences(method.values, other.values, higher_is_better=up), metric)


# ---- Of experiments without seeds


def quantity_found(sides: str, value: float, bounds: Bounds) -> Found:
    """Return what one computed number says of a claim."""
    interval = Interval(value, value, value)
    told = "cannot be told" if math.isnan(value) else answer(interval, bounds)
    return Found("", sides, Interval(value, math.nan, math.nan), told, Metric("", ""))
