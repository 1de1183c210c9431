"""Every metric of a panel beside the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.report.blocks import ListBlock
from clipnoise.report.formats import ACCURACY, LOSS, budget, measured_in
from clipnoise.report.items import ItemData, TableItem
from clipnoise.report.lazy import records, tables

if TYPE_CHECKING:
    import pandas as pd

PLACE = ("dataset", "model", "budget", "method")


@dataclass(frozen=True, kw_only=True)
class MetricsTable(TableItem):
    """Accuracy, loss and the metrics that the panel asks for, by method and budget."""

    heading: ClassVar = "Metrics"
    kind: Literal["metrics"] = "metrics"

    def block(self, data: ItemData) -> ListBlock:
        """Return a row for each method and budget, a column for each metric with a value."""
        every = [ACCURACY, LOSS, *measured_in(data.runs)]
        shown = [one for one in every if data.runs[one.column].notna().any()]
        return ListBlock(
            title=data.title,
            caption=data.placed.caption,
            heads=[*PLACE, *(f"{one.heading} {'↑' if one.sign > 0 else '↓'}" for one in shown)],
            numbers=len(shown),
            rows=[
                [*names, *(tables.cell_of(runs, metric).text for metric in shown)]
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
