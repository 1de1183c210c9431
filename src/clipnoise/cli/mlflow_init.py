"""Create the MLflow store and one experiment per study, before any job opens it.

The store is an SQLite database in the results folder, or what MLFLOW_TRACKING_URI says. Doing it
again changes nothing and takes no time. A store that does not answer is a warning, not a failure:
training goes on, and `clipnoise mlflow-sync` adds the runs later.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from clipnoise.cli._options import add_planned


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "studies", nargs="+", help="study names or files; the first that plans a run shows it"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder")
    parser.add_argument(
        "--studies-folder",
        type=Path,
        default=Path("workflow/studies"),
        help="where study names are looked up",
    )
    add_planned(parser)
    parser.add_argument(
        "--tracking",
        choices=("live", "after", "sync", "off"),
        default="live",
        help="off writes a stamp that keeps every job away from MLflow",
    )


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.studies.membership import descriptions, memberships
    from clipnoise.studies.study import find_study
    from clipnoise.tracking import init_store, is_open

    folder, scale, secure = arguments.studies_folder, arguments.scale, arguments.secure_noise
    studies = [find_study(one, folder, scale, secure_noise=secure) for one in arguments.studies]
    experiments, runs, tracking = descriptions(studies), memberships(studies), arguments.tracking
    if is_open(arguments.results, experiments, runs, tracking=tracking != "off"):
        return 0
    stamp = init_store(arguments.results, experiments, runs=runs, tracking=tracking != "off")
    if stamp.available:
        print(f"{stamp.uri}: {', '.join(stamp.experiments)}")
    elif tracking != "off":
        print(
            f"warning: {stamp.reason}\nTraining goes on without it; "
            "run `clipnoise mlflow-sync` when it answers.",
            file=sys.stderr,
        )
    return 0
