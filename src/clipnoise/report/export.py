"""A table of results as CSV, Markdown and LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from clipnoise.report.formats import exact, safe_csv
from clipnoise.report.overview import Overview
from clipnoise.report.tables import Block, Table, title_of

COUNTS = ("n", "planned", "diverged", "missing", "corrupt")
OVERVIEW_COLUMNS = (
    *("method", "label", "claim", "metric", "group", "column", "value", "tasks", "diverged"),
)
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


def to_csv(table: Table) -> str:
    """Return one line per cell: full-precision mean, std and Holm-adjusted p-value, and counts."""
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
            "bold": str(table.leads(row, place)).lower(),
            "p_value": exact(table.p_value(row, place)),
        }
        for row, place, cell in table.cells()
        for dataset, model, budget in [place]
    ]
    return safe_csv(CSV_COLUMNS, lines, table.watermark)


def overview_to_csv(overview: Overview) -> str:
    """Return one line per method and column, with all digits.

    A value is empty where a run diverged or nothing is known.
    """
    lines = [
        {
            "method": line.method,
            "label": line.label,
            "claim": line.cell.claim,
            "metric": overview.metric.column,
            "group": group,
            "column": heading,
            "value": exact(entry.value) if math.isfinite(entry.value) else "",
            "tasks": entry.tasks,
            "diverged": entry.diverged,
        }
        for line in overview.lines
        for (group, heading), entry in line.entries.items()
        if entry
    ]
    return safe_csv(OVERVIEW_COLUMNS, lines, overview.watermark)


def _heads(block: Block) -> list[str]:
    """Return the headings of a block in one line."""
    pairs = [(g["title"], head) for g in block["groups"] for head in g["headings"]]
    return ["method", *(f"{title}: {head}" if title else head for title, head in pairs)]


def to_markdown(table: Table) -> str:
    """Return the table in Markdown: heading, caption, a pipe table per block of columns, notes."""
    parts = list(map(_block, table.blocks()))
    if table.references:
        heads = ["non-private reference", *map(title_of, table.groups)]
        parts.append(_pipes(heads, table.laid_out(table.references, table.groups)))
    return _headed(table, [*parts, *map(_block, table.costs)])


def overview_to_markdown(overview: Overview) -> str:
    """Return the overview in Markdown: heading, caption, a pipe table, notes."""
    return _headed(overview, map(_block, overview.blocks()))


def _headed(table: Table | Overview, parts: Iterable[str]) -> str:
    """Return the parts of a table between its heading and caption, and its notes."""
    mark, caption = _markdown(table.watermark), _markdown(table.caption)
    above = [f"### {_markdown(table.title)}", f"**{mark}**" if mark else "", caption]
    return "\n\n".join(filter(None, [*above, *parts, *map(_markdown, table.notes)])) + "\n"


def _block(block: Block) -> str:
    return _pipes(_heads(block), block["rows"])


def _pipes(heads: list[str], rows: list[dict[str, Any]]) -> str:
    lines = [list(map(_markdown, heads)), ["---"] + ["---:"] * (len(heads) - 1)]
    lines += [[_markdown(row["label"]), *map(_markdown_cell, row["cells"])] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown_cell(cell: dict[str, Any]) -> str:
    text = _markdown(cell["text"])
    text = f"**{text}**" if cell["bold"] else text
    return text + str(cell["mark"]) + (f" ({cell['runs']})" if cell["runs"] else "")


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#~$])", r"\\\1", " ".join(text.split()))


def to_latex(table: Table) -> str:
    """Return a LaTeX table environment; it needs the packages booktabs and textcomp."""
    costs = [_tabular(block, [_line(map(latex, _heads(block)))]) for block in table.costs]
    return _environment(table, [*map(_spanned, table.blocks()), *costs])


def overview_to_latex(overview: Overview) -> str:
    """Return a LaTeX table environment, as `to_latex` does."""
    return _environment(overview, map(_spanned, overview.blocks()))


def _environment(table: Table | Overview, tabulars: Iterable[list[str]]) -> str:
    """Return the lines of tabulars below the caption of a table and above its notes."""
    caption = ". ".join(filter(None, [table.watermark, table.title.rstrip("."), table.caption]))
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex(caption)}}}"]
    lines += [line for tabular in tabulars for line in tabular]
    notes = " ".join(map(latex, table.notes))
    lines += [rf"\par\raggedright\footnotesize {notes}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _spanned(block: Block) -> list[str]:
    return _tabular(block, _spanning_heads(block["groups"]))


def _spanning_heads(groups: Sequence[dict[str, Any]]) -> list[str]:
    """Return the titles of groups, a rule below each, and the headings of their columns."""
    titles, rules, headings, last = [""], [], ["method"], 1
    for group in groups:
        span = len(group["headings"])
        titles.append(rf"\multicolumn{{{span}}}{{c}}{{{latex(group['title'])}}}")
        rules.append(rf"\cmidrule(lr){{{last + 1}-{last + span}}}")
        headings += map(latex, group["headings"])
        last += span
    return [_line(titles), " ".join(rules), _line(headings)]


def _tabular(block: Block, heads: list[str]) -> list[str]:
    width = sum(len(group["headings"]) for group in block["groups"])
    lines = [rf"\begin{{tabular}}{{l{'r' * width}}}", r"\toprule", *heads, r"\midrule"]
    lines += map(_latex_row, block["rows"])
    if block["references"]:
        title = rf"\multicolumn{{{width + 1}}}{{l}}{{\emph{{non-private references}}}}"
        lines += [r"\midrule", _line([title]), *map(_latex_row, block["references"])]
    return [*lines, r"\bottomrule", r"\end{tabular}", "", r"\medskip"]


def _latex_row(row: dict[str, Any]) -> str:
    return _line([latex(row["label"]), *map(_latex_cell, row["cells"])])


def _latex_cell(cell: dict[str, Any]) -> str:
    text = latex(cell["text"])
    text = rf"\textbf{{\boldmath {text}}}" if cell["bold"] else text
    text += latex(cell["mark"]) + (f" ({cell['runs']})" if cell["runs"] else "")
    return text if cell["span"] == 1 else rf"\multicolumn{{{cell['span']}}}{{c}}{{{text}}}"


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def latex(text: str) -> str:
    """Escape text for LaTeX; signs that pdfLaTeX's fonts lack become commands."""
    return "".join(LATEX.get(letter, letter) for letter in " ".join(text.split()))
