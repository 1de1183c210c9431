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


def open_run(
    results: Path,
    spec: RunSpec,
    *,
    mode: Mode = "live",
    uri: str | None = None,
    patience: float = 5.0,
) -> LiveRun:
    """Open a run's view in MLflow, for a `with` block around training and the writing of its files.

    No failure of MLflow reaches the caller: the result files are enough for `sync`.

    Args:
        results: the results folder; its stamp, written by `init_store`, names the run's experiment
            and tells whether the store answers. Without a stamp the job leaves MLflow alone.
        spec: the run.
        mode: "live" logs during the run, "after" once at its end, "sync" and "off" not at all.
        uri: the store; None takes MLFLOW_TRACKING_URI or the database in the results folder.
        patience: seconds that the end of the run waits for the store before it leaves the rest
            to `sync`.
    """
    address = tracking_uri(results, uri)
    stamp = None
    if mode in ("live", "after"):
        stamp, reason = read_stamp(results), None
        if stamp is None:
            reason = "the store was not initialised; run `clipnoise mlflow-init` first"
        elif not stamp.available:
            reason = stamp.reason
        elif stamp.uri != redacted(address):
            reason = f"the store is {redacted(address)}, but {stamp.uri} was initialised"
        if reason is not None:
            logger.warning("Run %s is not logged to MLflow: %s.", spec.hash, reason)
            mode = "off"
    membership = stamp.runs.get(spec.hash, Membership()) if stamp else Membership()
    identity = stamp.experiments.get(membership.study) if stamp else None
    return LiveRun(results, spec, membership, mode, address, identity, patience)


class LiveRun:
    """A run's view in MLflow while the run lasts. Made by `open_run`.

    Nothing here raises because of MLflow, and only `finish` waits for it.
    """

    def __init__(
        self,
        results: Path,
        spec: RunSpec,
        membership: Membership,
        mode: Mode,
        uri: str,
        experiment_id: str | None,
        patience: float,
    ) -> None:
        self._results = results
        self._spec = spec
        self._membership = membership
        self._mode = mode
        self._uri = uri
        self._experiment_id = experiment_id
        self._patience = patience
        self._queue: queue.SimpleQueue[list[Point] | End] = queue.SimpleQueue()
        self._imported = threading.Event()
        self._failure: str | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LiveRun:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end("done" if kind is None else "interrupted")

    def start(self) -> None:
        """Begin to log, in mode "live"."""
        if self._mode == "live":
            self._launch()

    def log(self, row: Mapping[str, Any]) -> None:
        """Hand over one evaluation; returns at once.

        Args:
            row: column of metrics.csv → value.
        """
        if self._thread is not None:
            self._queue.put(points(row, _now()))

    def finish(self) -> bool:
        """Finish from the result files, which the caller has written; waits a bounded time.

        Returns:
            Whether the store now shows the run; if not, `sync` will bring it up to date.
        """
        return self._end("done")

    def _launch(self) -> None:
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def _end(self, end: End) -> bool:
        if self._mode == "after" and end == "done" and self._thread is None:
            self._launch()
        if self._thread is None:
            return False
        self._queue.put(end)
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
        return self._failure is None

    def _work(self) -> None:
        """Write every state of the run into the store, in the thread."""
        try:
            client = connect(self._uri, IN_JOB)
            self._imported.set()
            with lock(self._results, self._spec.hash, seconds=self._patience):
                writer = RunWriter(client, self._experiment_id or self._experiment(client))
                if self._mode == "after" or self._follow(writer) == "done":
                    folder = run_folder(self._results, self._spec)
                    writer.write(finished_view(folder, self._membership))
        except Exception as error:  # the result files are enough, whatever MLflow does
            self._failure = explain(error, self._uri)
        finally:
            self._imported.set()

    def _experiment(self, client: Any) -> str:
        # MLflow reads an experiment's tags before it writes them: two jobs at once would clash.
        with lock(self._results, "store", seconds=self._patience):
            return experiment(client, self._membership.study, self._results, self._uri)

    def _follow(self, writer: RunWriter) -> End:
        """Write the run's state at its start and after evaluations; return how it ended."""
        spec = self._spec
        view = planned_view(to_mapping(spec), spec.hash, self._membership, _now())
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
