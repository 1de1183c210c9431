"""Progress: the evaluations of a run while it trains, in a file of its folder.

The first line says which run it is, each further one is an evaluation. The file is deleted when the
run has its result files; one that is left belongs to a run that was stopped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from clipnoise.errors import UserError, reason
from clipnoise.files import finite, is_locked, read_text
from clipnoise.run.outcome import Metrics
from clipnoise.run.spec import RunSpec, to_mapping

PROGRESS, LOCK = "progress.jsonl", ".lock"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunProgress:
    """A run without result files, as its progress shows it.

    Attributes:
        hash, spec: which run it is, as in its summary.
        started: when its process began to train, as in its summary.
        metrics: one mapping of column to number per evaluation; None where there is no number.
    """

    hash: str
    spec: Mapping[str, Any]
    started: str
    metrics: list[Mapping[str, Any]]


def start_progress(folder: Path, spec: RunSpec, started: datetime) -> None:
    """Begin the file of a run that starts or resumes, in place of what is there."""
    head = {"hash": spec.hash, "spec": to_mapping(spec), "started": started.isoformat()}
    with _unshown():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROGRESS).unlink(missing_ok=True)  # whatever it is
        _append(folder, head)


def note_progress(folder: Path, metrics: Metrics) -> None:
    """Add an evaluation."""
    with _unshown():
        _append(folder, metrics.row())


def end_progress(folder: Path) -> None:
    """Delete the file of a run that has its result files."""
    with suppress(OSError):
        (folder / PROGRESS).unlink(missing_ok=True)


def _append(folder: Path, values: Mapping[str, object]) -> None:
    with (folder / PROGRESS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(finite(values)) + "\n")


@contextmanager
def _unshown() -> Iterator[None]:
    """Go on training where the file cannot be written: it is worth no run."""
    try:
        yield
    except OSError as error:
        logger.warning("the run cannot be shown while it trains (%s)", error)


def is_training(folder: Path) -> bool:
    """Return whether a job trains the run of a folder now."""
    return (folder / PROGRESS).exists() and is_locked(folder / LOCK)


def read_progress(folder: Path) -> RunProgress | None:
    """Return what the file of a run holds; None where it is missing or its first line not whole.

    Raises:
        UserError: it is damaged; the message names it.
    """
    path = folder / PROGRESS
    try:
        *lines, _ = read_text(path).split("\n")  # the last is empty, or being written
        values = [json.loads(line) for line in lines]
        return RunProgress(**values[0], metrics=values[1:]) if values else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({reason(error)}). It may be deleted.") from None
