"""Results beside what a paper prints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from clipnoise.report import published, tables
from clipnoise.report.blocks import Grid, HeadGroup, PrintedCell, PrintedRow, TableBlock
from clipnoise.report.formats import budget, count
from clipnoise.report.items import ItemData
from clipnoise.report.kinds.table import PanelResults

if TYPE_CHECKING:
    from clipnoise.report.tables import Table


@dataclass(frozen=True, kw_only=True)
class PublishedTable(PanelResults):
    """As `table`, with [what a paper prints](reproduce.md#compare-with-a-published-table) and the
    difference.

    Attributes:
        published: name or `.csv` file of the table; by default the study's name.
        side_by_side: whether panels that are `together` have columns of their own.
    """

    kind: Literal["published"] = "published"
    published: str = ""
    side_by_side: bool = False

    def __post_init__(self) -> None:
        if self.side_by_side and not self.together:
            raise ValueError("`side_by_side` is allowed for panels that are `together`")

    def published_table(self, study: str) -> str:
        """Return the published table that it shows, by name or path."""
        return self.published or study

    def block(self, data: ItemData) -> TableBlock:
        """Return the results and the printed numbers, of several panels side by side if asked."""
        if not self.side_by_side or data.published is None:
            return super().block(data)
        compared = [
            published.compare(data.every_run, (panel,), data.published)
            for panel in data.placed.panels
        ]
        found = [replace(one, pairs=tuple(p for p in one.pairs if p.ours)) for one in compared]
        made = [
            next(published.by_metric(one), tables.build_table(one.runs, one.panel)) for one in found
        ]
        notes = [
            note
            for one, table in zip(found, made, strict=True)
            for note in published.comparison_notes(one, [table])
        ]
        shown = {pair.published for one in found for pair in one.pairs}
        lost = {pair.published for one in compared for pair in one.pairs} - shown - {None}
        if lost:
            notes.append(f"{count(len(lost), 'published cell')} without a run.")
        return TableBlock(
            title=data.placed.title,
            caption=data.placed.caption,
            grids=[_side_by_side(data.placed.titles, made)],
            notes=list(dict.fromkeys(notes)),
        )


def _side_by_side(titles: tuple[str, ...], made: list[Table]) -> Grid:
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
