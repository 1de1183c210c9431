"""Blocks as CSV, Markdown and LaTeX."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from clipnoise.report.blocks import (
    Block,
    FigureBlock,
    Grid,
    HeadGroup,
    ListBlock,
    PrintedCell,
    PrintedRow,
    TableBlock,
    TextBlock,
)
from clipnoise.report.formats import safe_csv

LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "–": "--",
    "∞": r"$\infty$",
    "†": r"\textdagger{}",
    "‡": r"\textdaggerdbl{}",
    "§": r"\S{}",
    "¶": r"\P{}",
    "÷": r"$\div$",
    **{
        letter: f"${name}$"
        for letter, name in {
            **{"α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "δ": r"\delta"},
            **{"ε": r"\varepsilon", "η": r"\eta", "σ": r"\sigma", "′": "'"},
            **{"Φ": r"\Phi", "√": r"\surd", "≤": r"\le", "≥": r"\ge"},
        }.items()
    },
}


def to_csv(block: TableBlock | ListBlock, watermark: str = "") -> str:
    """Return a table as it is printed: a line per cell, or per row of a list."""
    if isinstance(block, ListBlock):
        lines = [dict(zip(block.heads, row, strict=True)) for row in block.rows]
        return safe_csv(block.heads, lines, watermark)
    lines = [
        {"row": row.label, "column": head, "text": cell.text, "mark": cell.mark, "runs": cell.runs}
        for grid in (*block.grids, *block.costs)
        for row in (*grid.rows, *grid.references)
        for head, cell in zip(_spread(grid, row), row.cells, strict=True)
    ]
    return safe_csv(["row", "column", "text", "mark", "runs"], lines, watermark)


def _spread(grid: Grid, row: PrintedRow) -> list[str]:
    """Return the heading of the first column that each cell of a row takes."""
    starts = itertools.accumulate((cell.span for cell in row.cells), initial=1)
    return [grid.heads[start] for start, _ in zip(starts, row.cells, strict=False)]


def to_markdown(block: Block, watermark: str = "") -> str:
    """Return a block in Markdown, below its heading; a figure is a file beside it."""
    title = f"{'##' if isinstance(block, TextBlock) else '###'} {_markdown(block.title)}"
    warning = f"**{_markdown(watermark)}**" if watermark else ""
    return "\n\n".join(filter(None, [title, warning, *_parts(block)])) + "\n"


def _parts(block: Block) -> Iterator[str]:
    """Yield what stands below the heading of a block."""
    if isinstance(block, TextBlock):
        yield from map(_markdown, block.paragraphs)
    elif isinstance(block, FigureBlock):
        yield f"![{_markdown(block.alt or block.title)}]({block.image})"
        yield _markdown(block.caption)
    else:
        yield _markdown(block.caption)
        yield from _tables(block)
        yield from map(_markdown, block.notes)


def _tables(block: TableBlock | ListBlock) -> Iterator[str]:
    """Yield a pipe table for each grid of columns."""
    if isinstance(block, TableBlock):
        yield from map(_grid, block.grids)
        yield from _references(block.grids)
        yield from map(_grid, block.costs)
    else:
        heads, *rows = (list(map(_markdown, line)) for line in (block.heads, *block.rows))
        rule = ["---:" if side == "r" else "---" for side in block.align]
        yield "\n".join(map(_piped, [heads, rule, *rows]))


def _references(grids: Sequence[Grid]) -> Iterator[str]:
    """Yield the non-private references of all grids in one table, if there are any."""
    titles: dict[str, None] = {}
    rows: dict[int, dict[str, PrintedCell]] = {}
    labels: list[str] = []
    for grid in grids:
        heads = [group.title for group in grid.groups for _ in group.headings]
        titles |= dict.fromkeys(heads)
        labels = [row.label for row in grid.references]
        for number, row in enumerate(grid.references):
            starts = itertools.accumulate((cell.span for cell in row.cells), initial=0)
            for start, cell in zip(starts, row.cells, strict=False):
                rows.setdefault(number, {}).setdefault(heads[start], cell)
    if rows:
        cells = [[row[title] for title in titles if title in row] for row in rows.values()]
        yield _pipes(["non-private reference", *titles], list(map(PrintedRow, labels, cells)))


def _grid(grid: Grid) -> str:
    return _pipes(grid.heads, grid.rows)


def _pipes(heads: list[str], rows: Sequence[PrintedRow]) -> str:
    lines = [list(map(_markdown, heads)), ["---"] + ["---:"] * (len(heads) - 1)]
    lines += [[_markdown(row.label), *map(_markdown_cell, row.cells)] for row in rows]
    return "\n".join(map(_piped, lines))


def _piped(line: Sequence[str]) -> str:
    return f"| {' | '.join(line)} |"


def _markdown_cell(cell: PrintedCell) -> str:
    text = _markdown(cell.text)
    text = f"**{text}**" if cell.bold else text
    return text + cell.mark + (f" ({cell.runs})" if cell.runs else "")


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#~$])", r"\\\1", " ".join(text.split()))


def to_latex(block: TableBlock | ListBlock, watermark: str = "") -> str:
    """Return a LaTeX table environment; it needs the packages booktabs and textcomp."""
    if isinstance(block, TableBlock):
        costs = [_tabular(grid, [_line(map(latex, grid.heads))]) for grid in block.costs]
        tabulars = [*map(_spanned, block.grids), *costs]
    else:
        heads, *rows = (_line(map(latex, row)) for row in (block.heads, *block.rows))
        tabulars = [_ruled(block.align, [heads], rows)]
    caption = ". ".join(filter(None, [watermark, block.title.rstrip("."), block.caption]))
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex(caption)}}}"]
    lines += [line for tabular in tabulars for line in tabular]
    notes = " ".join(map(latex, block.notes))
    lines += [rf"\par\raggedright\footnotesize {notes}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _spanned(grid: Grid) -> list[str]:
    return _tabular(grid, _spanning_heads(grid.groups))


def _spanning_heads(groups: Sequence[HeadGroup]) -> list[str]:
    """Return the titles of groups, a rule below each, and the headings of their columns."""
    titles, rules, headings, last = [""], [], ["method"], 1
    for group in groups:
        span = len(group.headings)
        titles.append(rf"\multicolumn{{{span}}}{{c}}{{{latex(group.title)}}}")
        rules.append(rf"\cmidrule(lr){{{last + 1}-{last + span}}}")
        headings += map(latex, group.headings)
        last += span
    return [_line(titles), " ".join(rules), _line(headings)]


def _tabular(grid: Grid, heads: list[str]) -> list[str]:
    width = sum(len(group.headings) for group in grid.groups)
    lines = list(map(_latex_row, grid.rows))
    if grid.references:
        title = rf"\multicolumn{{{width + 1}}}{{l}}{{\emph{{non-private references}}}}"
        lines += [r"\midrule", _line([title]), *map(_latex_row, grid.references)]
    return _ruled("l" + "r" * width, heads, lines)


def _ruled(columns: str, heads: Sequence[str], rows: Sequence[str]) -> list[str]:
    begin = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *heads, r"\midrule"]
    return [*begin, *rows, r"\bottomrule", r"\end{tabular}", "", r"\medskip"]


def _latex_row(row: PrintedRow) -> str:
    return _line([latex(row.label), *map(_latex_cell, row.cells)])


def _latex_cell(cell: PrintedCell) -> str:
    text = latex(cell.text)
    text = rf"\textbf{{\boldmath {text}}}" if cell.bold else text
    text += latex(cell.mark) + (f" ({cell.runs})" if cell.runs else "")
    return text if cell.span == 1 else rf"\multicolumn{{{cell.span}}}{{c}}{{{text}}}"


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def latex(text: str) -> str:
    """Escape text for LaTeX; signs that pdfLaTeX's fonts lack become commands."""
    return "".join(LATEX.get(letter, letter) for letter in " ".join(text.split()))
