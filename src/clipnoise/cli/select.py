"""Choose hyper-parameters: the configuration with the best mean validation metric over its runs.

The choice is a JSON file with every configuration that was tried; `clipnoise train --choice` reads
it. A configuration of which a run diverged cannot win.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args


def configure(parser: argparse.ArgumentParser) -> None:
    from clipnoise.run.tuning import Metric

    parser.add_argument("--runs", nargs="+", required=True, help="folders of the tuning runs")
    parser.add_argument(
        "--below", type=Path, default=Path(), help="the folder that these folders are in"
    )
    parser.add_argument(
        "--parameters", nargs="+", required=True, help="the hyper-parameters that are tuned"
    )
    parser.add_argument("--metric", choices=get_args(Metric), default="validation_accuracy")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.errors import UserError
    from clipnoise.run.results import read_run, set_aside_because
    from clipnoise.run.tuning import write_choice
    from clipnoise.studies.selection import choose

    summaries = []
    for name in arguments.runs:
        try:
            files = read_run(arguments.below / name)
        except UserError as error:
            raise UserError(set_aside_because(arguments.below / name, str(error))) from None
        if files is None:
            raise UserError(f"{arguments.below / name}: the run has not finished.")
        absent = set(arguments.parameters) - set(files.summary["spec"]["method"])
        if absent:
            raise UserError(f"--parameters: {', '.join(sorted(absent))}: not in {name}.")
        summaries.append(files.summary)
    choice = choose(summaries, arguments.parameters, arguments.metric)
    write_choice(arguments.out, choice)
    values = ", ".join(f"{name} {value}" for name, value in choice.choice.items())
    print(f"{arguments.out}: {values}, the best of {len(choice.tried)}. {choice.remark}".rstrip())
    return 0
