"""Sync: bring the store up to date from the result files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from clipnoise.errors import UserError
from clipnoise.tracking import write
from clipnoise.tracking.store import (
    experiment,
    known_experiments,
    lock,
    open_store,
    read_stamp,
    redacted,
    store_errors,
    tracking_uri,
)
from clipnoise.tracking.view import UNPLANNED, FinishedView, Membership, finished_view

Change = Literal["added", "replaced", "retagged", "unchanged", "busy"]


@dataclass
class SyncReport:
    """What a sync did.

    Attributes:
        store: the store's address, without credentials.
        added: runs that the store did not show.
        replaced: runs whose content differed, or that a writer had left unfinished.
        retagged: runs of which only name or tags changed, because the studies did.
        unchanged: runs with nothing to do.
        busy: runs that another process is writing now.
        damaged: one message per run whose result files cannot be read; it names the file.
    """

    store: str
    added: int = 0
    replaced: int = 0
    retagged: int = 0
    unchanged: int = 0
    busy: int = 0
    damaged: list[str] = field(default_factory=list)


def sync(
    results: Path,
    *,
    runs: Mapping[str, Membership] | None = None,
    only: Collection[str] | None = None,
    descriptions: Mapping[str, str] | None = None,
    uri: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SyncReport:
    """Make the store show every finished run once, as its result files say.

    Args:
        results: the results folder.
        runs: what the studies say about each run, by spec hash; None takes it from the stamp.
        only: spec hashes to look at; None takes every run in the results folder.
        descriptions: experiment name → description, of the experiments that must exist.
        uri: the store; None takes MLFLOW_TRACKING_URI or the database in the results folder.
        progress: called with the number of runs done and the number of runs in all.

    Returns:
        What was done.

    Raises:
        StoreError: the store does not answer; nothing is lost, a later sync goes on from there.
    """
    stamp = read_stamp(results)
    memberships = {**(stamp.runs if stamp else {}), **(runs or {})}
    folders = [path.parent for path in sorted((results / "runs").rglob("summary.json"))]
    folders = [folder for folder in folders if only is None or folder.name in only]
    address = tracking_uri(results, uri)
    client, ids = open_store(results, descriptions or {}, uri=address)
    report = SyncReport(store=redacted(address))
    with store_errors(address):
        shown = _by_hash(write.active_runs(client, known_experiments(client)))
        for done, folder in enumerate(folders, start=1):
            present = shown.get(folder.name, [])
            membership = memberships.get(folder.name) or _remembered(present)
            try:
                view = finished_view(folder, membership)
            except (UserError, KeyError, TypeError, ValueError, OSError) as error:
                report.damaged.append(_damage(folder, error))
            else:
                if view.experiment not in ids:
                    ids[view.experiment] = experiment(client, view.experiment, results, address)
                change = _bring(results, client, ids[view.experiment], view, present)
                setattr(report, change, getattr(report, change) + 1)
            if progress is not None:
                progress(done, len(folders))
    return report


def _remembered(present: list[Any]) -> Membership:
    """Return what the store says about a run that no study at hand plans, so that it stays put."""
    if not present:
        return Membership()
    tags = present[0].data.tags
    studies = (name.removeprefix("study.") for name in sorted(tags) if name.startswith("study."))
    return Membership(
        study=tags.get("study", UNPLANNED),
        studies=tuple(studies),
        label=tags.get("label") or None,
        panel=tags.get("panel") or None,
    )


def _bring(
    results: Path, client: Any, experiment_id: str, view: FinishedView, present: list[Any]
) -> Change:
    """Bring one run up to date, given its active runs in the store."""
    if len(present) == 1 and _shows(present[0], experiment_id, view):
        return "retagged" if write.retag(client, present[0], view) else "unchanged"
    try:
        with lock(results, view.tags["hash"], seconds=0):
            write.replace(client, experiment_id, view)
    except TimeoutError:
        return "busy"
    return "replaced" if present else "added"


def _shows(run: Any, experiment_id: str, view: FinishedView) -> bool:
    here = (run.info.experiment_id, run.data.tags.get("digest"))
    return here == (experiment_id, view.digest)


def _by_hash(runs: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for run in runs:
        found.setdefault(run.data.tags["hash"], []).append(run)
    return found


def _damage(folder: Path, error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    return f"{folder / 'summary.json'}: damaged result file ({error!r})."
