"""Live: a run in MLflow while it trains, from a thread that training never waits for."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    run = LiveRun(
        results=results, spec=spec, mode=mode, uri=tracking_uri(results, uri), patience=patience
    )
    if mode in ("live", "after"):
        stamp, address = read_stamp(results), redacted(run.uri)
        if stamp is not None and stamp.available and stamp.uri == address:
            run.membership = stamp.runs.get(spec.hash, run.membership)
            run.experiment_id = stamp.experiments.get(run.membership.study)
            return run
        run.mode = "off"
        if stamp is None:
            reason = "the store was not initialised; run `clipnoise mlflow-init` first"
        else:
            other = f"the store is {address}, but {stamp.uri} was initialised"
            reason = other if stamp.available else str(stamp.reason)
        logger.warning("Run %s is not logged to MLflow: %s.", spec.hash, reason)
    return run


@dataclass(kw_only=True)
class LiveRun:
    """A run's view in MLflow while the run lasts, as a context manager. Made by `open_run`.

    Nothing here raises because of MLflow, and only the end of the block waits for it.

    Attributes:
        results, spec, mode, uri, patience: as in `open_run`.
        membership: the studies that plan the run.
        experiment_id: of the home study, where the stamp knows it.
        complete: after the block, whether the store shows the finished run; if not, `sync` will
            bring it up to date.
    """

    results: Path
    spec: RunSpec
    mode: Mode
    uri: str = field(repr=False)  # may hold a password
    patience: float
    membership: Membership = field(default_factory=Membership)
    experiment_id: str | None = None
    complete: bool = False

    def __post_init__(self) -> None:
        """Prepare what the thread shares with its caller."""
        self._queue: queue.SimpleQueue[list[Point] | End] = queue.SimpleQueue()
        self._imported = threading.Event()
        self._failure: str | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LiveRun:
        if self.mode == "live":
            self._launch()
        return self

    def log(self, row: Mapping[str, Any]) -> None:
        """Hand over one evaluation; returns at once.

        Args:
            row: column of metrics.csv → value.
        """
        if self._thread is not None:
            self._queue.put(points(row, _now()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish from the result files, which the caller has written; waits a bounded time."""
        if self.mode == "after" and kind is None:
            self._launch()
        if self._thread is None:
            return
        self._queue.put("done" if kind is None else "interrupted")
        # The import is waited for longer: it takes the same time however slow the store is.
        self._imported.wait(IMPORT_SECONDS)
        self._thread.join(self.patience)
        if self._thread.is_alive():
            self._failure = f"{redacted(self.uri)} is slow"
        if self._failure:
            logger.warning(
                "MLflow does not show all of run %s: %s. `clipnoise mlflow-sync` adds the rest.",
                self.spec.hash,
                self._failure,
            )
        self.complete = kind is None and self._failure is None

    def _launch(self) -> None:
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        """Write every state of the run into the store, in the thread."""
        try:
            client = connect(self.uri, IN_JOB)
            self._imported.set()
            with lock(self.results, self.spec.hash, seconds=self.patience):
                writer = RunWriter(client, self.experiment_id or self._experiment(client))
                if self.mode == "after" or self._follow(writer) == "done":
                    folder = run_folder(self.results, self.spec)
                    writer.write(finished_view(folder, self.membership))
        except Exception as error:  # the result files are enough, whatever MLflow does
            self._failure = explain(error, self.uri)
        finally:
            self._imported.set()

    def _experiment(self, client: Any) -> str:
        # MLflow reads an experiment's tags before it writes them: two jobs at once would clash.
        with lock(self.results, "store", seconds=self.patience):
            return experiment(client, self.membership.study, self.results, self.uri)

    def _follow(self, writer: RunWriter) -> End:
        """Write the run's state at its start and after evaluations; return how it ended."""
        spec = self.spec
        view = planned_view(to_mapping(spec), spec.hash, self.membership, _now())
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
