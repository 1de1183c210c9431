"""Collect the result files of a study into runs.csv and curves.csv.

Every planned run gets a row: a missing, diverged or damaged one too, with the reason.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from clipnoise.cli._options import add_scale


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "study", type=Path, help="study file, e.g. workflow/studies/quickstart.yaml"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder")
    add_scale(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder for the two tables")


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.files import write_atomically
    from clipnoise.studies.collect import collect
    from clipnoise.studies.study import load_study

    runs, curves = collect(load_study(arguments.study, arguments.scale), arguments.results)
    write_atomically(arguments.out / "runs.csv", runs)
    write_atomically(arguments.out / "curves.csv", curves)
    print(f"{arguments.out}: {runs.count(chr(10)) - 1} runs")
    return 0
