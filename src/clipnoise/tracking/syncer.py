"""The syncer: the one writer of the store, which it brings to the state of the files.

MLflow can add points to a run but not remove them. A run whose content changed is therefore
deleted (MLflow keeps it under "Deleted") and written again: the old one goes first, so that there
are never two active ones. A run that trains is continued. A crash at any moment leaves a run
without a digest, or with that of what it showed before, and the next sync writes the rest: MLflow
takes a point twice as once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from clipnoise.data.measures import ACCURACY
from clipnoise.errors import UserError
from clipnoise.run.progress import PROGRESS, is_training
from clipnoise.run.results import SUMMARY
from clipnoise.tracking.store import (
    Notes,
    all_pages,
    connect,
    experiment,
    lock,
    missing_database,
    note,
    notes_path,
    our_experiments,
    redacted,
    set_aside_if_moved,
    store_errors,
    tracking_uri,
)
from clipnoise.tracking.view import (
    UNPLANNED,
    Membership,
    View,
    means_of,
    rows_shown,
    run_view,
    study_of,
)

Change = Literal["added", "continued", "completed", "replaced", "retagged", "unchanged"]

OWNER = "results"  # the tag that names the results folder of a run
METRICS_PER_CALL, PARAMS_PER_CALL = 900, 100  # MLflow takes a thousand of all kinds in a call
MOST_SEARCHES = 50  # so many runs are looked up one by one


@dataclass
class SyncReport:
    """What a sync did: how many runs were what, and of which ones the files are damaged."""

    store: str  # the store's address, without credentials
    added: int = 0  # the store did not show them
    continued: int = 0  # they have got further, or were stopped
    completed: int = 0  # the store showed them while they trained
    replaced: int = 0  # their content differed, or a writer had left them unfinished
    retagged: int = 0  # only name or tags changed, because the studies did
    unchanged: int = 0
    means: int = 0  # means of settings, written or removed
    damaged: list[str] = field(default_factory=list)  # a message each, which names the file


@dataclass(frozen=True)
class MeansTable:
    """The means of a study, as runs of an experiment of their own.

    Attributes:
        experiment: that of the study's runs.
        files: what they are made from; they are made again when one of them has changed.
        views: makes them; raises a UserError where a file is damaged.
    """

    experiment: str
    files: Sequence[Path]
    views: Callable[[], Sequence[View]]


def sync(
    results: Path,
    *,
    only: Collection[str] | None = None,
    tables: Iterable[MeansTable] = (),
    seen: dict[str | Path, object] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SyncReport:
    """Make the store show every run once, as in its files, and the means of studies.

    Of two processes that do this for one results folder the second waits.

    Args:
        results: the results folder, which notes the studies that plan each run.
        only: spec hashes to look at; None takes every run in the results folder.
        tables: the means that experiments are to show of this folder, and no others.
        seen: the state of the files at an earlier call with the same mapping: only what has changed
            since is looked at, and the store is asked only if something has.
        progress: called with the number of runs done and the number of runs in all.

    Raises:
        StoreError: the store does not answer; nothing is lost, a later sync resumes there.
        UserError: the results folder cannot be written.
    """
    seen = {} if seen is None else seen
    address = tracking_uri(results)
    report = SyncReport(store=redacted(address))
    notes, known = note(results), notes_path(results)
    if missing_database(address) or seen.get(known) != _state(known):
        seen.clear()
    first, seen[known] = not seen, _state(known)
    runs = {folder: state for folder, state in _runs(results, only) if seen.get(folder) != state}
    made = [(table, [_state(path) for path in table.files]) for table in tables]
    made = [(table, state) for table, state in made if seen.get(table.experiment) != state]
    if not (first or runs or made):
        return report
    with store_errors(address), lock(results):
        set_aside_if_moved(results)
        store = _Store(results, notes)
        shown = store.shown([folder.name for folder in runs])
        for done, (folder, state) in enumerate(runs.items(), start=1):
            _sync_run(store, folder, shown.get(folder.name, []), report)
            seen[folder] = state
            if progress is not None:
                progress(done, len(runs))
        for table, states in made:
            _sync_means(store, table, report)
            seen[table.experiment] = states
    return report


def _sync_run(store: _Store, folder: Path, present: Sequence[Any], report: SyncReport) -> None:
    """Show the run of a folder, and count what that took; `present` is what the store shows."""
    membership = store.notes.runs.get(folder.name) or _membership_in_store(present)
    try:
        view = _read(folder, membership, store.notes.warnings.get(membership.study, ""))
    except UserError as error:
        report.damaged.append(str(error))
        return
    if view is not None:
        change = store.show(view, present)
        setattr(report, change, getattr(report, change) + 1)


def _sync_means(store: _Store, table: MeansTable, report: SyncReport) -> None:
    """Show the means of a study and no others, and count those that changed."""
    try:
        views = table.views()
    except UserError as error:
        report.damaged.append(str(error))
        return
    shown = store.means(table.experiment)
    for view in views:
        change = store.show(view, shown.pop(view.tags["hash"], []))
        report.means += change in ("added", "replaced")
    for run in (run for present in shown.values() for run in present):
        store.client.delete_run(run.info.run_id)
        report.means += 1


def _state(path: Path) -> object:
    """Return what changes when a file does; None of one that is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _runs(results: Path, only: Collection[str] | None) -> Iterator[tuple[Path, object]]:
    """Yield the folders of runs with something to show, in order, and the state of their files."""
    for name, folders, files in os.walk(results / "runs"):
        folders.sort()
        folder = Path(name)
        if (only is None or folder.name in only) and not {SUMMARY, PROGRESS}.isdisjoint(files):
            states = _state(folder / SUMMARY), _state(folder / PROGRESS)
            yield folder, (*states, PROGRESS in files and is_training(folder))


