"""Tables as CSV, Markdown and LaTeX. The PDF template lays out the same model itself."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from clipnoise.report.costs import NOTE, Costs, cost_lines
from clipnoise.report.notes import table_notes
from clipnoise.report.tables import Cell, Group, Row, Table

CSV_COLUMNS = (
    *("panel", "dataset", "model", "method", "label", "budget", "claim", "metric"),
    *("mean", "std", "n", "planned", "diverged", "missing", "corrupt", "bold", "p_value"),
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
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    mark = {"warning": table.watermark} if table.watermark else {}
    writer.writerow([*CSV_COLUMNS, *mark])
    for row, (dataset, model, budget), cell in table.cells():
        writer.writerow(
            [
                *(table.panel, dataset, model, row.method, row.label, budget),
                *(cell.claim, table.metric.column, *_numbers(cell), *mark.values()),
            ]
        )
    return stream.getvalue()


def _numbers(cell: Cell) -> list[Any]:
    one = cell.sample
    statistics = [one.mean, one.deviation]
    counts = [one.n, one.planned, one.diverged, one.missing, one.corrupt]
    shown = ["" if value != value else repr(value) for value in (*statistics, cell.p_value)]
    return [*shown[:2], *counts, str(cell.leads).lower(), shown[2]]


def to_markdown(table: Table) -> str:
    """Return the table in Markdown: heading, caption, a pipe table per panel, notes."""
    blocks = [f"### {_markdown(table.title)}"]
    if table.watermark:
        blocks.append(f"**{_markdown(table.watermark)}**")
    if table.caption:
        blocks.append(_markdown(table.caption))
    for panel in table.panels():
        columns = [f"{g.title}: {h}" for g in panel for h in g.headings()]
        blocks.append(_pipes(["method", *columns], _markdown_rows(table.rows, panel)))
    if table.references:
        titles = [group.title for group in table.groups]
        rows = _markdown_rows(table.references, table.groups)
        blocks.append(_pipes(["non-private reference", *titles], rows))
    if table.costs is not None:
        head, *rows = [[_markdown(text) for text in line] for line in cost_lines(table.costs)]
        blocks.append(_pipes(head, rows))
    blocks.extend(_markdown(note) for note in _notes(table))
    return "\n\n".join(blocks) + "\n"


def _markdown_rows(rows: Iterable[Row], panel: Sequence[Group]) -> list[list[str]]:
    return [
        [_markdown(row.label)]
        + [_markdown_cell(cell) for group in panel for cell, _ in row.across(group)]
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
    for panel in table.panels():
        lines += [*_tabular(table, panel), "", r"\medskip"]
    if table.costs is not None:
        lines += [*_cost_tabular(table.costs), "", r"\medskip"]
    notes = " ".join(latex(note) for note in _notes(table))
    lines += [rf"\par\raggedright\footnotesize {notes}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _caption(table: Table) -> str:
    return ". ".join(filter(None, [table.watermark, table.title.rstrip("."), table.caption]))


def _notes(table: Table) -> list[str]:
    return [*table_notes(table), *([NOTE] if table.costs is not None else [])]


def _cost_tabular(costs: Costs) -> list[str]:
    head, *rows = [" & ".join(map(latex, line)) + r" \\" for line in cost_lines(costs)]
    width = sum(len(group["headings"]) for group in costs["groups"])
    begin = [rf"\begin{{tabular}}{{l{'r' * width}}}", r"\toprule", head, r"\midrule"]
    return [*begin, *rows, r"\bottomrule", r"\end{tabular}"]


def _tabular(table: Table, panel: Sequence[Group]) -> list[str]:
    spans = [len(group.budgets) for group in panel]
    titles, rules, column = [""], [], 2
    for group, span in zip(panel, spans, strict=True):
        titles.append(rf"\multicolumn{{{span}}}{{c}}{{{latex(group.title)}}}")
        rules.append(rf"\cmidrule(lr){{{column}-{column + span - 1}}}")
        column += span
    headings = ["method", *(latex(h) for group in panel for h in group.headings())]
    lines = [rf"\begin{{tabular}}{{l{'r' * sum(spans)}}}", r"\toprule"]
    lines += [" & ".join(titles) + r" \\", " ".join(rules), " & ".join(headings) + r" \\"]
    lines += [r"\midrule", *(_latex_row(row, panel) for row in table.rows)]
    if table.references:
        width = sum(spans) + 1
        lines += [
            r"\midrule",
            rf"\multicolumn{{{width}}}{{l}}{{\emph{{non-private references}}}} \\",
        ]
        lines += [_latex_row(row, panel) for row in table.references]
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _latex_row(row: Row, panel: Sequence[Group]) -> str:
    cells = [latex(row.label)]
    for group in panel:
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


def panel_data(table: Table) -> list[dict[str, Any]]:
    """Return the panels as plain data for the PDF template, which lays them out."""
    return [
        {
            "groups": [{"title": group.title, "headings": group.headings()} for group in panel],
            "rows": [_row_data(row, panel) for row in table.rows],
            "references": [_row_data(row, panel) for row in table.references],
        }
        for panel in table.panels()
    ]


def _row_data(row: Row, panel: Sequence[Group]) -> dict[str, Any]:
    cells = [pair for group in panel for pair in row.across(group)]
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
