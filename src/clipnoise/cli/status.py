"""Tell what of a study is done, running, failed (and why) and left, and how long that takes.

Reads files only, so it works during a run and afterwards, on any machine that sees the folder.
Without a name it shows the studies of config.yaml. Whether a number in a result file has changed
on the disk is checked when results are collected, not here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipnoise.cli._options import ranged
from clipnoise.fields import Natural

if TYPE_CHECKING:
    from clipnoise.studies.status import RunStatus, StudyStatus

STATES = ("done", "diverged", "running", "stopped", "silent", "failed", "damaged", "not started")
OPEN = ("running", "failed", "damaged", "silent", "stopped", "diverged")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", nargs="*", help="names, e.g. quickstart or dp-pmlf/table1")
    parser.add_argument(
        "--config", type=Path, default=Path("config.yaml"), help="says scale, folders and studies"
    )
    parser.add_argument("--results", type=Path, help="results folder, if not the configured one")
    parser.add_argument(
        "--show", type=ranged(Natural), default=10, help="runs to list of each state (10)"
    )
    parser.add_argument("--json", action="store_true", help="everything, every run, as JSON")


def run(arguments: argparse.Namespace) -> int:
    from clipnoise.files import read_yaml
    from clipnoise.studies.plan import Plan
    from clipnoise.studies.status import failed_steps, study_status

    values = read_yaml(arguments.config)
    plan = Plan.from_values(
        {**values, **({"studies": arguments.study} if arguments.study else {})},
        arguments.config.parent / "workflow" / "studies",
    )
    root = arguments.config.parent  # where Snakemake works, and what the folders are relative to
    results = arguments.results or root / plan.config.results
    studies = [study_status(plan.study(name), results) for name in plan.configured]
    steps = failed_steps(results, root / plan.config.cache)
    if arguments.json:
        told = {"studies": [_study_mapping(study) for study in studies], "failed_steps": steps}
        print(json.dumps(told, indent=1))
        return 0
    print(_table(studies))
    for study in studies:
        for state in OPEN:
            print(_listed(study, state, arguments.show), end="")
    for name, reason in steps.items():
        print(f"\nfailed: {name}\n    {reason}")
    return 0


def _table(studies: Iterable[StudyStatus]) -> str:
    """Return one line per study, with the columns aligned."""
    head = ("study", "runs", *STATES, "time left")
    rows: list[tuple[str, ...]] = [head]
    for study in studies:
        counts = (str(study.counts[state]) for state in STATES)
        rows.append((study.name, str(len(study.runs)), *counts, _left(study)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            word.ljust(width) if place in (0, len(head) - 1) else word.rjust(width)
            for place, (word, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _left(study: StudyStatus) -> str:
    if not study.of(*(state for state in STATES if state not in ("done", "diverged"))):
        return "none"
    if study.work_left is None:
        return "unknown: no run has ended"
    if study.time_left is None:
        return f"{span(study.work_left)} of work, nothing runs"
    return f"{span(study.time_left)} with {study.counts['running']} at a time"


def _listed(study: StudyStatus, state: str, most: int) -> str:
    """Return the runs of a study in one state, the first few of them."""
    runs = study.of(state)
    lines = [f"\n{state} in {study.name}:"]
    for one in runs[:most]:
        left = "" if one.left is None or state != "running" else f", {span(one.left)} left"
        sign = "" if one.age is None else f", last sign {span(one.age)} ago"
        lines.append(f"  {one.spec.folder}\n    {one.reason}{left}{sign}")
        if one.log is not None and state in ("failed", "silent"):
            lines.append(f"    {one.log}")
    if len(runs) > most:
        lines.append(f"  and {len(runs) - most} more: --show says how many are listed")
    return "\n".join(lines) + "\n" if runs and most else ""


def span(seconds: float) -> str:
    """Format a time span by its two largest units: `8 s`, `12 min`, `3 h 5 min`, `2 d 4 h`."""
    minutes = round(seconds / 60)
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def _study_mapping(study: StudyStatus) -> dict[str, Any]:
    return {
        "study": study.name,
        "runs": len(study.runs),
        "counts": {state: study.counts[state] for state in STATES},
        "seconds_of_work_left": study.work_left,
        "seconds_left": study.time_left,
        "each": [_run_mapping(run) for run in study.runs],
    }


def _run_mapping(run: RunStatus) -> dict[str, Any]:
    return {
        "hash": run.spec.hash,
        "folder": run.spec.folder,
        "state": run.state,
        "reason": run.reason or None,
        "log": None if run.log is None else str(run.log),
        "seconds_since_last_sign": run.age,
        "seconds": run.seconds,
        "seconds_left": run.left,
    }
