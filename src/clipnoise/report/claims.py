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
    """What the runs say of a claim in one place, against one competitor.

    Attributes:
        place: dataset, model and budget in words; those of a mean together.
        sides: the method and its competitor, or the method alone.
        metric: how the advantage is written.
        values: how much better the method is than the competitor, by seed.
        lost: why there are no values; empty where there are some.
        exact: whether the only value holds for all seeds.
    """

    place: str
    sides: str
    metric: Metric
    values: Mapping[int, float]
    lost: str = ""
    exact: bool = False

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
            _found(placed, every),
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
    verdicts = [one.verdict(bounds) for one in found]
    votes = Counter(() if watermark else verdicts)
    several = "; ".join(f"{name} in {votes[name]}" for name in votes) if len(votes) > 1 else ""
    said = dict.fromkeys(filter(None, (one.metric.heading for one in found)))
    words = ": ".join(filter(None, [" or ".join(said), _bounds_text(bounds, found[0].metric)]))
    return {
        **{"text": claim[0], "source": claim[1], "bounds": words, "votes": several},
        "verdict": NOT_EVIDENCE if watermark else min(verdicts, key=WORST_FIRST.index),
        "found": [
            {
                **{"place": one.place, "sides": one.sides},
                "difference": one.lost or one.interval.show(one.metric),
                "verdict": NOT_EVIDENCE if watermark else verdict,
            }
            for one, verdict in zip(found, verdicts, strict=True)
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


def _found(placed: PlacedClaim, runs: pd.DataFrame) -> list[Found]:
    """Return what was found in each place, or of the mean over all places.

    It is against the competitor that decides: the worst verdict, then the nearest competitor.
    """
    claim = placed.claim
    every = [found for one in placed.contrasts for found in _against_each(one, claim, runs)]
    if not every:
        return [Found("", claim.method, _metric(claim, runs), {}, "no such run")]
    places = dict.fromkeys(one.place for one in every)
    if claim.over != "each":
        place = f"mean of {count(len(places), 'place')}"
        sides = dict.fromkeys(one.sides for one in every)
        every = [_mean(place, [one for one in every if one.sides == side]) for side in sides]
        places = {place: None}

    def deciding(one: Found) -> tuple[int, float]:
        return WORST_FIRST.index(one.verdict(claim.bounds)), one.interval.mean

    return [min((one for one in every if one.place == at), key=deciding) for at in places]


def _mean(place: str, found: Sequence[Found]) -> Found:
    """Return the mean over places, seed by seed; unknown if it is in one place."""
    lost = next((one.lost for one in found if one.lost), "")
    seeds = set.intersection(*(set(one.values) for one in found))
    means = {seed: sum(one.values[seed] for one in found) / len(found) for seed in sorted(seeds)}
    return Found(place, found[0].sides, found[0].metric, means, lost)


def _against_each(contrast: Contrast, claim: PaperClaim, runs: pd.DataFrame) -> Iterator[Found]:
    """Yield what was found in each place against each competitor there."""
    metric = _metric(claim, where(runs, panel=contrast.method.panel))
    ours = _samples(contrast.method, claim, runs, metric)
    theirs = {side: _samples(side, claim, runs, metric) for side in contrast.than}
    for (dataset, model, text), method in ours.items():
        # A panel is often named for its dataset.
        place = ", ".join(dict.fromkeys([contrast.method.panel, dataset, model, budget(text)]))
        if not theirs:
            yield _compared(place, contrast.method.label, method, None, metric)
        for side, samples in theirs.items():
            alike = [other for at, other in samples.items() if at[:2] == (dataset, model)]
            other = samples.get((dataset, model, text), alike[0] if len(alike) == 1 else None)
            if other is not None:
                sides = f"{contrast.method.label} − {side.label}"
                yield _compared(place, sides, method, other, metric)


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


def _compared(
    place: str, sides: str, method: Sample, other: Sample | None, metric: Metric
) -> Found:
    """Take the differences by shared seed, or the values themselves without a competitor."""
    for one in (method, other):
        if one is not None and not one.complete:
            return Found(place, sides, metric, {}, f"{one.n}/{one.planned} runs")
    if other is None:
        return Found(place, sides, metric, method.values)
    up = metric.higher_is_better
    values = paired_differences(method.values, other.values, higher_is_better=up)
    return Found(place, sides, metric, values)


def quantity_found(sides: str, value: float) -> Found:
    """Return what one computed number, of an experiment without seeds, says of a claim."""
    return Found("", sides, Metric("", ""), {0: value}, exact=True)
