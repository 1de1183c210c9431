"""A job: train one spec and write its result files; and repeat a finished one to compare them."""

from __future__ import annotations

import json
import logging
import math
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipnoise.data.cache import read_manifest
from clipnoise.errors import UserError
from clipnoise.fields import parse, to_plain
from clipnoise.files import LockedError, locked, remove_unfinished, require_writable
from clipnoise.models.pretrained import tensors_digest
from clipnoise.privacy.calibration import Calibration, read_calibration
from clipnoise.run.checkpoint import (
    FILE,
    Checkpoint,
    InterruptedRunError,
    StopRequest,
    identity,
    stop_requests,
)
from clipnoise.run.fingerprint import fingerprint
from clipnoise.run.outcome import LostRankError, Metrics, Outcome
from clipnoise.run.progress import LOCK, end_progress, note_progress, start_progress
from clipnoise.run.provenance import Provenance
from clipnoise.run.results import (
    Summary,
    privacy_statement,
    read_run,
    read_summary,
    run_folder,
    write_run,
)
from clipnoise.run.spec import RunSpec, from_mapping, read_spec, to_mapping

if TYPE_CHECKING:
    from clipnoise.run.ranks import Ranks

CHECKPOINT_SECONDS = 600.0
LONG_EVALUATION = 10.0  # seconds, from which on it is said that evaluations took most of a run
MOSTLY_EVALUATED = (
    "evaluations took %.0f s, all steps %.0f s; fewer evaluations in training, or evaluate: "
    "{examples: 2000}, take less"
)
MEASURED = ("seconds", "examples_per_second", "peak_memory_mb")  # differ from run to run
PROCESSOR = "processor"
Different = dict[str, tuple[object, object]]  # by name, before and now

logger = logging.getLogger(__name__)


def data_digests(spec: RunSpec, cache: Path, weights: Path) -> dict[str, str]:
    """Return the digests of a run's prepared files and weights, as a result records them.

    Raises:
        UserError: a dataset is not prepared.
    """
    manifests = (read_manifest(cache / one.prepared, one.invocation) for one in spec.datasets)
    found = by_role([manifest.digests() for manifest in manifests])
    return found | tensors_digest(spec.model, weights)


