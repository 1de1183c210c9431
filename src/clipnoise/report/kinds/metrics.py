"""Every metric of a panel beside the others; or results by class, or by group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clipnoise.report import confusion, records, tables
from clipnoise.report.blocks import ListBlock
from clipnoise.report.formats import ACCURACY, LOSS, budget, measured_in
from clipnoise.report.items import ItemData, TableItem

if TYPE_CHECKING:
    import pandas as pd

PLACE = ("dataset", "model", "budget", "method")
FILES = {"class": "classes", "group": "groups"}


@dataclass(frozen=True, kw_only=True)
class MetricsTable(TableItem):
    """Accuracy, loss and the metrics that the panel asks for, by method and budget.

    Attributes:
        by: a row for each `class` of the test split instead, with recall, precision and F1; or for
            each `group` that the dataset names (`groups: sex`), with accuracy, the worst group and
            the gap.
    """

    kind: Literal["metrics"] = "metrics"
    by: Literal["class", "group"] | None = None

    @property
    def file(self) -> str:
        """The file of the table; one by class or by group has a name of its own."""
        return f"{self.panel}.{FILES.get(self.by or '', self.kind)}"

    def block(self, data: ItemData) -> ListBlock:
        """Return a row for each method and budget, or one for each of its classes or groups."""
        if self.by is None:
            return _metrics(data)
        title = self.title or f"By {self.by}: {self.panel}"
        made = confusion.by_class if self.by == "class" else confusion.by_group
        return made(data.runs, title, self.caption)


def _metrics(data: ItemData) -> ListBlock:
    """Return a row for each method and budget, a column for each metric with a value."""
    every = [ACCURACY, LOSS, *measured_in(data.runs)]
    shown = [one for one in every if data.runs[one.column].notna().any()]
    return ListBlock(
        title=data.title,
        caption=data.item.caption,
        heads=[*PLACE, *(f"{one.heading} {'↑' if one.sign > 0 else '↓'}" for one in shown)],
        align="l" * len(PLACE) + "r" * len(shown),
        rows=[
            [*names, *(tables.cell_of(runs, metric).counted for metric in shown)]
            for names, runs in _settings(data)
        ],
        notes=[
            "Mean ± sample standard deviation over the completed runs, on the test split. ↑: "
            f"higher is better; ↓: lower. Methods are ranked by {data.metric.inline}."
        ],
    )


def _settings(data: ItemData) -> Iterator[tuple[list[str], pd.DataFrame]]:
    """Yield what each setting is called, and its runs; a method by its label."""
    for (dataset, model, text, _, label), runs in records.split(data.runs, *records.PLACE):
        yield [dataset, model, budget(text), label], runs
