"""What a report shows, in order: tables, lists and figures, ready to be printed.

Each renderer (PDF, page, Markdown, LaTeX) prints the same blocks; none computes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class PrintedCell:
    """One cell of a grid.

    Attributes:
        text: the number or words.
        mark: the sign of a footnote.
        runs: `n/N` where not all planned runs completed.
        bold: whether it is among the best of its column.
        span: how many columns it takes.
        published: what a paper prints there; empty where nothing is compared.
        difference: from what it prints.
    """

    text: str = ""
    mark: str = ""
    runs: str = ""
    bold: bool = False
    span: int = 1
    published: str = ""
    difference: str = ""


@dataclass(frozen=True)
class HeadGroup:
    """Neighbouring columns under one title, which may be empty."""

    title: str
    headings: Sequence[str]


@dataclass(frozen=True)
class PrintedRow:
    """A labelled row of a grid."""

    label: str
    cells: Sequence[PrintedCell]


@dataclass(frozen=True)
class Grid:
    """Columns in groups, rows, and below them rows of non-private references."""

    groups: Sequence[HeadGroup]
    rows: Sequence[PrintedRow]
    references: Sequence[PrintedRow] = ()

    @property
    def heads(self) -> list[str]:
        """The headings in one line, each with the title of its group."""
        pairs = [(group.title, head) for group in self.groups for head in group.headings]
        return ["method", *(f"{title}: {head}" if title else head for title, head in pairs)]


@dataclass(frozen=True, kw_only=True)
class TableBlock:
    """A table whose columns are distributed over grids of bounded width, and its notes.

    Attributes:
        title: heading.
        caption: what the reader should see; may be empty.
        grids: what it shows.
        costs: what the methods cost, where that is asked for.
        notes: below it, one sentence or two each.
    """

    kind: ClassVar[str] = "table"
    title: str
    caption: str
    grids: Sequence[Grid]
    costs: Sequence[Grid] = ()
    notes: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class ListBlock:
    """Rows of text below one line of headings.

    Attributes:
        title: heading.
        caption: what the reader should see; may be empty.
        heads: the headings.
        align: a letter for each column: l, or r for numbers.
        rows: as many texts as there are headings.
        notes: below it, one sentence or two each.
    """

    kind: ClassVar[str] = "rows"
    title: str
    caption: str = ""
    heads: Sequence[str]
    align: str
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class FigureBlock:
    """A drawn figure by the name of its file; None if it was not drawn.

    Attributes:
        alt: what it shows, for those who cannot see it; empty where tables say the same.
    """

    kind: ClassVar[str] = "figure"
    title: str
    caption: str
    image: str | None
    alt: str = ""


@dataclass(frozen=True)
class TextBlock:
    """Paragraphs below a heading, or behind a short one in bold, which may be empty."""

    kind: ClassVar[str] = "text"
    title: str
    paragraphs: Sequence[str]


Block = TextBlock | TableBlock | ListBlock | FigureBlock
