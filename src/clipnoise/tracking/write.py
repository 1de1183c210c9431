"""Writing: the state of one run into the store, and `sync`, which does so for all finished runs.

MLflow can add points to a run but not remove them. A run whose content changed is therefore
deleted (MLflow keeps it under "Deleted") and written again: the old one goes first, so that there
are never two active ones. A crash in between leaves none, or one without a digest, and the next
sync writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from clipnoise.errors import UserError
from clipnoise.files import LockedError
from clipnoise.tracking.store import (
    experiment,
    known_experiments,
    lock,
    open_store,
    owner_of,
    read_stamp,
    redacted,
    store_errors,
    tracking_uri,
)
from clipnoise.tracking.view import UNPLANNED, Membership, View, finished_view

Change = Literal["added", "replaced", "retagged", "unchanged", "busy"]

OWNER = "results"  # the tag that names the results folder of a run

METRICS_PER_CALL, PARAMS_PER_CALL = 900, 100  # MLflow takes a thousand of all kinds in a call


class RunWriter:
    """Brings one run in the store to the state of its view; the caller holds the run's lock.

    Args:
        client: of MLflow.
        experiment_id: where the run belongs.
        owner: the results folder that it belongs to, as `owner_of` names it.
    """

    def __init__(self, client: Any, experiment_id: str, owner: str) -> None:
        self._client = client
        self._experiment_id = experiment_id
        self._owner = owner
        self._run_id = ""
        self._shown: View | None = None  # what the store shows

    def write(self, view: View) -> None:
        """Write whatever the store does not show of a view yet, in few calls.

        The first view creates the run; each later one continues it. The digest is written last, so
        a run with a digest is whole.
        """
        view = _owned(view, self._owner)
        shown = self._shown
        # A run that resumed from a checkpoint has logged only part of what its files hold.
        if shown is None or (view.digest and len(shown.rows) != len(view.rows)):
            shown = self._create(view)
        new = [point for row in view.rows[len(shown.rows) :] for point in row]
        self._log([*new, *view.finals], [] if shown.params else list(view.params.items()))
        self._shown = view
        if view.status == "RUNNING":
            return
        for path in view.artefacts:
            self._client.log_artifact(self._run_id, str(path))
        if view.tags != shown.tags:
            set_tags(self._client, self._run_id, view.tags)
        if view.name != shown.name:  # what a run is called may follow from its result
            self._client.update_run(self._run_id, name=view.name)
        self._client.set_terminated(self._run_id, view.status, view.finished)
        if view.digest:
            set_tags(self._client, self._run_id, {"digest": view.digest})

    def _create(self, view: View) -> View:
        """Delete what the store shows of the spec, create its run, and return what that shows."""
        client = self._client
        present = active_runs(client, known_experiments(client), view.tags["hash"])
        for run in _of_owner(present, self._owner):
            client.delete_run(run.info.run_id)
        created = client.create_run(
            self._experiment_id, start_time=view.started, tags=view.tags, run_name=view.name
        )
        self._run_id = str(created.info.run_id)
        return replace(view, rows=(), params={})

    def _log(self, points: Sequence[tuple[Any, ...]], params: Sequence[tuple[str, str]]) -> None:
        from mlflow.entities import Metric, Param

        metrics, values = [Metric(*point) for point in points], [Param(*item) for item in params]
        while metrics or values:
            some, metrics = metrics[:METRICS_PER_CALL], metrics[METRICS_PER_CALL:]
            others, values = values[:PARAMS_PER_CALL], values[PARAMS_PER_CALL:]
            self._client.log_batch(self._run_id, metrics=some, params=others, synchronous=True)


def active_runs(client: Any, experiments: Sequence[str], run_hash: str | None = None) -> list[Any]:
    """Return the active MLflow runs that this suite wrote to experiments, or of one spec."""
    if not experiments:
        return []
    text = f"tags.hash = '{run_hash}'" if run_hash else "tags.hash LIKE '%'"
    runs: list[Any] = []
    token = None
    while True:
        page = client.search_runs(list(experiments), text, max_results=1000, page_token=token)
        runs.extend(page)
        token = page.token
        if not token:
            return runs


def _owned(view: View, owner: str) -> View:
    return replace(view, tags={**view.tags, OWNER: owner})


def _of_owner(runs: Iterable[Any], owner: str) -> list[Any]:
    """Return the runs of a results folder, and those that earlier versions wrote without a name."""
    return [run for run in runs if run.data.tags.get(OWNER, owner) == owner]


def set_tags(client: Any, run_id: str, tags: Mapping[str, str]) -> None:
    """Set tags in one call."""
    from mlflow.entities import RunTag

    client.log_batch(run_id, tags=[RunTag(*item) for item in tags.items()], synchronous=True)


@dataclass
class SyncReport:
    """What a sync did: how many runs were what, and of which ones the result files are damaged."""

    store: str  # the store's address, without credentials
    added: int = 0  # the store did not show them
    replaced: int = 0  # their content differed, or a writer had left them unfinished
    retagged: int = 0  # only name or tags changed, because the studies did
    unchanged: int = 0
    busy: int = 0  # another process is writing them now
    means: int = 0  # means of settings, written or removed
    damaged: list[str] = field(default_factory=list)  # a message each, which names the file


def sync(
    results: Path,
    *,
    runs: Mapping[str, Membership] | None = None,
    only: Collection[str] | None = None,
    descriptions: Mapping[str, str] | None = None,
    means: Mapping[str, Sequence[View]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SyncReport:
    """Make the store show every finished run once, as in its result files.

    Args:
        results: the results folder.
        runs: the studies that plan each run, by spec hash; None takes them from the stamp.
        only: spec hashes to look at; None takes every run in the results folder.
        descriptions: experiment name → description, of the experiments that must exist.
        means: experiment name → all that it is to show, for the means of studies.
        progress: called with the number of runs done and the number of runs in all.

    Raises:
        StoreError: the store does not answer; nothing is lost, a later sync resumes there.
    """
    stamp = read_stamp(results)
    memberships = {**(stamp.runs if stamp else {}), **(runs or {})}
    folders = [path.parent for path in sorted((results / "runs").rglob("summary.json"))]
    folders = [folder for folder in folders if only is None or folder.name in only]
    address, owner = tracking_uri(results), owner_of(results, stamp)
    client, ids = open_store(results, descriptions or {})
    report = SyncReport(store=redacted(address))
    with store_errors(address):
        shown: dict[str, list[Any]] = {}
        for run in _of_owner(active_runs(client, known_experiments(client)), owner):
            shown.setdefault(run.data.tags["hash"], []).append(run)
        for done, folder in enumerate(folders, start=1):
            present = shown.get(folder.name, [])
            membership = memberships.get(folder.name) or _membership_in_store(present)
            try:
                view = _owned(finished_view(folder, membership), owner)
            except UserError as error:
                report.damaged.append(str(error))
            except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
                message = f"{folder / 'summary.json'}: damaged result file ({error!r})."
                report.damaged.append(message)
            else:
                if view.experiment not in ids:
                    ids[view.experiment] = experiment(client, view.experiment, results)
                change = _update(results, client, ids[view.experiment], view, present, owner)
                setattr(report, change, getattr(report, change) + 1)
            if progress is not None:
                progress(done, len(folders))
        for name, views in (means or {}).items():
            place = experiment(client, name, results)
            report.means += _show_means(results, client, place, views, owner)
    return report


def _show_means(
    results: Path, client: Any, experiment_id: str, views: Sequence[View], owner: str
) -> int:
    """Make an experiment show these runs of an owner and no others; return how many changed."""
    changed = 0
    shown: dict[str, list[Any]] = {view.tags["hash"]: [] for view in views}
    for run in _of_owner(active_runs(client, [experiment_id]), owner):
        if (present := shown.get(run.data.tags["hash"])) is None:
            client.delete_run(run.info.run_id)
            changed += 1
        else:
            present.append(run)
    for view in (_owned(view, owner) for view in views):
        change = _update(results, client, experiment_id, view, shown[view.tags["hash"]], owner)
        changed += change in ("added", "replaced")
    return changed


def _membership_in_store(present: list[Any]) -> Membership:
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


def _update(
    results: Path, client: Any, experiment_id: str, view: View, present: list[Any], owner: str
) -> Change:
    """Bring one run up to date, given its active runs in the store."""
    if len(present) == 1:
        (run,) = present
        if (run.info.experiment_id, run.data.tags.get("digest")) == (experiment_id, view.digest):
            return "retagged" if _retag(client, run, view) else "unchanged"
    try:
        with lock(results, view.tags["hash"], seconds=0):
            RunWriter(client, experiment_id, owner).write(view)
    except LockedError:
        return "busy"
    return "replaced" if present else "added"


def _retag(client: Any, run: Any, view: View) -> bool:
    """Bring a run's name and tags up to date where only its studies changed; tell if any did."""
    tags = run.data.tags
    changed = {name: value for name, value in view.tags.items() if tags.get(name) != value}
    left = [name for name in tags if name.startswith("study.") and name not in view.tags]
    renamed = run.info.run_name != view.name
    if changed:
        set_tags(client, run.info.run_id, changed)
    for name in left:
        client.delete_tag(run.info.run_id, name)
    if renamed:
        client.update_run(run.info.run_id, name=view.name)
    return bool(changed or left or renamed)
