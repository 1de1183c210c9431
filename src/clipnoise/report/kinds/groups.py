"""Accuracy on each group of test examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.lazy import np
from clipnoise.report.blocks import ListBlock
from clipnoise.report.formats import DASH
from clipnoise.report.items import ItemData, TableItem
from clipnoise.report.lazy import confusion

if TYPE_CHECKING:
    from clipnoise.report.confusion import Numbers, PredictedSetting, Predictions

HEADS = ("dataset", "model", "budget", "method", "group", "examples", "accuracy (%)")


@dataclass(frozen=True, kw_only=True)
class GroupsTable(TableItem):
    """As `group-accuracy`, with the worst group, by method and budget."""

    heading: ClassVar = "By group"
    kind: Literal["groups"] = "groups"

    def block(self, data: ItemData) -> ListBlock:
        """Return a row for each method, budget and group, and one for the gap."""
        every = list(confusion.grouped(data.runs))
        two = all(len(one.first.classes) == 2 for one in every)
        names = dict.fromkeys(one.first.classes for one in every)
        heads = [*HEADS]
        if two and len(names) == 1:
            heads += [f"recall of {name} (%)" for name in next(iter(names))]
        rows = [row[: len(heads)] for one in every for row in _rows(one)]
        return ListBlock(
            title=data.title,
            caption=data.placed.caption,
            heads=heads,
            numbers=len(heads) - 5,
            rows=rows or [[f"{confusion.NOTHING} by group", *[DASH] * (len(heads) - 1)]],
            notes=[
                "Mean ± sample standard deviation over the completed runs, at their last "
                "evaluation. Gap: the largest value of a group less the smallest one, seed by "
                "seed; it is never negative, and the smaller the groups, the larger it is by "
                "chance. The worst group is that of the lowest mean accuracy."
            ],
        )


def _rows(setting: PredictedSetting) -> Iterator[list[str]]:
    first, by_group = setting.first, confusion.of_groups(setting)
    classes = range(len(first.classes))
    recalls = (partial(_recall, number) for number in classes)
    scores: list[Callable[[Numbers], Numbers]] = [confusion.accuracies, *recalls]
    lowest = confusion.worst(by_group)
    for i, name in enumerate(by_group):
        group = f"{first.column} {name}{' (worst)' if name == lowest else ''}"
        of_group = [partial(_score, score, i) for score in scores]
        yield confusion.row(setting, group, first.counts[i].sum(), of_group)
    gaps = (confusion.gap(setting, score) for score in scores)
    yield [*setting.names, "gap", DASH, *map(confusion.shown, gaps)]


def _score(score: Callable[[Numbers], Numbers], number: int, predicted: Predictions) -> float:
    return float(score(predicted.counts[number]))


def _recall(number: int, counts: Numbers) -> Numbers:
    return np.asarray(confusion.recalls(counts)[..., number])
