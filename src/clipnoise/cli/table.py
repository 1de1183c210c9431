"""Make the table of one panel of a study: mean ± std over seeds, as CSV, Markdown and LaTeX.

Failed and missing runs are counted in it. It builds from what is there, also from nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from clipnoise.cli._options import add_scale
from clipnoise.errors import unknown


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--study", type=Path, required=True, help="study file")
    parser.add_argument("--panel", required=True, help="panel of the study to show")
    parser.add_argument("--runs", type=Path, required=True, help="runs.csv of the study")
    add_scale(parser)
    parser.add_argument(
        "--out", type=Path, required=True, help="file name without ending; .csv, .md, .tex appear"
    )


def run(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from clipnoise.files import write_atomically
    from clipnoise.report.records import read_runs
    from clipnoise.report.tables.costs import cost_table
    from clipnoise.report.tables.export import to_csv, to_latex, to_markdown
    from clipnoise.report.tables.results import build_table
    from clipnoise.studies.study import load_study

    study = load_study(arguments.study, arguments.scale)
    if arguments.panel not in study.panels:
        raise unknown("panel", arguments.panel, study.panels, file=str(arguments.study))
    shown = [i for i in study.report if i.kind == "table" and i.panel == arguments.panel]
    title, caption = (shown[0].title, shown[0].caption) if shown else ("", "")
    runs = read_runs(arguments.runs)
    table = build_table(runs, arguments.panel, title=title, caption=caption)
    costs = cost_table(runs, arguments.panel) if any(item.costs for item in shown) else None
    table = replace(table, watermark=study.watermark, costs=costs)
    for ending, text in ((".csv", to_csv), (".md", to_markdown), (".tex", to_latex)):
        write_atomically(arguments.out.with_name(arguments.out.name + ending), text(table))
    print(f"{arguments.out}: .csv, .md and .tex")
    return 0
