"""Training from specs, and replay of a recorded stream of gradients and noise."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from clipnoise.cli import options
from clipnoise.errors import UserError, unknown
from clipnoise.fields import Count, Natural, Positive
from clipnoise.files import write_json

if TYPE_CHECKING:
    from clipnoise.run.spec import RunSpec

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h
ENGINE = "clipnoise.run.train"  # imports torch
REQUIRED = ("initial", "per_example_gradients", "noise")
OPTIONAL = ("public_gradients", "side_information", "warm_gradients")


CalibrationFiles = Annotated[Sequence[Path], "Files written by calibrate."]
ChoiceFiles = Annotated[Sequence[Path], "Files written by select, for tuned runs."]


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What does not change a run's result: where its files are and what it may use."""

    results: options.Results = options.RESULTS
    cache: options.Cache = options.CACHE
    weights: options.Weights = options.WEIGHTS
    tracking: Annotated[options.Tracking, "When MLflow is told of a run."] = "off"
    device: Annotated[Literal["auto", "cpu", "cuda"], "Where to train."] = "auto"
    threads: options.Threads = 1
    gpus: Annotated[Natural, "GPUs to wait for and hold, where no scheduler assigns them."] = 0
    requeue: Annotated[bool, "Put the Slurm job back into the queue when told to stop."] = False
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
    options.limit_threads(given.threads)
    return train_run(with_choice(_read_spec(spec), choice), calibration, given)


def train_run(spec: RunSpec, calibration: Sequence[Path], given: Circumstances) -> int:
    """Train one run in this process, and return the exit code.

    Args:
        spec: the run, with its tuned hyper-parameters.
        calibration: its calibration file; ignored for a non-private run.
        given: folders, device and so on.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    from clipnoise.privacy.calibration import read_calibration
    from clipnoise.run.checkpoint import InterruptedRunError
    from clipnoise.run.job import run_job
    from clipnoise.run.memory import keep_freed_memory
    from clipnoise.run.scheduler import hold_gpus
    from clipnoise.tracking import LiveRun

    if spec.privacy is not None and len(calibration) != 1:
        raise UserError("--calibration: a private run reads exactly one calibration file.")
    noise = read_calibration(calibration[0]) if spec.privacy else None
    keep_freed_memory()
    try:
        with hold_gpus(given.gpus):
            import torch

            torch.set_num_threads(given.threads)
            run_job(
                spec,
                noise,
                results=given.results,
                cache=given.cache,
                weights=given.weights,
                device=given.device,
                open_view=partial(LiveRun, given.results, spec, mode=given.tracking),
                checkpoint_seconds=60 * given.checkpoint_minutes,
            )
    except InterruptedRunError as reason:
        logging.getLogger(__name__).info(reason)
        return _try_again(given.requeue)
    return 0


@options.command()
def train_group(
    specs: Annotated[str, "Run specs: a JSON list, or a file that holds one."],
    given: Circumstances,
    calibration: CalibrationFiles = (),
    choice: ChoiceFiles = (),
    parallel: Annotated[Count, "Runs that train at the same time."] = 1,
    out: Annotated[Path | None, "JSON file that lists the runs when all are done."] = None,
) -> int:
    """Train several runs in one job that loads the libraries once, each in its own process.

    Runs that already have a sound result are left alone. A run that fails does not stop the others,
    but the exit code is then 1. On SIGTERM and SIGUSR1 every run is saved and the exit code is 75;
    the same command resumes those that are left. The log of each run is run.log in its folder.
    """
    options.limit_threads(given.threads)
    from clipnoise.run.scheduler import Forks, hold_gpus

    runs, tasks = _plan_group(_read_list(specs), calibration, choice, given)
    print(f"{len(tasks)} of {len(runs)} runs to train", flush=True)
    forks, ended = Forks(parallel), {}
    if tasks:
        with hold_gpus(given.gpus):
            needed = {name for log in tasks for name in runs[log].libraries}
            ended = forks.run(tasks, [ENGINE, *sorted(needed)])
    for log, code in ended.items():
        print(f"{'done' if code == 0 else f'exit code {code}, see'} {log}")
    if forks.stopped:
        return _try_again(given.requeue)
    if any(ended.values()):
        return 1
    if out is not None:
        write_json(out, {"runs": [spec.folder for spec in runs.values()]})
    return 0


def _plan_group(
    specs: list[dict[str, Any]],
    calibration: Sequence[Path],
    choice: Sequence[Path],
    given: Circumstances,
) -> tuple[dict[Path, RunSpec], dict[Path, Callable[[], int]]]:
    """Return all runs, and a function that trains it for each without a result, by log file."""
    from clipnoise.privacy.calibration import read_calibration
    from clipnoise.run.job import is_finished
    from clipnoise.run.results import run_folder
    from clipnoise.run.spec import from_mapping

    runs: dict[Path, RunSpec] = {}
    tasks: dict[Path, Callable[[], int]] = {}
    # The GPUs are held, and the job is requeued, by this process for all of its runs.
    of_each = replace(given, gpus=0, requeue=False)
    for values in specs:
        spec = from_mapping(values, file="--specs")
        spec = with_choice(spec, _named(choice, spec.tuning.key if spec.tuning else None))
        budget = spec.budget
        files = _named(calibration, budget.key if budget else None)
        if budget is not None and not files:
            raise UserError(f"--calibration: no file {budget.key}.json for run {spec.hash}.")
        log = run_folder(given.results, spec) / "run.log"
        runs[log] = spec
        if not is_finished(given.results, given.cache, spec, *map(read_calibration, files)):
            tasks[log] = partial(train_run, spec, files, of_each)
    return runs, tasks


def _named(files: Sequence[Path], key: str | None) -> list[Path]:
    """Return the file named after a key; none where there is no key, or no such file."""
    return [path for path in files if path.stem == key][:1]


def with_choice(spec: RunSpec, choice: Sequence[Path]) -> RunSpec:
    """Return the run with its tuned hyper-parameters.

    Raises:
        UserError: hyper-parameters of the run are tuned, and there is not one file of the choice.
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


def _try_again(requeue: bool) -> int:
    """Return the exit code of a job that can resume; ask Slurm to start it again if wanted."""
    from clipnoise.run.scheduler import requeue_job

    if requeue and requeue_job():
        print("the Slurm job is back in the queue", file=sys.stderr, flush=True)
    return TRY_AGAIN


def _read_spec(text: str) -> RunSpec:
    import yaml

    from clipnoise.run.spec import from_mapping, read_spec

    if not text.lstrip().startswith("{"):
        return read_spec(Path(text))
    try:
        return from_mapping(yaml.safe_load(text), file="--spec")
    except yaml.YAMLError as error:
        raise UserError(f"--spec: not valid JSON: {error}") from None


def _read_list(text: str) -> list[dict[str, Any]]:
    try:
        values = json.loads(text if text.lstrip().startswith("[") else Path(text).read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"--specs: not a JSON list of run specs: {error}") from None
    if not isinstance(values, list) or not values:
        raise UserError("--specs: expected a JSON list of run specs.")
    return values


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
