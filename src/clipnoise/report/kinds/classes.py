"""Recall, precision and F1 of each class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.report.blocks import ListBlock
from clipnoise.report.formats import DASH
from clipnoise.report.items import ItemData, TableItem
from clipnoise.report.lazy import confusion

if TYPE_CHECKING:
    from clipnoise.report.confusion import Numbers, PredictedSetting, Predictions

HEADS = (
    *("dataset", "model", "budget", "method", "class"),
    *("examples", "recall (%)", "precision (%)", "F1 (%)"),
)


@dataclass(frozen=True, kw_only=True)
class ClassesTable(TableItem):
    """Recall, precision and F1 of each class on the test split, by method and budget."""

    heading: ClassVar = "By class"
    kind: Literal["classes"] = "classes"

    def block(self, data: ItemData) -> ListBlock:
        """Return a row for each method, budget and class."""
        rows = [row for one in confusion.settings(data.runs) for row in _rows(one)]
        return ListBlock(
            title=data.title,
            caption=data.placed.caption,
            heads=HEADS,
            numbers=4,
            rows=rows or [[confusion.NOTHING, *[DASH] * (len(HEADS) - 1)]],
            notes=[
                "Mean ± sample standard deviation over the completed runs, at their last "
                "evaluation. Recall: the share of a class that was predicted right. Precision: the "
                "share of what was predicted as a class that is of it; a run that never predicts "
                "the class has none and is left out. F1: their harmonic mean."
            ],
        )


def _rows(setting: PredictedSetting) -> Iterator[list[str]]:
    scores = (confusion.recalls, confusion.precisions, confusion.f1_scores)
    sizes = setting.first.all.sum(axis=1)
    for i, name in enumerate(setting.first.classes):
        yield confusion.row(setting, name, sizes[i], [partial(_score, s, i) for s in scores])


def _score(score: Callable[[Numbers], Numbers], number: int, predicted: Predictions) -> float:
    return float(score(predicted.all)[number])
