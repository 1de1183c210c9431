"""Results by class and by group: from how often each class was predicted on the test split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from clipnoise.data.measures import PERCENT
from clipnoise.report.blocks import ListBlock
from clipnoise.report.formats import DASH, Metric, budget
from clipnoise.report.records import PLACE, split, where
from clipnoise.report.statistics import Sample, require_one_each
from clipnoise.run.outcome import Predicted

NOTHING = "no completed run with counts of predictions"
OVER_SEEDS = "Mean ± sample standard deviation over the completed runs, at their last evaluation."
SHARE = Metric("", "Share", *PERCENT)
CLASS_HEADS = (
    *("dataset", "model", "budget", "method", "class"),
    *("examples", "recall (%)", "precision (%)", "F1 (%)"),
)
GROUP_HEADS = ("dataset", "model", "budget", "method", "group", "examples", "accuracy (%)")

Numbers = NDArray[np.float64]
Score = Callable[[Numbers], Numbers]  # of counts of shape (…, classes, classes)


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
        by_seed: what each run predicted.
        planned: its runs, the others included.
    """

    names: tuple[str, str, str, str]
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
    for (dataset, model, text, _, label), rows in split(runs, *PLACE):
        require_one_each(rows)
        done = where(rows, status="completed")
        by_seed = {
            int(seed): read(one)
            for seed, one in zip(done["seed"], done["confusion"], strict=True)
            if one
        }
        if by_seed:
            names = (dataset, model, budget(text), label)
            found.append(PredictedSetting(names, by_seed, len(rows)))
    return found


def shown(sample: Sample) -> str:
    """Return mean ± standard deviation over seeds in %; a dash for none, as without examples."""
    return sample.counted(SHARE) if sample.n else DASH


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


def by_class(runs: pd.DataFrame, title: str, caption: str) -> ListBlock:
    """Return a row for each method, budget and class: recall, precision and F1."""
    rows = [row for one in settings(runs) for row in _class_rows(one)]
    note = (
        "Recall: the share of a class that was predicted right. Precision: the share of what was "
        "predicted as a class that is of it; a run that never predicts the class has none and is "
        "left out. F1: their harmonic mean."
    )
    return _block(title, caption, CLASS_HEADS, rows or [[NOTHING]], note)


def _block(
    title: str, caption: str, heads: Sequence[str], rows: list[list[str]], note: str
) -> ListBlock:
    """Return a table of numbers beside five names; a row that is too short ends with dashes."""
    return ListBlock(
        title=title,
        caption=caption,
        heads=heads,
        align="lllll" + "r" * (len(heads) - 5),
        rows=[[*row, *[DASH] * (len(heads) - len(row))] for row in rows],
        notes=[f"{OVER_SEEDS} {note}"],
    )


def _class_rows(setting: PredictedSetting) -> Iterator[list[str]]:
    sizes = setting.first.all.sum(axis=1)
    for i, name in enumerate(setting.first.classes):
        scores = [partial(_of_class, score, i) for score in (recalls, precisions, f1_scores)]
        yield _row(setting, name, sizes[i], scores)


def _of_class(score: Score, number: int, predicted: Predictions) -> float:
    return float(score(predicted.all)[number])


def by_group(runs: pd.DataFrame, title: str, caption: str) -> ListBlock:
    """Return a row for each method, budget and group, and one for the gap.

    Of two classes it has their recalls, too.
    """
    every = [one for one in settings(runs) if one.first.column]
    two = all(len(one.first.classes) == 2 for one in every)
    names = dict.fromkeys(one.first.classes for one in every)
    heads = [*GROUP_HEADS]
    if two and len(names) == 1:
        heads += [f"recall of {name} (%)" for name in next(iter(names))]
    rows = [row[: len(heads)] for one in every for row in _group_rows(one)]
    note = (
        "Gap: the largest value of a group less the smallest one, seed by seed; it is never "
        "negative, and the smaller the groups, the larger it is by chance. The worst group is that "
        "of the lowest mean accuracy."
    )
    return _block(title, caption, heads, rows or [[f"{NOTHING} by group"]], note)


def _group_rows(setting: PredictedSetting) -> Iterator[list[str]]:
    first = setting.first
    classes = range(len(first.classes))
    scores: list[Score] = [accuracies, *(partial(_recall, number) for number in classes)]
    lowest = _worst(setting)
    for i, name in enumerate(first.groups):
        group = f"{first.column} {name}{' (worst)' if name == lowest else ''}"
        of_group = [partial(_of_group, score, i) for score in scores]
        yield _row(setting, group, first.counts[i].sum(), of_group)
    yield [*setting.names, "gap", DASH, *(shown(_gap(setting, score)) for score in scores)]


def _of_group(score: Score, number: int, predicted: Predictions) -> float:
    return float(score(predicted.counts[number]))


def _recall(number: int, counts: Numbers) -> Numbers:
    return np.asarray(recalls(counts)[..., number])


def _worst(setting: PredictedSetting) -> str:
    """Return the group with the lowest mean accuracy."""
    means = {
        name: setting.sample(
            {seed: float(accuracies(one.counts[i])) for seed, one in setting.by_seed.items()}
        ).mean
        for i, name in enumerate(setting.first.groups)
    }
    return min((name for name, mean in means.items() if np.isfinite(mean)), key=means.__getitem__)


def _gap(setting: PredictedSetting, score: Score) -> Sample:
    """Return the largest score of a group less the smallest, seed by seed.

    Args:
        setting: the runs.
        score: of counts of shape (groups, classes, classes); nan for a group that has none.
    """
    found = {seed: score(one.counts) for seed, one in setting.by_seed.items()}
    known = {seed: values[np.isfinite(values)] for seed, values in found.items()}
    return setting.sample({seed: float(np.ptp(v)) for seed, v in known.items() if len(v)})


def _row(
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
