"""Typeset the report of a study as PDF, from its runs and its drawn figures.

Tables are computed from the runs; figures are taken from their folder. Missing, diverged and
damaged runs are listed, and a figure that is not there is named.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from clipnoise.cli._options import add_published, add_scale


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--study", type=Path, required=True, help="study file")
    parser.add_argument("--runs", type=Path, required=True, help="runs.csv of the study")
    parser.add_argument(
        "--figures", type=Path, required=True, help="folder of figures, named <item>.svg"
    )
    parser.add_argument(
        "--template",
        type=Path,
        default=Path("reports/templates/report.typ"),
        help="Typst file with the layout (default: %(default)s)",
    )
    add_published(parser)
    add_scale(parser)
    parser.add_argument("--out", type=Path, required=True, help=".pdf to write")


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.files import write_atomically
    from clipnoise.report.pdf import build_report
    from clipnoise.report.records import read_runs
    from clipnoise.studies.study import load_study

    study, runs = load_study(arguments.study, arguments.scale), read_runs(arguments.runs)
    report = build_report(study, runs, arguments.figures, arguments.template, arguments.published)
    write_atomically(arguments.out, report)
    print(f"{arguments.out}: {study.title}")
    return 0
