"""Results: methods down, datasets, models and budgets across, beside what a paper prints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.report import published, tables
from clipnoise.report.blocks import Grid, HeadGroup, PrintedCell, PrintedRow, TableBlock
from clipnoise.report.formats import budget, count, exact, safe_csv
from clipnoise.report.items import ItemData, TableItem

if TYPE_CHECKING:
    from pathlib import Path

    from clipnoise.report.tables import Table

COUNTS = ("n", "planned", "diverged", "missing", "corrupt")
CSV_COLUMNS = (
    *("panel", "dataset", "model", "method", "label", "budget", "claim", "metric"),
    *("mean", "std", *COUNTS, "bold", "p_value"),
)


@dataclass(frozen=True, kw_only=True)
class ResultsTable(TableItem):
    """Final metrics by method and budget.

    Attributes:
        costs: whether to add times, memory, passes and audits.
        published: name or `.csv` file of a table with [what a paper
            prints](reproduce.md#compare-with-a-published-table), which is shown with the
            difference.
        side_by_side: whether panels that are `together` beside a `published` table have columns of
            their own.
    """

    heading: ClassVar = "Results"
    kind: Literal["table"] = "table"
    costs: bool = False
    published: str = ""
    side_by_side: bool = False

    def __post_init__(self) -> None:
        if self.side_by_side and not (self.together and self.published):
            raise ValueError("`side_by_side` needs `published`, and panels that are `together`")

    @property
    def file(self) -> str:
        """The file of the panel's results."""
        return self.panel

    def block(self, data: ItemData) -> TableBlock:
        """Return the results; with a published table what it prints, too."""
        if data.published is None:
            table = tables.build_table(data.runs, self.panel, costs=self.costs)
            return replace(table.block, title=data.title, caption=self.caption)
        if self.side_by_side:
            return _side_by_side(data, data.published)
        compared = published.compare(data.every_run, self.named, data.published)
        block = published.comparison_block(compared, costs=self.costs)
        return replace(block, title=self.title or self.panel, caption=self.caption)

    def csv(self, data: ItemData) -> str:
        """Return the results with all digits, a line for each cell."""
        return to_csv(tables.build_table(data.runs, self.panel), data.watermark)


def to_csv(table: Table, watermark: str = "") -> str:
    """Return one line per cell: full-precision mean, std and p-value, and counts."""
    lines = [
        {
            "panel": table.panel,
            "dataset": dataset,
            "model": model,
            "method": row.method,
            "label": row.label,
            "budget": text,
            "claim": cell.claim,
            "metric": table.metric.column,
            "mean": exact(cell.sample.mean),
            "std": exact(cell.sample.deviation),
            **{name: getattr(cell.sample, name) for name in COUNTS},
            "bold": str(table.leads(row, place)).lower(),
            "p_value": exact(table.p_value(row, place)),
        }
        for row, place, cell in table.cells()
        for dataset, model, text in [place]
    ]
    return safe_csv(CSV_COLUMNS, lines, watermark)


def _side_by_side(data: ItemData, table: Path) -> TableBlock:
    """Return the results of several panels beside each other, with what is printed of them."""
    compared = [published.compare(data.every_run, (panel,), table) for panel in data.item.named]
    found = [replace(one, pairs=tuple(p for p in one.pairs if p.ours)) for one in compared]
    made = [
        next(published.by_metric(one), tables.build_table(one.runs, one.panel)) for one in found
    ]
    notes = [
        note
        for one, own in zip(found, made, strict=True)
        for note in published.comparison_notes(one, [own])
    ]
    shown = {pair.published for one in found for pair in one.pairs}
    lost = {pair.published for one in compared for pair in one.pairs} - shown - {None}
    if lost:
        notes.append(f"{count(len(lost), 'published cell')} without a run.")
    return TableBlock(
        title=data.item.title,
        caption=data.item.caption,
        grids=[_joined(data.titles, made)],
        notes=list(dict.fromkeys(notes)),
    )


def _joined(titles: tuple[str, ...], made: list[Table]) -> Grid:
    """Return the tables of several panels as one: a group of columns for each of them.

    A method is one row, whatever its labels are. A panel without privacy has no columns of its own:
    its values span those of the others.
    """
    titled = zip(titles, made, strict=True)
    columns = [(title, one) for title, one in titled if any(row.private for row in one.rows)]
    groups = [
        HeadGroup(title, [budget(text) for _, _, text in group])
        for title, one in columns
        for group in one.groups
    ]
    width = sum(len(group.headings) for group in groups)
    methods = dict.fromkeys(row.method for _, one in columns for row in one.rows)
    public = [(one, row) for one in made for row in (*one.rows, *one.references) if not row.private]
    return Grid(
        groups,
        [
            PrintedRow(method, [cell for _, one in columns for cell in _across(method, one)])
            for method in methods
        ],
        [
            PrintedRow(row.label, [one.shown(row, next(iter(row.cells)), span=width)])
            for one, row in public
        ],
    )


def _across(method: str, table: Table) -> list[PrintedCell]:
    """Return the cells of a method, of its first label, below all columns of a table."""
    rows = (one for one in table.rows if one.method == method)
    row = next(rows, None) or tables.Row(method, method, True, {})
    return [cell for group in table.groups for cell in table.across(row, group)]
