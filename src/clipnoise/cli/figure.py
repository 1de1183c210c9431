"""Draw one figure of a study's report as SVG.

It draws what is there and says in the figure what is not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from clipnoise.cli._options import add_scale
from clipnoise.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--study", type=Path, required=True, help="study file")
    parser.add_argument(
        "--item", type=int, required=True, help="number of the report item, counted from 0"
    )
    parser.add_argument("--runs", type=Path, required=True, help="runs.csv of the study")
    parser.add_argument("--curves", type=Path, required=True, help="curves.csv of the study")
    add_scale(parser)
    parser.add_argument("--out", type=Path, required=True, help=".svg to write")


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.files import write_atomically
    from clipnoise.report.figures.kinds import draw_figure
    from clipnoise.report.records import read_curves, read_runs
    from clipnoise.studies.study import load_study

    study = load_study(arguments.study, arguments.scale)
    items = study.report
    figures = [number for number, item in enumerate(items) if item.drawn]
    if arguments.item not in figures:
        raise UserError(
            f"{arguments.study}: report: item {arguments.item} is not a figure. "
            f"Allowed: {', '.join(map(str, figures)) or 'none'}."
        )
    item = items[arguments.item]
    runs, curves = read_runs(arguments.runs), read_curves(arguments.curves)
    figure = draw_figure(item, runs, curves, study.watermark)
    write_atomically(arguments.out, figure)
    print(f"{arguments.out}: {item.kind} of {item.panel}")
    return 0
