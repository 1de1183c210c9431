"""Compare the final metrics of two results folders exactly, to show that a change keeps them.

    python benchmarks/same_numbers.py BEFORE AFTER [--also COLUMN ...]

BEFORE and AFTER are results folders (`results` in config.yaml) with the same studies in them. Every
runs.csv below their `studies` and `studies-<scale>` folders is read. Runs are paired by scale,
study, panel (called part in older results), dataset, model, label, budget and seed; hashes, folders
and times may differ. Of each pair, the status and every column whose name begins with train_,
validation_ or test_ must be equal as text, digit for digit; `--also` adds columns, such as
noise_multiplier or epsilon_achieved.

Prints counts and the first differences. Exit status: 0 if all is equal, 1 for any difference or any
run that only one folder has, 2 for a folder without runs or two runs that cannot be told apart.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

METRICS = ("train_", "validation_", "test_")
KEY = ("study", "panel", "dataset", "model", "label", "budget", "seed")
SHOWN = 20  # differences that are printed

Runs = Mapping[tuple[str, ...], Mapping[str, str]]


def main(words: Sequence[str] | None = None) -> int:
    """Compare the two folders and print what differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="results folder")
    parser.add_argument("after", type=Path, help="results folder")
    parser.add_argument("--also", nargs="+", default=[], metavar="COLUMN", help="compare these too")
    arguments = parser.parse_args(words)
    try:
        before, after = read(arguments.before), read(arguments.after)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    numbers, problems = compare(before, after, arguments.also)
    print(f"{len(before)} runs before, {len(after)} after, {len(before.keys() & after)} in both.")
    print(f"{numbers} numbers compared, {len(problems)} problems.")
    for problem in problems[:SHOWN]:
        print(f"  {problem}")
    if len(problems) > SHOWN:
        print(f"  … and {len(problems) - SHOWN} more")
    return 1 if problems else 0


def read(results: Path) -> Runs:
    """Return every run of every study in a results folder, by what identifies it.

    Raises:
        ValueError: there is no run, or two runs have the same key.
    """
    runs: dict[tuple[str, ...], Mapping[str, str]] = {}
    for path in sorted(results.glob("studies*/**/runs.csv")):
        scale = path.relative_to(results).parts[0]
        with path.open(newline="") as stream:
            for row in csv.DictReader(stream):
                row["panel"] = row.get("panel", row.get("part", ""))
                key = (scale, *(row[name] for name in KEY))
                if key in runs:
                    raise ValueError(f"{path}: two runs are {' / '.join(key)}.")
                runs[key] = row
    if not runs:
        raise ValueError(f"{results}: no run in any studies*/**/runs.csv.")
    return runs


def compare(before: Runs, after: Runs, also: Sequence[str] = ()) -> tuple[int, list[str]]:
    """Compare the runs of two folders.

    Args:
        before: the runs of one folder.
        after: the runs of the other.
        also: columns to compare beside status and metrics.

    Returns:
        How many metrics that are not empty were compared, and what differs, a line each.
    """
    problems = [f"{' / '.join(key)}: only before" for key in before if key not in after]
    problems += [f"{' / '.join(key)}: only after" for key in after if key not in before]
    numbers = 0
    for key in (key for key in before if key in after):
        old, new = before[key], after[key]
        columns = dict.fromkeys((*old, *new))
        metrics = [name for name in columns if name.startswith(METRICS)]
        for name in ("status", *metrics, *also):
            was, now = old.get(name), new.get(name)
            numbers += name in metrics and bool(was) and bool(now)
            if was is None or was != now:
                shown = ["no such column" if x is None else x or "empty" for x in (was, now)]
                problems.append(f"{' / '.join(key)}: {name}: {shown[0]} before, {shown[1]} after")
    return numbers, problems


if __name__ == "__main__":
    sys.exit(main())
