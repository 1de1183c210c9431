"""The store: its address, experiments and locks, and the stamp that says whether it answers."""

from __future__ import annotations

import getpass
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from clipnoise.errors import reason
from clipnoise.files import UNFINISHED, locked, read_json, write_json
from clipnoise.tracking.view import MEANS, Membership, description, means_of, saved_view

LOCKS = ".mlflow-locks"
OFF = "tracking is off"
OURS = "clipnoise"  # tag of the experiments that this suite created
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # the address may hold credentials
}


class StoreError(Exception):
    """The MLflow store does not answer, or refuses. The message never holds credentials."""


# Seconds that one HTTP call to a tracking server may take, and how often it is retried.
IN_JOB = (4, 0)
IN_SYNC = (30, 2)
IN_START = (10, 0)  # before the first job; `sync` tries again at the end


VARIES: dict[str, Any] = {"available": False, "reason": None, "experiments": {}}  # of a stamp


@dataclass(frozen=True)
class Stamp:
    """The state of the store as the first job found it, for the jobs after it."""

    uri: str  # the store's address, without credentials
    available: bool  # whether it answered
    reason: str | None = None  # why not
    experiments: Mapping[str, str] = field(default_factory=dict)  # name → id
    runs: Mapping[str, Membership] = field(default_factory=dict)  # by spec hash
    owner: str = ""  # the results folder that the runs belong to, as all its jobs name it


def owner_of(results: Path, stamp: Stamp | None) -> str:
    """Return what tells the runs of a results folder apart from those of another, on one server.

    It is noted in the stamp, so that jobs on other machines, and the folder after it has been
    moved, go by the same name.
    """
    if stamp is not None and stamp.owner:
        return stamp.owner
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):  # an account without a name
        user = str(os.getuid())
    return f"{user}@{platform.node()}:{results.resolve()}"


def init_store(
    results: Path,
    experiments: Mapping[str, str],
    *,
    runs: Mapping[str, Membership] | None = None,
    tracking: bool = True,
) -> Stamp:
    """Create the database and the experiments, once, before any job opens the store.

    The migrations of a new SQLite file break when several processes open it at once, so one job
    does this first. Doing it again changes nothing, and takes no time where the stamp says that
    everything is there. A store that does not answer is no failure: the stamp records it, the jobs
    leave MLflow alone, and `sync` adds their runs later.

    Args:
        results: the results folder, to which the stamp is written as `mlflow.json`.
        experiments: experiment name → description.
        runs: the studies that plan each run, by spec hash.
        tracking: False writes a stamp that keeps every job away from MLflow.
    """
    address = tracking_uri(results)
    before = read_stamp(results)
    stamp = Stamp(
        redacted(address),
        available=False,
        reason=OFF,
        runs=runs or {},
        owner=owner_of(results, before),
    )
    if before is not None and replace(before, **VARIES) == replace(stamp, **VARIES):
        made = not missing_database(address)
        ready = before.available and made and set(experiments) <= set(before.experiments)
        if ready if tracking else not before.available:
            return before
    if tracking:
        try:
            _, ids = open_store(results, experiments, IN_START)
            stamp = replace(stamp, available=True, reason=None, experiments=ids)
        except StoreError as error:
            stamp = replace(stamp, reason=str(error))
    write_json(stamp_path(results), asdict(stamp))
    return stamp


def database_file(uri: str) -> Path | None:
    """Return the file of an SQLite database, by the store's address; None for a server."""
    name = uri.removeprefix("sqlite:///").partition("?")[0]
    return Path(name) if uri.startswith("sqlite:///") and name else None


def missing_database(uri: str) -> bool:
    """Return whether the store is an SQLite database that is not there (any more)."""
    file = database_file(uri)
    return file is not None and not file.exists()


def read_stamp(results: Path) -> Stamp | None:
    """Read the stamp; None where no job has written one, or it is damaged."""
    try:
        values = read_json(stamp_path(results))
        runs = {
            run_hash: Membership(**{**fields, "studies": tuple(fields["studies"])})
            for run_hash, fields in values.pop("runs").items()
        }
        return Stamp(**values, runs=runs)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def tracking_fault(outcome: Path, results: Path) -> str | None:
    """Return why the store does not show a study that was tracked; None where it does.

    Args:
        outcome: the file in which `clipnoise mlflow-sync` noted what it did for the study.
        results: the results folder.
    """
    try:
        said = read_json(outcome)
        error, store = said["error"], said.get("store")
    except FileNotFoundError:
        return None  # it has not been tracked yet
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return f"{outcome} is damaged"
    address = tracking_uri(results)
    if error is None and store == redacted(address) and missing_database(address):
        return f"{database_file(address)} is not there any more"
    return None if error is None else str(error)


def stamp_path(results: Path) -> Path:
    """Return the path of the stamp."""
    return results / "mlflow.json"


def open_store(
    results: Path, experiments: Mapping[str, str], patience: tuple[int, int] = IN_SYNC
) -> tuple[Any, dict[str, str]]:
    """Connect to the store, patiently, creating what is missing, one process at a time.

    Args:
        results: the results folder.
        experiments: a study's experiment → description; that of its means is created with it.
        patience: seconds for one call, and how often it is retried.

    Returns:
        The MLflow client, and experiment name → id.

    Raises:
        StoreError: the store does not answer or refuses.
    """
    address = tracking_uri(results)
    with lock(results, "store"), store_errors(address):
        client = connect(address, *patience)
        ids: dict[str, str] = {}
        for name, text in experiments.items():
            ids |= _of_study(client, name, text, results)
        known_experiments(client)  # with nothing to create, the first call to the store
    return client, ids


