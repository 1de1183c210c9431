"""Train several runs in one job; libraries are loaded once, and each run is a process of its own.

Runs that have a sound result are left alone. A run that fails stops no other, and the exit code is
1 at the end. On SIGTERM and SIGUSR1 every run is saved and the exit code is 75: the same command
goes on with those that are left. Each run's log is run.log in its folder.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipnoise.cli import train
from clipnoise.cli._options import ranged
from clipnoise.errors import UserError
from clipnoise.fields import Count

if TYPE_CHECKING:
    from clipnoise.run.spec import RunSpec

ENGINE = "clipnoise.run.train"  # and torch with it


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--specs", required=True, help="run specs: a JSON list, or a file of one")
    parser.add_argument(
        "--parallel", type=ranged(Count), default=1, help="runs that train at the same time"
    )
    parser.add_argument("--out", type=Path, help="JSON file that lists the runs when all are done")
    train.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(arguments.threads)
    from clipnoise.files import write_json
    from clipnoise.privacy.calibration import read_calibration
    from clipnoise.run.batch import Forks, is_finished
    from clipnoise.run.gpus import own_gpus
    from clipnoise.run.results import run_folder
    from clipnoise.run.spec import from_mapping

    tasks, specs = {}, {}
    for values in _listed(arguments.specs):
        spec = from_mapping(values, file="--specs")
        spec = train.chosen(
            spec, _named(arguments.choice, spec.tuning.key if spec.tuning else None)
        )
        budget = spec.budget
        files = _named(arguments.calibration, budget.key if budget else None)
        if budget is not None and not files:
            raise UserError(f"--calibration: no file {budget.key}.json for run {spec.hash}.")
        log = run_folder(arguments.results, spec) / "run.log"
        specs[log] = spec
        if not is_finished(arguments.results, arguments.cache, spec, *map(read_calibration, files)):
            tasks[log] = _task(arguments, spec, files)
    print(f"{len(tasks)} of {len(specs)} runs to train", flush=True)
    forks, ended = Forks(arguments.parallel), {}
    if tasks:
        with own_gpus(arguments.gpus):
            needed = {name for log in tasks for name in specs[log].libraries}
            ended = forks.run(tasks, [ENGINE, *sorted(needed)])
    for log, code in ended.items():
        print(f"{'done' if code == 0 else f'exit code {code}, see'} {log}")
    if forks.stopped:
        return train.try_again(arguments)
    if any(ended.values()):
        return 1
    if arguments.out is not None:
        write_json(arguments.out, {"runs": [spec.folder for spec in specs.values()]})
    return 0


def _listed(text: str) -> list[dict[str, Any]]:
    try:
        values = json.loads(text if text.lstrip().startswith("[") else Path(text).read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"--specs: not a JSON list of run specs: {error}") from None
    if not isinstance(values, list) or not values:
        raise UserError("--specs: expected a JSON list of run specs.")
    return values


def _named(files: list[Path], key: str | None) -> list[Path]:
    """Return the file that is named after a key; none where there is no key, or no such file."""
    return [path for path in files if path.stem == key][:1]


def _task(
    arguments: argparse.Namespace, spec: RunSpec, calibration: list[Path]
) -> Callable[[], int]:
    """Return a function that does what `clipnoise train` does for one run."""
    from clipnoise.run.spec import to_mapping

    text = json.dumps(to_mapping(spec))
    own = {"spec": text, "calibration": calibration, "choice": [], "gpus": 0, "requeue": False}
    one = argparse.Namespace(**{**vars(arguments), **own})
    return lambda: train.run(one)
