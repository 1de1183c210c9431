"""Live: a run in MLflow while it trains, from a thread that training never waits for."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from clipnoise.run.results import run_folder
from clipnoise.run.spec import to_mapping
from clipnoise.tracking.store import (
    IN_JOB,
    connect,
    experiment,
    explain,
    lock,
    owner_of,
    read_stamp,
    redacted,
    tracking_uri,
)
from clipnoise.tracking.view import Membership, Point, finished_view, planned_view, points
from clipnoise.tracking.write import RunWriter

if TYPE_CHECKING:
    from clipnoise.run.spec import RunSpec

Mode = Literal["live", "after", "sync", "off"]
End = Literal["done", "interrupted"]

IMPORT_SECONDS = 60.0  # importing MLflow takes one second, a minute where the disk is slow

logger = logging.getLogger(__name__)


class LiveRun:
    """A run's view in MLflow, for a `with` block around training and the writing of its files.

    No failure of MLflow reaches the caller, because the result files are enough for `sync`, and
    only the end of the block waits for it.

    Args:
        results: the results folder; its stamp, written by `init_store`, names the run's experiment
            and tells whether the store answers. Without a stamp the job leaves MLflow alone.
        mode: "live" logs during the run, "after" once at its end, "sync" and "off" not at all.
        patience: seconds that the end of the run waits for the store before it leaves the rest
            to `sync`.
    """

    def __init__(
        self, results: Path, spec: RunSpec, *, mode: Mode = "live", patience: float = 5.0
    ) -> None:
        self.complete = False  # after the block: the store shows the finished run
        self._results, self._spec, self._mode, self._patience = results, spec, mode, patience
        self._uri = tracking_uri(results)
        self._membership = Membership()
        self._experiment_id: str | None = None
        self._started = _now()
        self._owner = ""
        self._queue: queue.SimpleQueue[list[Point] | End] = queue.SimpleQueue()
        self._imported = threading.Event()
        self._failure: str | None = None
        self._thread: threading.Thread | None = None
        if mode in ("live", "after"):
            self._read_stamp()

    def _read_stamp(self) -> None:
        """Take the run's studies and experiment from the stamp, or leave MLflow alone."""
        stamp, address = read_stamp(self._results), redacted(self._uri)
        if stamp is None:
            reason = "the store was not initialised; run `clipnoise mlflow-init` first"
        elif not stamp.available:
            reason = str(stamp.reason)
        elif stamp.uri != address:
            reason = f"the store is {address}, but {stamp.uri} was initialised"
        else:
            self._owner = owner_of(self._results, stamp)
            self._membership = stamp.runs.get(self._spec.hash, self._membership)
            self._experiment_id = stamp.experiments.get(self._membership.study)
            return
        self._mode = "off"
        logger.warning("Run %s is not logged to MLflow: %s.", self._spec.hash, reason)

    def __enter__(self) -> LiveRun:
        if self._mode == "live":
            self._launch()
        return self

    def log(self, row: Mapping[str, Any]) -> None:
        """Hand over one evaluation, by column of metrics.csv; returns at once.

        A strict release tells no speed, so there every evaluation has the time of the start.
        """
        if self._thread is not None:
            self._queue.put(points(row, self._started if self._spec.strict else _now()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish from the result files, which the caller has written; waits a bounded time."""
        if self._mode == "after" and kind is None:
            self._launch()
        if self._thread is None:
            return
        self._queue.put("done" if kind is None else "interrupted")
        # The import is waited for longer: it takes the same time however slow the store is.
        self._imported.wait(IMPORT_SECONDS)
        self._thread.join(self._patience)
        if self._thread.is_alive():
            self._failure = f"{redacted(self._uri)} is slow"
        if self._failure:
            logger.warning(
                "MLflow does not show all of run %s: %s. `clipnoise mlflow-sync` adds the rest.",
                self._spec.hash,
                self._failure,
            )
        self.complete = kind is None and self._failure is None

    def _launch(self) -> None:
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        """Write every state of the run into the store, in the thread."""
        try:
            client = connect(self._uri, *IN_JOB)
            self._imported.set()
            with lock(self._results, self._spec.hash, seconds=self._patience):
                experiment_id = self._experiment_id or self._experiment(client)
                writer = RunWriter(client, experiment_id, self._owner)
                if self._mode == "after" or self._follow(writer) == "done":
                    folder = run_folder(self._results, self._spec)
                    writer.write(finished_view(folder, self._membership, verify=False))
        except Exception as error:  # the result files are enough, whatever MLflow does
            self._failure = explain(error, self._uri)
        finally:
            self._imported.set()

    def _experiment(self, client: Any) -> str:
        # MLflow reads an experiment's tags before it writes them: two jobs at once would clash.
        with lock(self._results, "store", seconds=self._patience):
            return experiment(client, self._membership.study, self._results)

    def _follow(self, writer: RunWriter) -> End:
        """Write the run's state at its start and after evaluations; return how it ended."""
        spec = self._spec
        view = planned_view(to_mapping(spec), spec.hash, self._membership, self._started)
        end: End | None = None
        while end is None:
            writer.write(view)
            items = [self._queue.get()]
            while not self._queue.empty():  # a slow store gets what has queued in one call
                items.append(self._queue.get())
            rows = [item for item in items if isinstance(item, list)]
            view = replace(view, rows=(*view.rows, *rows))
            end = next((item for item in items if not isinstance(item, list)), None)
        writer.write(view if end == "done" else replace(view, status="KILLED"))
        return end


def _now() -> int:
    return time.time_ns() // 1_000_000
