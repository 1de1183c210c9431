"""Collect the result files of a study into runs.csv and curves.csv.

Every planned run gets a row: a missing, diverged or damaged one too, with the reason. A damaged
result is set aside, and the exit code is 1: Snakemake then has no table that looks up to date, and
its next call makes the run again.
"""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

from clipnoise.cli._options import add_planned


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "study", type=Path, help="study file, e.g. workflow/studies/quickstart.yaml"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder")
    add_planned(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder for the two tables")


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.files import write_atomically
    from clipnoise.run.results import set_aside_because
    from clipnoise.studies.collect import collect
    from clipnoise.studies.study import load_study

    runs, curves = collect(
        load_study(arguments.study, arguments.scale, secure_noise=arguments.secure_noise),
        arguments.results,
    )
    write_atomically(arguments.out / "runs.csv", runs)
    write_atomically(arguments.out / "curves.csv", curves)
    rows = list(csv.DictReader(io.StringIO(runs)))
    damaged = {row["folder"]: row["reason"] for row in rows if row["status"] == "corrupt"}
    for folder, reason in damaged.items():
        print(set_aside_because(arguments.results / "runs" / folder, reason))
    print(f"{arguments.out}: {len(rows)} runs")
    return 1 if damaged else 0
