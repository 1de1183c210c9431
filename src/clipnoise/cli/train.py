"""Train one run from its spec and write its result files.

A run that diverges is a result too: it is recorded with its reason and the exit code is 0.
On SIGTERM and SIGUSR1 the run is saved and the exit code is 75: the same command goes on with it.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from clipnoise.cli._options import ranged
from clipnoise.errors import UserError
from clipnoise.fields import Natural, Positive

if TYPE_CHECKING:
    from clipnoise.run.spec import RunSpec


TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--spec", required=True, help="a run spec: a YAML file, or JSON itself")
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what is the same for one run and for a batch of them."""
    parser.add_argument(
        "--calibration", type=Path, nargs="*", default=[], help="file written by calibrate"
    )
    parser.add_argument(
        "--choice", type=Path, nargs="*", default=[], help="file written by select, for a tuned run"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder")
    parser.add_argument("--cache", type=Path, default=Path("data"), help="prepared datasets")
    parser.add_argument("--weights", type=Path, default=Path("weights"), help="pretrained weights")
    parser.add_argument("--tracking", choices=("live", "after", "sync", "off"), default="off")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of this run")
    parser.add_argument(
        "--gpus",
        type=ranged(Natural),
        default=0,
        help="GPUs to wait for and keep, where no scheduler deals them out",
    )
    parser.add_argument(
        "--requeue",
        action="store_true",
        help="when told to stop inside a Slurm job, put the job back into the queue",
    )
    parser.add_argument(
        "--checkpoint-minutes",
        type=ranged(Positive),
        default=10.0,
        help="how often the run is saved, to go on from there when it is stopped",
    )


def run(arguments: argparse.Namespace) -> int:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(arguments.threads)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    from clipnoise.privacy.calibration import read_calibration
    from clipnoise.run.checkpoint import InterruptedRunError
    from clipnoise.run.gpus import own_gpus
    from clipnoise.run.job import run_job
    from clipnoise.run.memory import keep_freed_memory

    spec = chosen(_spec(arguments.spec), arguments.choice)
    if spec.privacy is not None and len(arguments.calibration) != 1:
        raise UserError("--calibration: a private run reads exactly one calibration file.")
    calibration = read_calibration(arguments.calibration[0]) if spec.privacy else None
    keep_freed_memory()
    try:
        with own_gpus(arguments.gpus):
            import torch

            torch.set_num_threads(arguments.threads)
            run_job(
                spec,
                calibration,
                results=arguments.results,
                cache=arguments.cache,
                weights=arguments.weights,
                device=arguments.device,
                tracking=arguments.tracking,
                checkpoint_seconds=60 * arguments.checkpoint_minutes,
            )
    except InterruptedRunError as reason:
        logging.getLogger(__name__).info(reason)
        return try_again(arguments)
    return 0


def try_again(arguments: argparse.Namespace) -> int:
    """Return the exit code of what can go on later; ask Slurm for that where it should."""
    from clipnoise.run.slurm import requeue

    if arguments.requeue and requeue():
        print("the Slurm job is back in the queue", file=sys.stderr, flush=True)
    return TRY_AGAIN


def _spec(text: str) -> RunSpec:
    import yaml

    from clipnoise.run.spec import from_mapping, read_spec

    if not text.lstrip().startswith("{"):
        return read_spec(Path(text))
    try:
        return from_mapping(yaml.safe_load(text), file="--spec")
    except yaml.YAMLError as error:
        raise UserError(f"--spec: not valid JSON: {error}") from None


def chosen(spec: RunSpec, choice: list[Path]) -> RunSpec:
    """Return the run with its tuned hyper-parameters."""
    from clipnoise.run.tuning import read_choice, resolve

    if spec.tuning is None or (spec.tuning.chosen and not choice):
        return spec
    if len(choice) != 1:
        names = ", ".join(spec.tuning.parameters)
        raise UserError(f"--choice: {names} of this run are tuned: give the file of the choice.")
    return resolve(spec, read_choice(choice[0]))
