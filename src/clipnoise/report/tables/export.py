"""A table of results as CSV, Markdown and LaTeX, and as plain data for the PDF template."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from clipnoise.files import csv_text
from clipnoise.report.formats import exact
from clipnoise.report.tables.costs import NOTE, CostTable
from clipnoise.report.tables.results import Cell, Group, Row, Table, table_notes

COUNTS = ("n", "planned", "diverged", "missing", "corrupt")
CSV_COLUMNS = (
    *("panel", "dataset", "model", "method", "label", "budget", "claim", "metric"),
    *("mean", "std", *COUNTS, "bold", "p_value"),
)

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
    **{
        letter: f"${name}$"
        for letter, name in {
            **{"α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "δ": r"\delta"},
            **{"ε": r"\varepsilon", "η": r"\eta", "σ": r"\sigma", "′": "'"},
            **{"Φ": r"\Phi", "√": r"\surd", "≤": r"\le", "≥": r"\ge"},
        }.items()
    },
}


def to_csv(table: Table) -> str:
    """Return one line per cell: full-precision mean, std and Holm-adjusted p-value, and counts."""
    mark = {"warning": table.watermark} if table.watermark else {}
    lines = [
        {
            "panel": table.panel,
            "dataset": dataset,
            "model": model,
            "method": row.method,
            "label": row.label,
            "budget": budget,
            "claim": cell.claim,
            "metric": table.metric.column,
            "mean": exact(cell.sample.mean),
            "std": exact(cell.sample.deviation),
            **{name: getattr(cell.sample, name) for name in COUNTS},
            "bold": str(cell.leads).lower(),
            "p_value": exact(cell.p_value),
            **mark,
        }
        for row, (dataset, model, budget), cell in table.cells()
    ]
    return csv_text([*CSV_COLUMNS, *mark], lines)


def to_markdown(table: Table) -> str:
    """Return the table in Markdown: heading, caption, a pipe table per block of columns, notes."""
    blocks = [f"### {_markdown(table.title)}"]
    if table.watermark:
        blocks.append(f"**{_markdown(table.watermark)}**")
    if table.caption:
        blocks.append(_markdown(table.caption))
    for block in table.blocks():
        columns = [f"{g.title}: {h}" for g in block for h in g.headings()]
        blocks.append(_pipes(["method", *columns], _markdown_rows(table.rows, block)))
    if table.references:
        titles = [group.title for group in table.groups]
        rows = _markdown_rows(table.references, table.groups)
        blocks.append(_pipes(["non-private reference", *titles], rows))
    if table.costs is not None:
        head, *rows = [[_markdown(text) for text in line] for line in table.costs.lines]
        blocks.append(_pipes(head, rows))
    blocks.extend(_markdown(note) for note in _notes(table))
    return "\n\n".join(blocks) + "\n"


def _markdown_rows(rows: Iterable[Row], block: Sequence[Group]) -> list[list[str]]:
    return [
        [_markdown(row.label)]
        + [_markdown_cell(cell) for group in block for cell, _ in row.across(group)]
        for row in rows
    ]


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    text = f"**{cell.text}**" if cell.leads else cell.text
    return text + cell.mark + (f" ({cell.sample.runs})" if cell.sample.runs else "")


def _pipes(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", " ".join(text.split()))


def to_latex(table: Table) -> str:
    """Return a LaTeX table environment; it needs the packages booktabs and textcomp."""
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex(_caption(table))}}}"]
    for block in table.blocks():
        lines += [*_tabular(table, block), "", r"\medskip"]
    if table.costs is not None:
        lines += [*_cost_tabular(table.costs), "", r"\medskip"]
    notes = " ".join(latex(note) for note in _notes(table))
    lines += [rf"\par\raggedright\footnotesize {notes}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _caption(table: Table) -> str:
    return ". ".join(filter(None, [table.watermark, table.title.rstrip("."), table.caption]))


def _notes(table: Table) -> list[str]:
    return [*table_notes(table), *([NOTE] if table.costs is not None else [])]


def _cost_tabular(costs: CostTable) -> list[str]:
    head, *rows = [" & ".join(map(latex, line)) + r" \\" for line in costs.lines]
    columns = "r" * (len(costs.lines[0]) - 1)
    begin = [rf"\begin{{tabular}}{{l{columns}}}", r"\toprule", head, r"\midrule"]
    return [*begin, *rows, r"\bottomrule", r"\end{tabular}"]


def _tabular(table: Table, block: Sequence[Group]) -> list[str]:
    spans = [len(group.budgets) for group in block]
    titles, rules, column = [""], [], 2
    for group, span in zip(block, spans, strict=True):
        titles.append(rf"\multicolumn{{{span}}}{{c}}{{{latex(group.title)}}}")
        rules.append(rf"\cmidrule(lr){{{column}-{column + span - 1}}}")
        column += span
    headings = ["method", *(latex(h) for group in block for h in group.headings())]
    lines = [rf"\begin{{tabular}}{{l{'r' * sum(spans)}}}", r"\toprule"]
    lines += [" & ".join(titles) + r" \\", " ".join(rules), " & ".join(headings) + r" \\"]
    lines += [r"\midrule", *(_latex_row(row, block) for row in table.rows)]
    if table.references:
        width = sum(spans) + 1
        lines += [
            r"\midrule",
            rf"\multicolumn{{{width}}}{{l}}{{\emph{{non-private references}}}} \\",
        ]
        lines += [_latex_row(row, block) for row in table.references]
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _latex_row(row: Row, block: Sequence[Group]) -> str:
    cells = [latex(row.label)]
    for group in block:
        for cell, span in row.across(group):
            text = _latex_cell(cell)
            cells.append(text if span == 1 else rf"\multicolumn{{{span}}}{{c}}{{{text}}}")
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    text = latex(cell.text)
    text = rf"\textbf{{\boldmath {text}}}" if cell.leads else text
    return text + latex(cell.mark) + (f" ({cell.sample.runs})" if cell.sample.runs else "")


def latex(text: str) -> str:
    """Escape text for LaTeX; signs that pdfLaTeX's fonts lack become commands."""
    return "".join(LATEX.get(letter, letter) for letter in " ".join(text.split()))


def table_blocks(table: Table) -> list[dict[str, Any]]:
    """Return the columns in blocks, as plain data for the PDF template."""
    return [
        {
            "groups": [{"title": group.title, "headings": group.headings()} for group in block],
            "rows": [_row_data(row, block) for row in table.rows],
            "references": [_row_data(row, block) for row in table.references],
        }
        for block in table.blocks()
    ]


def _row_data(row: Row, block: Sequence[Group]) -> dict[str, Any]:
    cells = [pair for group in block for pair in row.across(group)]
    return {"label": row.label, "cells": [_cell_data(cell, span) for cell, span in cells]}


def _cell_data(cell: Cell | None, span: int) -> dict[str, Any]:
    if cell is None:
        return {"text": "", "mark": "", "runs": "", "bold": False, "span": span}
    return {
        "text": cell.text,
        "mark": cell.mark,
        "runs": cell.sample.runs,
        "bold": cell.leads,
        "span": span,
    }
