"""A job: train one spec, write its result files, and show it in MLflow."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipnoise.files import LockedError, locked, remove_unfinished, require_writable
from clipnoise.run.batch import data_digests, is_finished
from clipnoise.run.checkpoint import FILE, Checkpoint, identity, stop_requests
from clipnoise.run.provenance import Provenance
from clipnoise.run.results import read_summary, run_folder, write_run
from clipnoise.tracking import LiveRun, Mode, open_run

if TYPE_CHECKING:
    from clipnoise.privacy.calibration import Calibration
    from clipnoise.run.outcome import Metrics
    from clipnoise.run.spec import RunSpec

CHECKPOINT_SECONDS = 600.0

logger = logging.getLogger(__name__)


def run_job(
    spec: RunSpec,
    calibration: Calibration | None,
    *,
    results: Path,
    cache: Path,
    weights: Path,
    device: str,
    tracking: Mode,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> dict[str, Any]:
    """Train one run and leave its files behind, complete or not at all.

    Args:
        spec: the run.
        calibration: σ and the ε it costs; None for a non-private run.
        results: the results folder.
        cache: the folder of prepared datasets.
        weights: the folder of pretrained weights.
        device: "auto" or a torch device name.
        tracking: when MLflow is told of the run; see `open_run`.
        checkpoint_seconds: how often the run is saved, so that it can go on where it stopped.

    Returns:
        The run's summary.

    Raises:
        UserError: the calibration is another budget's, the dataset is not prepared, the model
            cannot be trained privately, or the results folder cannot be written.
        OSError: the result files cannot be written.
        InterruptedRunError: the process was told to stop; the run goes on when called again.
    """
    from clipnoise.run.train import train

    if spec.budget is not None and calibration is not None:
        calibration.check(spec.budget)
    device = pick_device(device)
    provenance = Provenance(device)
    folder = run_folder(results, spec)
    require_writable(folder)
    with _alone(folder) as waited:
        done = waited and is_finished(results, cache, spec, calibration)
        found = read_summary(folder) if done else None
        if found is not None:
            logger.info("the other job has finished it")
            return found
        remove_unfinished(folder)
        made_by = identity(spec, calibration, device, data_digests(spec, cache))
        with stop_requests() as stop, open_run(results, spec, mode=tracking) as view:
            checkpoint = Checkpoint(
                folder / FILE, made_by, checkpoint_seconds, stop, kept=not spec.secure_noise
            )

            logger.info("%s on %s of %s", spec.folder, device, socket.gethostname())
            outcome = train(
                spec,
                cache=cache,
                calibration=calibration,
                weights=weights,
                device=device,
                on_metrics=partial(_tell, view, spec.steps),
                checkpoint=checkpoint,
            )
            summary = write_run(folder, spec, outcome, calibration, provenance)
            checkpoint.remove()
    logger.info("%s%s", outcome.status, f": {outcome.reason}" if outcome.reason else "")
    return summary


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Hold a run, so that no two jobs write it at a time; yield whether another had to end first.

    Two people may share a results folder, and jobs outlive a Snakemake that was killed.
    """
    path = folder / ".lock"
    with ExitStack() as held:
        waited = False
        try:
            held.enter_context(locked(path, seconds=0))
        except LockedError:
            logger.info("another job is training this run: waiting for its end")
            held.enter_context(locked(path))
            waited = True
        except OSError as error:
            logger.warning("nothing keeps other jobs from this run: no lock (%s)", error)
        yield waited


def _tell(view: LiveRun, steps: int, metrics: Metrics) -> None:
    logger.info(describe(metrics, steps))
    view.log(asdict(metrics))


def describe(metrics: Metrics, total: int) -> str:
    """Return one line of progress: step, losses, accuracy, ε, and the time left."""
    done = metrics.step
    left = metrics.seconds / done * (total - done) if done else float("nan")
    spent = "" if metrics.epsilon is None else f"  ε {metrics.epsilon:.3f}"
    remaining = f"  {left:.0f} s left" if done and done < total else ""
    return (
        f"step {done}/{total}  train loss {metrics.train_loss:.4f}"
        f"  test accuracy {metrics.test_accuracy:.4f}{spent}{remaining}"
    )


def pick_device(asked: str) -> str:
    """Turn "auto" into the best device there is; other names are taken as they are."""
    if asked != "auto":
        return asked
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
