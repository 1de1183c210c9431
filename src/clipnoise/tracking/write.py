"""Writing: one run into the store, in few calls, so that a crash at any point can be repaired.

MLflow can add points to a run but not remove them. A run whose content changed is therefore
deleted (MLflow keeps it under "Deleted") and written anew: old first, so that there are never two
active ones. A crash in between leaves none, or one without a digest, and the next sync writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from clipnoise.tracking.store import known_experiments
from clipnoise.tracking.view import FinishedView, Point, View

T = TypeVar("T")

METRICS_PER_CALL = 1000
PARAMS_PER_CALL = 100


def active_runs(client: Any, experiments: Sequence[str], run_hash: str | None = None) -> list[Any]:
    """Return the active MLflow runs that this suite wrote.

    Args:
        client: the MLflow client.
        experiments: ids of the experiments to search.
        run_hash: only the runs of this spec; None for all.
    """
    if not experiments:
        return []
    text = f"tags.hash = '{run_hash}'" if run_hash else "tags.hash LIKE '%'"
    found: list[Any] = []
    token = None
    while True:
        page = client.search_runs(list(experiments), text, max_results=1000, page_token=token)
        found.extend(page)
        token = page.token
        if not token:
            return found


def begin(client: Any, experiment_id: str, view: View, started: int) -> str:
    """Delete what the store shows of a spec and create its run; the caller holds its lock.

    Args:
        client: the MLflow client.
        experiment_id: where it belongs.
        view: its name, tags and params.
        started: milliseconds since 1970.

    Returns:
        The id of the new MLflow run.
    """
    for run in active_runs(client, known_experiments(client), view.tags["hash"]):
        client.delete_run(run.info.run_id)
    created = client.create_run(
        experiment_id, start_time=started, tags=view.tags, run_name=view.name
    )
    run_id = str(created.info.run_id)
    log_params(client, run_id, view.params)
    return run_id


def complete(client: Any, run_id: str, view: FinishedView, curves: Iterable[Point]) -> None:
    """Add what is known only at the end, the digest last.

    Args:
        client: the MLflow client.
        run_id: the MLflow run.
        view: the finished run.
        curves: the points that the run does not show yet.
    """
    log_points(client, run_id, [*curves, *view.finals])
    for path in view.artefacts:
        client.log_artifact(run_id, str(path))
    set_tags(client, run_id, view.tags)
    client.set_terminated(run_id, view.status, view.finished)
    set_tags(client, run_id, {"digest": view.digest})


def replace(client: Any, experiment_id: str, view: FinishedView) -> None:
    """Write a finished run from its files alone; the caller holds its lock."""
    run_id = begin(client, experiment_id, view, view.started)
    complete(client, run_id, view, view.curves)


def retag(client: Any, run: Any, view: FinishedView) -> bool:
    """Bring a run's name and tags up to date where only its studies changed.

    Returns:
        Whether there was anything to do.
    """
    tags = run.data.tags
    changed = {name: value for name, value in view.tags.items() if tags.get(name) != value}
    left = [name for name in tags if name.startswith("study.") and name not in view.tags]
    if changed:
        set_tags(client, run.info.run_id, changed)
    for name in left:
        client.delete_tag(run.info.run_id, name)
    if run.info.run_name != view.name:
        client.update_run(run.info.run_id, name=view.name)
    return bool(changed or left or run.info.run_name != view.name)


def log_points(client: Any, run_id: str, points: Sequence[Point]) -> None:
    """Log points in as few calls as MLflow allows."""
    from mlflow.entities import Metric

    for batch in _batches(points, METRICS_PER_CALL):
        client.log_batch(run_id, metrics=[Metric(*point) for point in batch], synchronous=True)


def log_params(client: Any, run_id: str, params: Mapping[str, str]) -> None:
    """Log params in as few calls as MLflow allows."""
    from mlflow.entities import Param

    for batch in _batches(list(params.items()), PARAMS_PER_CALL):
        client.log_batch(run_id, params=[Param(*item) for item in batch], synchronous=True)


def set_tags(client: Any, run_id: str, tags: Mapping[str, str]) -> None:
    """Set tags in one call."""
    from mlflow.entities import RunTag

    client.log_batch(run_id, tags=[RunTag(*item) for item in tags.items()], synchronous=True)


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
