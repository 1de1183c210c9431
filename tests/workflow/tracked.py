"""Runs that train, and what an MLflow store shows, for tests of tracking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from recorded_runs import STARTED, record, rows

from clipnoise.files import locked
from clipnoise.run.outcome import Metrics
from clipnoise.run.progress import LOCK, end_progress, note_progress, start_progress
from clipnoise.run.results import run_folder
from clipnoise.run.spec import RunSpec
from clipnoise.tracking.store import all_pages, connect, our_experiments

STUDY = "study"


@contextmanager
def training(results: Path, run: RunSpec, *, offset: float = 0.0) -> Iterator[list[Metrics]]:
    """Do what a job does while it trains; yield its evaluations, none of which it has noted."""
    folder = run_folder(results, run)
    with locked(folder / LOCK):
        start_progress(folder, run, STARTED)
        yield [Metrics(**row) for row in rows(run, offset=offset)]


def note_some(results: Path, run: RunSpec, evaluations: list[Metrics]) -> None:
    """Note evaluations of a run that trains, without what a strict release withholds."""
    withheld: Mapping[str, Any] = {}
    if run.strict:
        names = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy")
        names += ("examples_per_second", "peak_memory_mb", "seconds")
        withheld = dict.fromkeys(names, float("nan"))
    for metrics in evaluations:
        note_progress(run_folder(results, run), replace(metrics, **withheld))


def finish(results: Path, run: RunSpec, *, offset: float = 0.0) -> None:
    """Do what a job does at its end."""
    end_progress(record(results, run, offset=offset))


def shown(results: Path) -> list[Any]:
    """Return the active runs of the store."""
    client = connect(results)
    known = [item.experiment_id for item in our_experiments(client)]
    return all_pages(lambda token: client.search_runs(known, page_token=token)) if known else []


def curve(results: Path, run: Any, metric: str = "test_accuracy") -> list[tuple[int, float]]:
    """Return step and value of each point of a metric that the store shows of a run."""
    history = connect(results).get_metric_history(run.info.run_id, metric)
    return [(point.step, point.value) for point in history]


def expected_curve(
    run: RunSpec, metric: str = "test_accuracy", *, offset: float = 0.0
) -> list[tuple[int, float]]:
    """Return what `curve` returns for a run that is shown whole."""
    return [(int(row["step"]), row[metric]) for row in rows(run, offset=offset)]


def counts(report: Any) -> dict[str, int]:
    return {k: v for k, v in vars(report).items() if isinstance(v, int) and v}
