"""Results: methods down, datasets, models and budgets across."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from clipnoise.report import export, published, tables
from clipnoise.report.blocks import TableBlock
from clipnoise.report.items import ItemData, TableItem


@dataclass(frozen=True, kw_only=True)
class PanelResults(TableItem):
    """Base of the tables of a panel's results.

    Attributes:
        costs: whether to add times, memory, passes and audits.
    """

    results: ClassVar = True
    costs: bool = False

    def file(self, panel: str) -> str:
        """Return the file of the panel's results."""
        return f"tables/{panel}"

    def block(self, data: ItemData) -> TableBlock:
        """Return the results; beside what a paper prints where there is such a table."""
        if data.published is None:
            table = tables.build_table(data.runs, data.placed.panel, costs=self.costs)
            return replace(table.block, title=data.title, caption=data.placed.caption)
        compared = published.compare(data.every_run, data.placed.panels, data.published)
        block = published.comparison_block(compared, costs=self.costs)
        title = data.placed.title or data.placed.panel
        return replace(block, title=title, caption=data.placed.caption)

    def files(self, data: ItemData) -> Mapping[str, str]:
        """Return the results of the first panel alone: CSV with all digits, Markdown, LaTeX."""
        placed, panel = data.placed, data.placed.panel
        table = tables.build_table(
            data.every_run, panel, title=placed.title, caption=placed.caption, costs=self.costs
        )
        return {
            ".csv": export.to_csv(table, data.watermark),
            ".md": export.to_markdown(table.block, data.watermark),
            ".tex": export.to_latex(table.block, data.watermark),
        }


@dataclass(frozen=True, kw_only=True)
class ResultsTable(PanelResults):
    """Final metrics by method and budget."""

    heading: ClassVar = "Results"
    kind: Literal["table"] = "table"
