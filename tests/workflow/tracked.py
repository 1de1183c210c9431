"""Reading from, waiting for, and writing to an MLflow store, for tests of tracking."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from recorded_runs import record, rows

from clipnoise.tracking import LiveRun, write
from clipnoise.tracking.store import known_experiments, open_store

STUDY = "study"


def shown(results: Path) -> list[Any]:
    """Return the active runs of the store."""
    client, _ = open_store(results, {})
    return write.active_runs(client, known_experiments(client))


def wait_for_a_run(results: Path) -> None:
    """Wait until the store shows a run."""
    deadline = time.monotonic() + 60
    while not shown(results):
        assert time.monotonic() < deadline, "no run appeared"
        time.sleep(0.1)


def counts(report: Any) -> dict[str, int]:
    return {k: v for k, v in vars(report).items() if isinstance(v, int) and v}


def train(results: Path, run: Any, *, offset: float = 0.0, **options: Any) -> bool:
    """Do what a training job does around its LiveRun."""
    with LiveRun(results, run, **options) as live:
        for row in rows(run, offset=offset):
            live.log(row)
        record(results, run, offset=offset)
    return live.complete
