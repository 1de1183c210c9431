"""Set a study's results beside published numbers: both, their difference, its standard error.

It builds from what is there: a published number without runs has a line too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from clipnoise.cli._options import add_published, add_scale
from clipnoise.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--study", type=Path, required=True, help="study file")
    parser.add_argument("--runs", type=Path, required=True, help="runs.csv of the study")
    add_published(parser)
    add_scale(parser)
    parser.add_argument("--out", type=Path, required=True, help=".csv to write")


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.files import write_atomically
    from clipnoise.report.comparison import compare, to_csv
    from clipnoise.report.records import read_runs
    from clipnoise.studies.comparisons import comparisons
    from clipnoise.studies.study import load_study

    study, runs = load_study(arguments.study, arguments.scale), read_runs(arguments.runs)
    tables = comparisons(study, arguments.published)
    if not tables:
        raise UserError(
            f"{arguments.study}: no published table: its report names none, and there is no "
            f"{arguments.published / study.name}.csv."
        )
    compared = [compare(runs, item, table) for item, table in tables.items()]
    write_atomically(arguments.out, to_csv(compared, study.watermark))
    pairs = [pair for one in compared for pair in one.pairs]
    found = sum(pair.ours is not None and pair.ours.sample.n > 0 for pair in pairs)
    print(
        f"{arguments.out}: {found} of {len(pairs)} published numbers have one of ours beside them"
    )
    return 0
