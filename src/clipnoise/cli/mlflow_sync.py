"""Bring the MLflow store up to date from the result files.

Adds what is missing, replaces what changed, leaves the rest. Exits with 1 when the store does not
answer or a result file is damaged. With --out the outcome is written there instead, and the exit
code is 0: a workflow goes on without its tracking server.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipnoise.cli._options import add_planned

if TYPE_CHECKING:
    from clipnoise.studies.study import Study


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder")
    parser.add_argument(
        "--study",
        type=Path,
        action="append",
        default=[],
        help="study file: sync only the runs it plans; may be given again",
    )
    add_planned(parser)
    parser.add_argument(
        "--tracking",
        choices=("live", "after", "sync", "off"),
        default="sync",
        help="off does nothing; the others are alike here",
    )
    parser.add_argument("--out", type=Path, help="JSON file for the outcome; faults then exit 0")


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.files import write_json
    from clipnoise.studies.study import load_study
    from clipnoise.tracking import StoreError

    scale, secure = arguments.scale, arguments.secure_noise
    studies = [load_study(path, scale, secure_noise=secure) for path in arguments.study]
    outcome: dict[str, Any] = {"error": None}
    if arguments.tracking == "off":
        outcome["error"] = "tracking is off"
    else:
        try:
            outcome |= _sync(arguments.results, studies)
        except StoreError as error:
            outcome["error"] = str(error)
            print(f"clipnoise mlflow-sync: {error}", file=sys.stderr)
    for message in outcome.get("damaged", ()):
        print(f"clipnoise mlflow-sync: {message}", file=sys.stderr)
    if arguments.out is not None:
        write_json(arguments.out, outcome)
        return 0
    faulty = outcome.get("damaged") or (outcome["error"] and arguments.tracking != "off")
    return 1 if faulty else 0


def _sync(results: Path, studies: list[Study]) -> dict[str, Any]:
    from clipnoise.studies.membership import descriptions, memberships
    from clipnoise.tracking import read_stamp, sync

    stamp = read_stamp(results)
    planned = set(memberships(studies))
    with _progress() as progress:
        report = sync(
            results,
            runs=memberships(studies, stamp.runs if stamp else None),
            only=planned if studies else None,
            descriptions=descriptions(studies),
            progress=progress,
        )
    values = asdict(report)
    counts = ", ".join(f"{n} {name}" for name, n in values.items() if isinstance(n, int) and n)
    print(f"{report.store}: {counts or 'no finished runs'}", end="")
    print(f", {len(report.damaged)} damaged" if report.damaged else "")
    return values


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show a bar with the time left while the block runs, on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    console = Console(stderr=True)
    columns = (TextColumn("mlflow-sync"), BarColumn(), MofNCompleteColumn(), TimeLeft())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("runs", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
