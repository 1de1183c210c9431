"""Training from specs, and replay of a recorded stream of gradients and noise."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from clipnoise.cli import options
from clipnoise.errors import UserError, unknown
from clipnoise.fields import Count, Natural, Positive
from clipnoise.run.results import run_folder
from clipnoise.run.scheduler import SLOTS, Slots, describe_start, note_job

if TYPE_CHECKING:
    from clipnoise.run.spec import RunSpec

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h
REQUIRED = ("initial", "per_example_gradients", "noise")
OPTIONAL = ("public_gradients", "side_information", "warm_gradients")


CalibrationFiles = Annotated[
    Sequence[Path], "Files written by calibrate; the one of the run's budget is used."
]
ChoiceFiles = Annotated[Sequence[Path], "Files written by select, for tuned runs."]


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What does not change a run's result: where its files are and what it may use."""

    results: options.Results = options.RESULTS
    cache: options.Cache = options.CACHE
    weights: options.Weights = options.WEIGHTS
    device: Annotated[Literal["auto", "cpu", "cuda"], "Where to train."] = "auto"
    threads: options.Threads = 1
    gpus: Annotated[Natural, "GPUs to wait for and hold, where no scheduler assigns them."] = 0
    slots: Annotated[Slots, "Slots of a GPU to take; with fewer than all it is shared."] = SLOTS
    processes: Annotated[
        Count, "How many processes train the run together, each with its threads and a GPU."
    ] = 1
    nodes: Annotated[Count, "Nodes of the Slurm job; processes are spread evenly over them."] = 1
    requeue: Annotated[bool, "Put the Slurm job back into the queue when told to stop."] = False
    keep_finished: Annotated[
        bool, "Leave a result as it is if the present code, data and calibration would give it."
    ] = False
    fingerprint: Annotated[
        str,
        "Of the code that was planned to train; an edit since is an error. Empty: any; several, "
        "separated by commas: one of them.",
    ] = ""
    checkpoint_minutes: Annotated[
        Positive, "How often a run is saved, so that it can resume after a stop."
    ] = 10.0


@options.command()
def train(
    spec: Annotated[str, "Run spec: a YAML file, or the JSON text itself."],
    given: Circumstances,
    calibration: CalibrationFiles = (),
    choice: ChoiceFiles = (),
) -> int:
    """Train one run from its spec and write its result files.

    A run that diverges is a result, too: it is recorded with the reason, and the exit code is 0.
    On SIGTERM and SIGUSR1 the run is saved and the exit code is 75; the same command resumes it.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger(__name__).info(describe_start())
    options.limit_threads(given.threads)
    planned = read_given(spec)
    note_job(run_folder(given.results, planned))
    run = with_choice(planned, choice)
    from clipnoise.privacy.calibration import find_calibration
    from clipnoise.run.checkpoint import InterruptedRunError
    from clipnoise.run.job import run_job
    from clipnoise.run.memory import keep_freed_memory
    from clipnoise.run.outcome import LostRankError
    from clipnoise.run.scheduler import hold_gpus

    _check_code(run, given.fingerprint)
    noise = None if run.budget is None else find_calibration(calibration, run.budget)
    keep_freed_memory()
    try:
        with hold_gpus(given.gpus, slots=given.slots):
            import torch

            torch.set_num_threads(given.threads)
            run_job(
                run,
                noise,
                results=given.results,
                cache=given.cache,
                weights=given.weights,
                device=given.device,
                checkpoint_seconds=60 * given.checkpoint_minutes,
                keep_finished=given.keep_finished,
                processes=given.processes,
                nodes=given.nodes,
            )
    except InterruptedRunError as reason:
        logging.getLogger(__name__).info(reason)
        return _try_again(given.requeue)
    except LostRankError as error:
        logging.getLogger(__name__).error(error)
        return 1
    return 0


def with_choice(spec: RunSpec, choice: Sequence[Path]) -> RunSpec:
    """Return the run with its tuned settings.

    Raises:
        UserError: settings of the run are tuned, and there is not one file of the choice.
    """
    from clipnoise.run.choice import read_choice, resolve

    if spec.tuning is None or (spec.tuning.chosen and not choice):
        return spec
    if len(choice) != 1:
        names = ", ".join(spec.tuning.parameters)
        raise UserError(
            f"--choice: {names} of this run are tuned: give the file written by select."
        )
    return resolve(spec, read_choice(choice[0]))


def _check_code(run: RunSpec, planned: str) -> None:
    """Refuse to train by other code than was planned: its result would be taken for the planned.

    Raises:
        UserError: the code has been edited since.
    """
    from clipnoise.run.fingerprint import fingerprint

    codes = {one.partition("-")[0] for one in planned.split(",")}  # what follows is of weights
    if planned and fingerprint(run) not in codes:
        raise UserError(
            f"run {run.hash}: code that can change its result has been edited since Snakemake "
            "planned it. The next call trains it with the present code."
        )


def _try_again(requeue: bool) -> int:
    """Return the exit code of a job that can resume; ask Slurm to start it again if wanted."""
    from clipnoise.run.scheduler import requeue_job

    if requeue and requeue_job():
        print("the Slurm job is back in the queue", file=sys.stderr, flush=True)
    return TRY_AGAIN


def read_given(text: str, folder: Path = Path()) -> RunSpec:
    """Read a run spec from its JSON text, or from the YAML file that the text names in a folder.

    Raises:
        UserError: it does not hold a valid spec.
    """
    import yaml

    from clipnoise.files import load_yaml
    from clipnoise.run.spec import from_mapping, read_spec

    if not text.lstrip().startswith("{"):
        return read_spec(folder / text)
    try:
        return from_mapping(load_yaml(text), file="--spec")
    except yaml.YAMLError as error:
        raise UserError(f"--spec: not valid JSON: {error}") from None


@options.command()
def replay(
    method: Annotated[str, options.ARGUMENT],
    stream: Annotated[Path, options.ARGUMENT],
    output: Annotated[Path, options.ARGUMENT],
    hyperparameters: options.Hyperparameters,
) -> None:
    """Run a recorded stream of gradients and noise through METHOD, from .npz to .npz.

    STREAM holds the arrays initial, per_example_gradients, noise and, where the method needs them,
    public_gradients, side_information and warm_gradients, in the shapes that clipnoise.replay
    documents. OUTPUT holds `iterates`.
    """
    import numpy as np

    from clipnoise.run.replay import replay as run_through

    try:
        with np.load(stream, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError) as error:
        raise UserError(f"{stream}: cannot be read as .npz: {error}") from None
    missing = [name for name in REQUIRED if name not in arrays]
    if missing:
        raise UserError(f"{stream}: missing arrays: {', '.join(missing)}.")
    for name in arrays:
        if name not in REQUIRED + OPTIONAL:
            raise unknown("array", name, REQUIRED + OPTIONAL, file=str(stream))
    iterates = run_through(method, hyperparameters, **arrays)
    np.savez(output, iterates=iterates)
    print(f"{output}: iterates of shape {iterates.shape}")