def by_role(datasets: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the digests of a run's prepared files, as a result records them.

    Args:
        datasets: the digests of its dataset, and of that with public examples if there is one.
    """
    prefixed = zip(("", "public "), datasets, strict=False)
    return {f"{role}{name}": text for role, one in prefixed for name, text in one.items()}


def made_with(summary: Summary, digests: Mapping[str, str]) -> bool:
    """Return whether a result was made with files that have these digests; it may record none."""
    return all(summary["data"].get(name, text) == text for name, text in digests.items())


def is_finished(
    results: Path,
    cache: Path,
    spec: RunSpec,
    calibration: Calibration | None = None,
    weights: Path = Path("weights"),
) -> bool:
    """Return whether a run has a sound result that present code, data and calibration would give.

    The arguments are those of `run_job`, with the run's tuned hyper-parameters in its spec.
    """
    try:
        files = read_run(run_folder(results, spec))
        data = data_digests(spec, cache, weights)
    except UserError:
        return False
    if files is None:
        return False
    summary, plain = files.summary, json.loads(json.dumps(to_mapping(spec)))
    stated, due = summary["privacy"], privacy_statement(spec, calibration)
    same_claim = all(
        stated.get(name) == getattr(due, name) for name in ("epsilon", "noise_multiplier")
    )
    made_by = (summary["spec"], summary.get("fingerprint"))
    return bool(same_claim and made_with(summary, data) and made_by == (plain, fingerprint(spec)))


def run_job(
    spec: RunSpec,
    calibration: Calibration | None,
    *,
    results: Path,
    cache: Path,
    weights: Path,
    device: str,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    keep_finished: bool = False,
    processes: int = 1,
    nodes: int = 1,
    physical_batch_size: int | None = None,
) -> Summary:
    """Train one run and leave its files behind, complete or not at all.

    Args:
        spec: the run.
        calibration: σ and the ε it costs; None for a non-private run.
        results, cache, weights: the folders of results, prepared datasets and pretrained weights.
        device: a torch device name; "auto" takes a CUDA GPU if there is one.
        checkpoint_seconds: how often the run is saved, so that it can resume where it stopped.
        keep_finished: whether a finished run is left as it is; see `is_finished`.
        processes: how many train the run together, this one among them; each on a GPU of its own,
            or all on the CPU.
        nodes: of the Slurm job, which share the processes out evenly; 1 is this machine.
        physical_batch_size: that of a run which is repeated; None takes what fits.

    Returns:
        The run's summary.

    Raises:
        UserError: the calibration is another budget's, the dataset is not prepared, the model
            cannot be trained privately, or the results folder cannot be written.
        OSError: the result files cannot be written.
        InterruptedRunError: the process was told to stop; the next call resumes the run.
        LostRankError: another process of the run has ended; the next call resumes the run.
    """
    from clipnoise.run.ranks import started
    from clipnoise.run.setup import exact_arithmetic, named_device

    if spec.budget is not None and calibration is not None:
        calibration.check(spec.budget)
    device = named_device(device)
    exact_arithmetic(device)
    provenance = Provenance(device, processes)
    folder = run_folder(results, spec)
    require_writable(folder)
    with _locked_run(folder) as waited:
        done = (waited or keep_finished) and is_finished(results, cache, spec, calibration, weights)
        finished = read_summary(folder) if done else None
        if finished is not None:
            logger.info("finished before: the result is left as it is")
            return finished
        remove_unfinished(folder)
        made_by = identity(spec, calibration, device, data_digests(spec, cache, weights))
        with stop_requests() as stop:
            checkpoint = Checkpoint(
                folder / FILE, made_by, checkpoint_seconds, stop, kept=not spec.secure_noise
            )

            logger.info("%s on %s of %s", spec.folder, device, socket.gethostname())
            start_progress(folder, spec, provenance.started)
            here = partial(
                _train,
                cache=cache,
                weights=weights,
                device=device,
                physical_batch_size=physical_batch_size,
            )
            plain = to_mapping(spec), None if calibration is None else to_plain(calibration)
            given = (here, *plain, checkpoint.path, made_by)
            with (
                _stopped_together(stop),
                started(processes, device, take_part, *given, nodes=nodes) as ranks,
            ):
                outcome = here(
                    spec,
                    calibration=calibration,
                    on_metrics=partial(_note, folder, spec),
                    checkpoint=checkpoint,
                    ranks=ranks,
                )
            summary = write_run(folder, spec, outcome, calibration, provenance)
            checkpoint.path.unlink(missing_ok=True)
            end_progress(folder)
    trained = float(outcome.cost.get("training_seconds") or 0.0)
    if outcome.evaluating > max(trained, LONG_EVALUATION) and not spec.strict:
        logger.info(MOSTLY_EVALUATED, outcome.evaluating, trained)
    if processes > 1:
        logger.info("%d processes sent %s bytes a step", processes, f"{outcome.bytes_per_step:,}")
    logger.info("%s%s", outcome.status, f": {outcome.reason}" if outcome.reason else "")
    return summary


def _train(
    spec: RunSpec,
    *,
    cache: Path,
    weights: Path,
    on_metrics: Callable[[Metrics], None] = lambda metrics: None,
    **settings: Any,
) -> Outcome:
    """Train as `train` does, and refuse a network that lets one example reach another.

    Args:
        spec, cache, weights, on_metrics, settings: as for `train`.

    Raises:
        UserError: the network notices padding, or draws from a global random stream.
    """
    from clipnoise.gradients.padding import check_padding
    from clipnoise.run.setup import build_network, load_data
    from clipnoise.run.streams import networks_watched
    from clipnoise.run.train import train

    vocabulary = spec.dataset.signature.vocabulary
    if vocabulary is not None:
        check_padding(build_network(spec, weights), load_data(spec, cache).train, vocabulary)
    watch = iter([networks_watched()])
    with ExitStack() as watched:

        def note(metrics: Metrics) -> None:
            # From the first measurement on, which comes before the first step: while hooks of all
            # modules are there, no engine that is made knows that a layer keeps examples apart.
            for one in watch:
                watched.enter_context(one)
            on_metrics(metrics)

        return train(spec, cache=cache, weights=weights, on_metrics=note, **settings)


@contextmanager
def _stopped_together(stop: StopRequest) -> Iterator[None]:
    """Take the loss of another process for a stop where this one was told to stop, too.

    A signal to all of them can end one before it has started to listen.

    Raises:
        InterruptedRunError: the run has lost a process, and was told to stop.
        LostRankError: it has lost one, and was not told to stop.
    """
    try:
        yield
    except LostRankError as error:
        if stop.signal is None:
            raise
        raise InterruptedRunError(
            f"stopped by {stop.signal}; it resumes from its last checkpoint, if any ({error})"
        ) from error


def take_part(
    ranks: Ranks,
    here: Callable[..., Outcome],
    spec: Mapping[str, object],
    calibration: Mapping[str, object] | None,
    path: Path,
    made_by: dict[str, str],
) -> None:
    """Train a run as one of its processes that write nothing.

    Args:
        ranks: this process among them.
        here: `_train`, with what is the same in all processes.
        spec, calibration: those of the first process, as plain data.
        path, made_by: the checkpoint that the run resumes from, and what must have made it.
    """
    from clipnoise.run.memory import keep_freed_memory

    keep_freed_memory()
    run = from_mapping(spec)
    with stop_requests() as stop, suppress(InterruptedRunError):
        here(
            run,
            calibration=None if calibration is None else parse(Calibration, calibration),
            checkpoint=Checkpoint(
                path, made_by, math.inf, stop, kept=not run.secure_noise, first=False
            ),
            ranks=ranks,
        )


@contextmanager
def _locked_run(folder: Path) -> Iterator[bool]:
    """Lock a run, so that no two jobs write it at once; yield whether another job had to end first.

    Two people may share a results folder, and jobs outlive a Snakemake process that was killed.
    """
    path = folder / LOCK
    with ExitStack() as held:
        waited = False
        try:
            held.enter_context(locked(path, seconds=0))
        except LockedError:
            logger.info("another job is training this run: waiting for it to end")
            held.enter_context(locked(path))
            waited = True
        except OSError as error:
            logger.warning(
                "the run could not be locked, so another job may write it, too (%s)", error
            )
        yield waited


def _note(folder: Path, spec: RunSpec, metrics: Metrics) -> None:
    logger.info(describe(metrics, spec.steps, strict=spec.strict))
    note_progress(folder, metrics)


def describe(metrics: Metrics, total: int, *, strict: bool = False) -> str:
    """Return one line of progress: step, losses, accuracy, ε, and the time left.

    A strict release withholds some of them.
    """
    done = metrics.step
    left = metrics.seconds / done * (total - done) if done else float("nan")
    spent = "" if metrics.epsilon is None else f"  ε {metrics.epsilon:.3f}"
    remaining = f"  {left:.0f} s left" if done and done < total else ""
    loss, accuracy = (
        "withheld" if strict and math.isnan(value) else f"{value:.4f}"
        for value in (metrics.train_loss, metrics.test_accuracy)
    )
    return f"step {done}/{total}  train loss {loss}  test accuracy {accuracy}{spent}{remaining}"


def repeatable(results: Path, spec: RunSpec) -> bool:
    """Return whether a run has completed, with noise that its seed determines."""
    files = None if spec.secure_noise else read_run(run_folder(results, spec))
    return files is not None and files.summary["status"] == "completed"


def repeat(spec: RunSpec, *, results: Path, cache: Path, weights: Path, device: str) -> Different:
    """Train a finished run again, elsewhere, and compare everything but times and memory.

    It trains with as many processes as it did, all on this machine, and in physical batches of the
    size that it had in the end: others would add up in another order.

    Args:
        spec: the run as a study plans it; its tuned settings are those that the result has.
        results: the results folder, of which nothing is changed.
        cache, weights, device: as for `run_job`.

    Returns:
        What differs: the number before and now, by its name and evaluation step, and with them the
        processor, if it is another one. Of a result of another run than the planned one, that
        alone.
    """
    folder = run_folder(results, spec)
    before, made = read_run(folder), read_spec(folder / "spec.yaml")
    assert before is not None
    recorded = json.loads(json.dumps(to_mapping(made)))
    if made.hash != spec.hash or before.summary["spec"] != recorded:
        return {"the run, by its spec": (made.hash, spec.hash)}
    key = None if made.budget is None else made.budget.key
    calibration = read_calibration(results / "calibration" / f"{key}.json") if key else None
    with tempfile.TemporaryDirectory() as name:
        elsewhere = Path(name)
        run_job(
            made,
            calibration,
            results=elsewhere,
            cache=cache,
            weights=weights,
            device=device,
            processes=before.summary["hardware"].get("processes", 1),
            physical_batch_size=before.summary.get("physical_batch_size"),
        )
        after = read_run(run_folder(elsewhere, made))
    assert after is not None
    pairs = {
        f"{column} at step {row['step']}": (str(row[column]), str(again[column]))
        for row, again in zip(before.metrics, after.metrics, strict=True)
        for column in row
        if column not in MEASURED
    }
    first, second = before.summary["final"], after.summary["final"]
    pairs |= {f"final {name}": (str(first.get(name)), str(second.get(name))) for name in first}
    pairs["model"] = (str(before.summary.get("model")), str(after.summary.get("model")))
    pairs |= {
        name: (str(before.summary.get(name)), str(after.summary.get(name)))
        for name in ("confusion", "correct")
    }
    stated, due = before.summary["privacy"], after.summary["privacy"]
    pairs |= {
        f"privacy {name}": (str(stated[name]), str(due.get(name)))
        for name in stated
        if name != "profile"  # which follows from σ, and older results have none
    }
    different: Different = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return with_processors(different, *(one.summary["hardware"]["cpu"] for one in (before, after)))


def with_processors(different: Different, before: object, now: object) -> Different:
    """Return what differs, with the processors if they differ, too: they may round otherwise."""
    return different | {PROCESSOR: (before, now)} if different and before != now else different