def connect(uri: str, seconds: int, retries: int) -> Any:
    """Import MLflow and return a client. Settings apply to this process; the user's own prevail."""
    settings = {
        **QUIET,
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(seconds),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(retries),
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": str(seconds),
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking.client import MlflowClient

    if missing_database(uri):
        _make_database(uri)
    return MlflowClient(tracking_uri=uri)


def _make_database(uri: str) -> None:
    """Make a database under another name and rename it, one process at a time.

    MLflow makes it in dozens of migrations. One that is killed in between leaves a database with
    which MLflow can do nothing more.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    file = database_file(uri)
    assert file is not None
    unfinished = file.with_name(f".{file.name}{UNFINISHED}")
    with locked(file.parent / LOCKS / "database.lock"):
        if file.exists():  # another process was faster
            return
        for left in file.parent.glob(f"{unfinished.name}*"):  # the journal, too
            left.unlink()
        # SQLite itself would let only its owner write it, whatever the umask.
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL, 0o666))
        # The place of the unused default experiment; MLflow would quote that of this folder badly.
        SqlAlchemyStore(f"sqlite:///{unfinished}", "mlflow-artifacts:/")  # type: ignore[no-untyped-call]
        unfinished.rename(file)


def _of_study(client: Any, name: str, text: str, results: Path) -> dict[str, str]:
    """Return name → id of a study's two experiments, whose descriptions link to both."""
    ids = {one: experiment(client, one, results) for one in (name, means_of(name))}
    note = description(text, dict(zip(("runs, best first", MEANS), ids.values(), strict=True)))
    for identity in ids.values():
        _set_tags(client, client.get_experiment(identity), {"mlflow.note.content": note})
    return ids


def experiment(client: Any, name: str, results: Path) -> str:
    """Return the id of an experiment, creating it, or restoring it if it was deleted."""
    existing = client.get_experiment_by_name(name)
    if existing is None:
        existing = _create(client, name, results)
    if existing.lifecycle_stage == "deleted":
        client.restore_experiment(existing.experiment_id)
    _set_tags(client, existing, saved_view(name))
    return str(existing.experiment_id)


def _set_tags(client: Any, existing: Any, wanted: Mapping[str, str]) -> None:
    for tag, value in wanted.items():
        if existing.tags.get(tag) != value:
            client.set_experiment_tag(existing.experiment_id, tag, value)


def _create(client: Any, name: str, results: Path) -> Any:
    from mlflow.exceptions import MlflowException

    # A server has its own place for artefacts; a database needs a folder beside it.
    scheme = urlsplit(tracking_uri(results)).scheme
    database = scheme.split("+")[0] in ("sqlite", "postgresql", "mysql", "mssql")
    folder = (results.resolve() / "mlflow-artifacts" / name).as_uri() if database else None
    tags = {
        OURS: "yes",
        "mlflow.experimentKind": "custom_model_development",  # or the UI asks what kind it is
    }
    try:
        client.create_experiment(name, artifact_location=folder, tags=tags)
    except MlflowException:
        if client.get_experiment_by_name(name) is None:  # otherwise another process was faster
            raise
    return client.get_experiment_by_name(name)


def our_experiments(client: Any) -> list[Any]:
    """Return all experiments of this suite in the store."""
    found = client.search_experiments(filter_string=f"tags.{OURS} = 'yes'", max_results=1000)
    return list(found)


def known_experiments(client: Any) -> list[str]:
    """Return the ids of all experiments of this suite in the store."""
    return [item.experiment_id for item in our_experiments(client)]


def tracking_uri(results: Path) -> str:
    """Return the store's address: MLFLOW_TRACKING_URI, or the database in the results folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{results.resolve() / 'mlflow.db'}"


def redacted(uri: str) -> str:
    """Return an address without user, password and query, safe for a log or a file."""
    scheme, separator, rest = uri.partition("://")
    account, place = _account(rest)
    if "?" in account:  # either in a password, or the @ is in the query: hide everything
        return f"{scheme}{separator}…"
    return f"{scheme}{separator}{place.partition('?')[0]}"


def _account(rest: str) -> tuple[str, str]:
    """Split what follows :// at the last @: a password may contain / and @; a path has none."""
    if rest.startswith("/"):
        return "", rest
    account, _, place = rest.rpartition("@")
    return account, place


@contextmanager
def store_errors(uri: str) -> Iterator[None]:
    """Turn any error in the `with` block into a StoreError without credentials."""
    try:
        yield
    except Exception as error:
        raise StoreError(f"MLflow store {redacted(uri)}: {explain(error, uri)}") from None


def explain(error: BaseException, uri: str) -> str:
    """Return the first line of an error, without the address's user, password and query."""
    text = reason(error).replace(uri, redacted(uri))
    for secret in _secrets(uri):
        text = text.replace(secret, "***")
    return text


def _secrets(uri: str) -> Iterable[str]:
    rest = uri.partition("://")[2]
    account = _account(rest)[0]
    user, _, password = account.partition(":")
    written = [account, password, user, rest.partition("?")[2]]
    secrets = {secret for text in written if text for secret in (text, unquote(text))}
    return sorted(secrets, key=len, reverse=True)


def lock(results: Path, name: str, *, seconds: float = -1) -> AbstractContextManager[None]:
    """Return a lock of a run's hash, or of `store`, between processes that share a results folder.

    `files.locked` says how long it waits.
    """
    return locked(results / LOCKS / f"{name}.lock", seconds=seconds)
