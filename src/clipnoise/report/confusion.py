"""Results by class and by group: from how often each class was predicted on the test split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from clipnoise.data.measures import PERCENT
from clipnoise.report.formats import DASH, Metric, budget
from clipnoise.report.records import PLACE, split, where
from clipnoise.report.statistics import Sample
from clipnoise.run.outcome import Predicted

NOTHING = "no completed run with counts of predictions"
GROUP_ACCURACY = Metric("", "Test accuracy", *PERCENT)

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Predictions:
    """How often a run predicted each class on the test split.

    Attributes:
        classes: what they are called; their numbers where they have no names.
        column: what the groups are of; empty without groups.
        groups: their names.
        counts: shape (groups, classes, classes): by group, true class and predicted class.
    """

    classes: tuple[str, ...]
    column: str
    groups: tuple[str, ...]
    counts: Numbers

    @property
    def all(self) -> Numbers:
        """The counts over all groups, shape (classes, classes)."""
        return np.asarray(self.counts.sum(axis=0))


def read(found: Predicted) -> Predictions:
    """Return what the column `confusion` of a run holds, as arrays."""
    counts = np.array([*found.groups.values()], dtype=np.float64)
    names = found.classes or range(counts.shape[-1])
    return Predictions(tuple(map(str, names)), found.column or "", tuple(found.groups), counts)


@dataclass(frozen=True)
class PredictedSetting:
    """What the completed runs of one configuration predicted.

    Attributes:
        names: dataset, model, budget and label.
        key: method and label.
        by_seed: what each run predicted.
        planned: its runs, the others included.
    """

    names: tuple[str, str, str, str]
    key: tuple[str, str]
    by_seed: dict[int, Predictions]
    planned: int

    @property
    def first(self) -> Predictions:
        """What its first run predicted: classes and groups are those of all."""
        return next(iter(self.by_seed.values()))

    def sample(self, values: dict[int, float]) -> Sample:
        """Return a number of each run as a sample; undefined ones are left out."""
        known = {seed: value for seed, value in values.items() if np.isfinite(value)}
        return Sample(known, missing=self.planned - len(known))


def settings(runs: pd.DataFrame) -> list[PredictedSetting]:
    """Return the configurations with predictions, in the order of the study."""
    found = []
    for (dataset, model, text, method, label), rows in split(runs, *PLACE):
        done = where(rows, status="completed")
        by_seed = {
            int(seed): read(one)
            for seed, one in zip(done["seed"], done["confusion"], strict=True)
            if one
        }
        if by_seed:
            names = (dataset, model, budget(text), label)
            found.append(PredictedSetting(names, (method, label), by_seed, len(rows)))
    return found


def shown(sample: Sample, metric: Metric = GROUP_ACCURACY) -> str:
    """Return mean ± standard deviation over seeds; a dash for none."""
    if not sample.n:
        return DASH
    mean = metric.show(sample.mean)
    return mean if sample.n == 1 else f"{mean} ± {metric.show(sample.deviation)}"


def ratio(part: Numbers, whole: Numbers) -> Numbers:
    """Return shares; nan where there is nothing to take a share of."""
    shares = np.full(np.shape(whole), np.nan)
    np.divide(part, whole, out=shares, where=whole > 0)
    return shares


def recalls(counts: Numbers) -> Numbers:
    """Return the share of each class that was predicted right, shape (…, classes)."""
    return ratio(np.diagonal(counts, axis1=-2, axis2=-1), counts.sum(axis=-1))


def precisions(counts: Numbers) -> Numbers:
    """Return the share of what was predicted as each class that is of it, shape (…, classes)."""
    return ratio(np.diagonal(counts, axis1=-2, axis2=-1), counts.sum(axis=-2))


def f1_scores(counts: Numbers) -> Numbers:
    """Return F1 of each class, 2·right/(true + predicted), shape (…, classes)."""
    right = np.diagonal(counts, axis1=-2, axis2=-1)
    return ratio(2 * right, counts.sum(axis=-1) + counts.sum(axis=-2))


def accuracies(counts: Numbers) -> Numbers:
    """Return the share of all examples that was predicted right, shape (…)."""
    return ratio(np.trace(counts, axis1=-2, axis2=-1), counts.sum(axis=(-2, -1)))


def of_groups(setting: PredictedSetting) -> dict[str, Sample]:
    """Return the accuracy on each group, over seeds, by its name."""
    return {
        name: setting.sample(
            {seed: float(accuracies(one.counts[i])) for seed, one in setting.by_seed.items()}
        )
        for i, name in enumerate(setting.first.groups)
    }


def row(
    setting: PredictedSetting,
    name: str,
    examples: float,
    scores: Iterable[Callable[[Predictions], float]],
) -> list[str]:
    """Return a row of a table: a configuration, what of it is meant, and its scores over seeds.

    Args:
        setting: the runs.
        name: of the class or the group.
        examples: how many the test split has of it.
        scores: of the predictions of a run.
    """
    found = (
        setting.sample({seed: float(score(one)) for seed, one in setting.by_seed.items()})
        for score in scores
    )
    return [*setting.names, name, f"{examples:,.0f}", *map(shown, found)]


def gap(setting: PredictedSetting, score: Callable[[Numbers], Numbers]) -> Sample:
    """Return the largest score of a group less the smallest, seed by seed.

    Args:
        setting: the runs.
        score: of counts of shape (groups, classes, classes); nan for a group that has none.
    """
    found = {seed: score(one.counts) for seed, one in setting.by_seed.items()}
    known = {seed: values[np.isfinite(values)] for seed, values in found.items()}
    return setting.sample({seed: float(np.ptp(v)) for seed, v in known.items() if len(v)})


def worst(by_group: dict[str, Sample]) -> str:
    """Return the group with the lowest mean accuracy."""
    return min((name for name, one in by_group.items() if one.n), key=lambda n: by_group[n].mean)


def grouped(runs: pd.DataFrame) -> Iterator[PredictedSetting]:
    """Yield the configurations whose predictions are told apart by group."""
    return (one for one in settings(runs) if one.first.column)
