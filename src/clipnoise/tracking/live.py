"""Live: a run in MLflow while it trains, from a thread that training never waits for."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from clipnoise.run.results import run_folder
from clipnoise.run.spec import to_mapping
from clipnoise.tracking import write
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
from clipnoise.tracking.view import (
    Membership,
    Point,
    View,
    finished_view,
    planned_view,
    points,
)

if TYPE_CHECKING:
    from clipnoise.run.spec import RunSpec

Mode = Literal["live", "after", "sync", "off"]

DONE, INTERRUPTED = "done", "interrupted"
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

    Nothing that happens to MLflow reaches the caller: the result files are enough for `sync`.

    Args:
        results: the results folder; its stamp, written by `init_store`, says where the run belongs
            and whether the store answers. Without a stamp the job leaves MLflow alone.
        spec: the run.
        mode: "live" logs during the run, "after" once at its end, "sync" and "off" leave it alone.
        uri: the store; None takes MLFLOW_TRACKING_URI or the database in the results folder.
        patience: seconds that the end of the run waits for the store before it leaves the rest
            to `sync`.
    """
    address = tracking_uri(results, uri)
    if mode in ("live", "after"):
        stamp = read_stamp(results)
        reason = None
        if stamp is None:
            reason = "the store was not initialised; run `clipnoise mlflow-init` first"
        elif not stamp.available:
            reason = stamp.reason
        elif stamp.uri != redacted(address):
            reason = f"the store is {redacted(address)}, but {stamp.uri} was initialised"
        if stamp is not None and reason is None:
            membership = stamp.runs.get(spec.hash, Membership())
            identity = stamp.experiments.get(membership.study)
            return LiveRun(results, spec, membership, mode, address, identity, patience)
        logger.warning("Run %s is not logged to MLflow: %s.", spec.hash, reason)
    return LiveRun(results, spec, Membership(), "off", address, None, patience)


class LiveRun:
    """A run's view in MLflow while the run lasts. Made by `open_run`.

    Nothing here raises because of MLflow, and nothing but `finish` waits for it.
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
        self._items: queue.SimpleQueue[tuple[int, Mapping[str, Any]] | str] = queue.SimpleQueue()
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
        self._end(DONE if kind is None else INTERRUPTED)

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
            self._items.put((_now(), dict(row)))

    def finish(self) -> bool:
        """Finish from the result files, which the caller has written; waits a bounded time.

        Returns:
            Whether the store now shows the run; if not, `sync` will bring it up to date.
        """
        return self._end(DONE)

    def _end(self, how: str) -> bool:
        if self._mode == "after" and how == DONE and self._thread is None:
            self._launch()
        if self._thread is None:
            return False
        self._items.put(how)
        self._imported.wait(IMPORT_SECONDS)  # it costs the same whatever the store does
        self._thread.join(self._patience)
        if self._thread.is_alive():
            self._failure = f"{redacted(self._uri)} is slow"
        if self._failure:
            logger.warning(
                "MLflow does not show all of run %s: %s. `clipnoise mlflow-sync` will mend it.",
                self._spec.hash,
                self._failure,
            )
        return self._failure is None

    def _launch(self) -> None:
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            client = connect(self._uri, IN_JOB)
            self._imported.set()
            with lock(self._results, self._spec.hash, seconds=self._patience):
                if self._experiment_id is None:
                    self._experiment_id = self._experiment(client)
                self._record(client, self._experiment_id)
        except Exception as error:  # the result files are enough, whatever MLflow does
            self._failure = explain(error, self._uri)
        finally:
            self._imported.set()

    def _experiment(self, client: Any) -> str:
        # MLflow reads an experiment's tags before it writes them: two jobs at once would clash.
        with lock(self._results, "store", seconds=self._patience):
            return experiment(client, self._membership.study, self._results, self._uri)

    def _record(self, client: Any, experiment_id: str) -> None:
        folder = run_folder(self._results, self._spec)
        if self._mode == "after":
            write.replace(client, experiment_id, finished_view(folder, self._membership))
            return
        run_id = write.begin(client, experiment_id, self._planned(), _now())
        rows, how = self._stream(client, run_id)
        if how == INTERRUPTED:
            client.set_terminated(run_id, "KILLED")
            return
        view = finished_view(folder, self._membership)
        if rows == view.rows:
            write.complete(client, run_id, view, ())
        else:
            write.replace(client, experiment_id, view)

    def _planned(self) -> View:
        return planned_view(to_mapping(self._spec), self._spec.hash, self._membership)

    def _stream(self, client: Any, run_id: str) -> tuple[int, str]:
        """Log whatever has queued, in one call each time; return the rows logged and the end."""
        rows = 0
        while True:
            items = [self._items.get()]
            while not self._items.empty():
                items.append(self._items.get())
            found: list[Point] = []
            for item in items:
                if isinstance(item, str):
                    write.log_points(client, run_id, found)
                    return rows, item
                moment, row = item
                found.extend(points(row, moment))
                rows += 1
            write.log_points(client, run_id, found)


def _now() -> int:
    return time.time_ns() // 1_000_000