def _read(folder: Path, membership: Membership, warning: str) -> View | None:
    """Return the view of a run; None if its files have just gone.

    Raises:
        UserError: a file is damaged; the message names it.
    """
    try:
        return run_view(folder, membership, warning)
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        name = SUMMARY if (folder / SUMMARY).exists() else PROGRESS
        raise UserError(f"{folder / name}: damaged result file ({error!r}).") from None


class _Store:
    """The store, for the one process that holds the lock of a results folder.

    Args:
        results: the results folder.
        notes: what the folder notes.
    """

    def __init__(self, results: Path, notes: Notes) -> None:
        self.client = connect(results)
        self.notes = notes
        self._results, self._owner = results, notes.owner
        self._ids: dict[str, str] = {}

    def shown(self, hashes: Sequence[str]) -> dict[str, list[Any]]:
        """Return the active MLflow runs of this folder by spec hash; others may be among them."""
        places = {self.notes.runs.get(name, Membership()).study for name in hashes}
        for item in our_experiments(self.client, deleted=True):
            if item.name in places:  # its runs come back with it
                self.client.restore_experiment(item.experiment_id)
        known = [item.experiment_id for item in our_experiments(self.client)]
        if len(hashes) > MOST_SEARCHES:
            return self._by_hash(known, "tags.hash LIKE '%'")
        found = (self._by_hash(known, f"tags.hash = '{name}'") for name in hashes)
        return {name: runs for one in found for name, runs in one.items()}

    def means(self, name: str) -> dict[str, list[Any]]:
        """Return the active means of this folder that belong to an experiment, by hash."""
        self._id(name)  # that of the runs is described and linked even if it is empty
        return self._by_hash([self._id(means_of(name))], "tags.hash LIKE '%'")

    def _by_hash(self, experiments: Sequence[str], condition: str) -> dict[str, list[Any]]:
        search = self.client.search_runs
        runs = all_pages(
            lambda token: search(list(experiments), condition, max_results=1000, page_token=token)
        )
        found: dict[str, list[Any]] = {}
        for run in runs if experiments else []:
            if run.data.tags.get(OWNER, self._owner) == self._owner:  # older runs have no owner
                found.setdefault(run.data.tags["hash"], []).append(run)
        return found

    def show(self, view: View, present: Sequence[Any]) -> Change:
        """Bring one run to the state of its view, given its active runs in the store.

        The digest is written last, so a run with a digest is as whole as that says.
        """
        view = replace(view, tags={**view.tags, OWNER: self._owner})
        place = self._id(view.experiment)
        run = present[0] if len(present) == 1 and present[0].info.experiment_id == place else None
        digest = "" if run is None else run.data.tags.get("digest", "")
        if run is not None and digest == view.digest:
            return "retagged" if self._retag(run, view) else "unchanged"
        shown = rows_shown(digest, view)
        if run is None or shown is None:
            self._write(self._create(place, view, present), view, view.rows, view.params)
            return "replaced" if present else "added"
        self._retag(run, view)
        if run.info.status != view.status == "RUNNING":
            self.client.update_run(run.info.run_id, status="RUNNING")
        self._write(run.info.run_id, view, view.rows[shown:], {})
        return "continued" if view.finished is None else "completed"

    def _id(self, name: str) -> str:
        if name not in self._ids:
            text, study = self.notes.descriptions.get(name), study_of(name)
            ranked_by = self.notes.ranked_by.get(study, ACCURACY)
            self._ids[name] = experiment(self.client, name, self._results, text, ranked_by)
        return self._ids[name]

    def _create(self, place: str, view: View, present: Iterable[Any]) -> str:
        """Create a run in place of those that are there, and return its id."""
        for run in present:
            self.client.delete_run(run.info.run_id)
        created = self.client.create_run(
            place, start_time=view.started, tags=view.tags, run_name=view.name
        )
        return str(created.info.run_id)

    def _write(
        self,
        run_id: str,
        view: View,
        rows: Iterable[Sequence[tuple[Any, ...]]],
        params: Mapping[str, str],
    ) -> None:
        """Write rows and params of a view, and whatever it has besides, in few calls."""
        self._log(run_id, [*(point for row in rows for point in row), *view.finals], params)
        for path in view.artefacts:
            self.client.log_artifact(run_id, str(path))
        if view.status != "RUNNING":
            self.client.set_terminated(run_id, view.status, view.finished)
        self._set_tags(run_id, {"digest": view.digest})

    def _log(
        self, run_id: str, points: Sequence[tuple[Any, ...]], params: Mapping[str, str]
    ) -> None:
        from mlflow.entities import Metric, Param

        metrics = [Metric(*point) for point in points]
        values = [Param(*item) for item in params.items()]
        while metrics or values:
            some, metrics = metrics[:METRICS_PER_CALL], metrics[METRICS_PER_CALL:]
            others, values = values[:PARAMS_PER_CALL], values[PARAMS_PER_CALL:]
            self.client.log_batch(run_id, metrics=some, params=others, synchronous=True)

    def _set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags in one call."""
        from mlflow.entities import RunTag

        self.client.log_batch(
            run_id, tags=[RunTag(*item) for item in tags.items()], synchronous=True
        )

    def _retag(self, run: Any, view: View) -> bool:
        """Bring a run's name and tags up to date; tell if any was not."""
        tags = run.data.tags
        changed = {name: value for name, value in view.tags.items() if tags.get(name) != value}
        left = [name for name in tags if name.startswith("study.") and name not in view.tags]
        renamed = run.info.run_name != view.name
        if changed:
            self._set_tags(run.info.run_id, changed)
        for name in left:
            self.client.delete_tag(run.info.run_id, name)
        if renamed:
            self.client.update_run(run.info.run_id, name=view.name)
        return bool(changed or left or renamed)


def _membership_in_store(present: Sequence[Any]) -> Membership:
    """Return the studies of a run by its tags, so that a run no study plans now keeps its place."""
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
