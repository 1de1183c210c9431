"""The store: its address and experiments, and what a results folder notes for it."""

from __future__ import annotations

import getpass
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from clipnoise.data.measures import ACCURACY
from clipnoise.errors import reason
from clipnoise.files import UNFINISHED, locked, read_json, write_json
from clipnoise.tracking.view import MEANS, Membership, description, means_of, saved_view

ARTEFACTS = "mlflow-artifacts"  # the folder beside the database
OURS = "clipnoise"  # tag of the experiments that this suite created
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # the address may hold credentials
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",  # seconds
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "30",
}


class StoreError(Exception):
    """The MLflow store does not answer, or refuses. The message never holds credentials."""


@dataclass(frozen=True)
class Notes:
    """What a results folder knows that its result files do not say; `mlflow.json` in the folder.

    Attributes:
        owner: tells its runs apart from those of another folder, on one server. It is the folder as
            it was called first, so that it may be moved, and on whatever machine it is read.
        runs: the studies that plan each run, by spec hash.
        descriptions: experiment name → the text that MLflow shows above its runs.
        ranked_by: experiment name → the metric by which its runs are compared.
        warnings: experiment name → the watermark of its report.
    """

    owner: str
    runs: Mapping[str, Membership] = field(default_factory=dict)
    descriptions: Mapping[str, str] = field(default_factory=dict)
    ranked_by: Mapping[str, str] = field(default_factory=dict)
    warnings: Mapping[str, str] = field(default_factory=dict)

    def with_more(
        self,
        runs: Mapping[str, Membership],
        descriptions: Mapping[str, str],
        ranked_by: Mapping[str, str],
        warnings: Mapping[str, str],
    ) -> Notes:
        """Return these notes with more beside them."""
        return Notes(
            self.owner,
            {**self.runs, **runs},
            {**self.descriptions, **descriptions},
            {**self.ranked_by, **ranked_by},
            {**self.warnings, **warnings},
        )


def read_notes(results: Path) -> Notes:
    """Read the notes of a results folder; start empty where there are none or they are damaged."""
    try:
        values = read_json(notes_path(results))
        runs = {
            run_hash: Membership(**{**fields, "studies": tuple(fields["studies"])})
            for run_hash, fields in values["runs"].items()
        }
        names = ("descriptions", "ranked_by", "warnings")  # earlier versions noted none
        more = (dict(values.get(name, {})) for name in names)
        return Notes(str(values.get("owner") or _owner(results)), runs, *more)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Notes(_owner(results))


def note(
    results: Path,
    runs: Mapping[str, Membership] | None = None,
    descriptions: Mapping[str, str] | None = None,
    ranked_by: Mapping[str, str] | None = None,
    warnings: Mapping[str, str] | None = None,
) -> Notes:
    """Add to what a results folder notes, and return all of it.

    Args:
        results: the results folder.
        runs: the studies that plan each run, by spec hash.
        descriptions: experiment name → the text that MLflow shows above its runs.
        ranked_by: experiment name → the metric by which its runs are compared.
        warnings: experiment name → the watermark of its report.

    Raises:
        UserError: the folder cannot be written.
    """
    added = (runs or {}, descriptions or {}, ranked_by or {}, warnings or {})
    before = read_notes(results)
    noted = before.with_more(*added)
    if noted == before and notes_path(results).exists():
        return noted
    with ExitStack() as held:
        with suppress(OSError):  # a file system without locks; writing says what else is wrong
            held.enter_context(locked(results / ".mlflow.json.lock"))
        noted = read_notes(results).with_more(*added)  # another process may have added to it
        write_json(notes_path(results), asdict(noted))
    return noted


def notes_path(results: Path) -> Path:
    """Return the path of what a results folder notes."""
    return results / "mlflow.json"


def _owner(results: Path) -> str:
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):  # an account without a name
        user = str(os.getuid())
    return f"{user}@{platform.node()}:{results.resolve()}"


def database_file(uri: str) -> Path | None:
    """Return the file of an SQLite database, by the store's address; None for a server."""
    name = uri.removeprefix("sqlite:///").partition("?")[0]
    return Path(name) if uri.startswith("sqlite:///") and name else None


def missing_database(uri: str) -> bool:
    """Return whether the store is an SQLite database that is not there (any more)."""
    file = database_file(uri)
    return file is not None and not file.exists()


def set_aside_if_moved(results: Path) -> None:
    """Put the database aside that came with a results folder which was moved or copied.

    It names the folder of artefacts by its old path, to which new ones would go. All that it holds
    is in the result files, from which a new one is made.
    """
    database = database_file(tracking_uri(results))
    if database is None or not database.is_file() or database.parent != results.resolve():
        return
    here = f"{(results.resolve() / ARTEFACTS).as_uri()}/"
    query = (
        "SELECT artifact_location FROM experiments JOIN experiment_tags USING (experiment_id) "
        "WHERE key = ? AND artifact_location LIKE 'file:%'"
    )
    with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as connection:
        places = [place for (place,) in connection.execute(query, (OURS,))]
        if any(not place.startswith(here) for place in places):
            aside = database.with_name(f"mlflow-moved-{time.time():.0f}.db")
            database.replace(aside)
            print(
                f"{database} was made where these results used to be. It is now {aside.name}, and "
                "a new one is made from the result files.",
                file=sys.stderr,
            )


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


def connect(results: Path) -> Any:
    """Import MLflow and return a client of the store, which is made if it is a missing database.

    Settings apply to this process; the user's own prevail.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking.client import MlflowClient

    address = tracking_uri(results)
    if missing_database(address):
        _make_database(address)
    return MlflowClient(tracking_uri=address)


def _make_database(uri: str) -> None:
    """Make a database under another name and rename it, one process at a time.

    MLflow makes it in dozens of migrations. One that is killed in between leaves a database with
    which MLflow can do nothing more.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    file = database_file(uri)
    assert file is not None
    unfinished = file.with_name(f".{file.name}{UNFINISHED}")
    with locked(file.with_name(f".{file.name}.lock")):
        if file.exists():  # another process was faster
            return
        for left in file.parent.glob(f"{unfinished.name}*"):  # the journal, too
            left.unlink()
        # SQLite itself would let only its owner write it, whatever the umask.
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL, 0o666))
        # The place of the unused default experiment; MLflow would quote that of this folder badly.
        SqlAlchemyStore(f"sqlite:///{unfinished}", "mlflow-artifacts:/")  # type: ignore[no-untyped-call]
        unfinished.rename(file)


def experiment(
    client: Any, name: str, results: Path, text: str | None = None, ranked_by: str = ACCURACY
) -> str:
    """Return the id of an experiment, creating it, or restoring it if it was deleted.

    Args:
        client: of MLflow.
        name: of the experiment.
        results: the results folder.
        text: the description of a study's runs; an experiment for its means is then made, too, and
            the descriptions of both link to both.
        ranked_by: the metric by which its runs are compared.
    """
    if text is None:
        return str(_experiment(client, name, results, ranked_by).experiment_id)
    both = [_experiment(client, one, results, ranked_by) for one in (name, means_of(name))]
    titles = ("runs, best first", MEANS)
    pages = {title: one.experiment_id for title, one in zip(titles, both, strict=True)}
    for one in both:
        _set_tags(client, one, {"mlflow.note.content": description(text, pages)})
    return str(both[0].experiment_id)


def _experiment(client: Any, name: str, results: Path, ranked_by: str) -> Any:
    existing = client.get_experiment_by_name(name)
    if existing is None:
        existing = _create(client, name, results)
    if existing.lifecycle_stage == "deleted":
        client.restore_experiment(existing.experiment_id)
    _set_tags(client, existing, saved_view(name, ranked_by))
    return existing


def _set_tags(client: Any, existing: Any, wanted: Mapping[str, str]) -> None:
    for tag, value in wanted.items():
        if existing.tags.get(tag) != value:
            client.set_experiment_tag(existing.experiment_id, tag, value)


def _create(client: Any, name: str, results: Path) -> Any:
    from mlflow.exceptions import MlflowException

    # A server has its own place for artefacts; a database needs a folder beside it.
    scheme = urlsplit(tracking_uri(results)).scheme
    database = scheme.split("+")[0] in ("sqlite", "postgresql", "mysql", "mssql")
    folder = (results.resolve() / ARTEFACTS / name).as_uri() if database else None
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


def our_experiments(client: Any, *, deleted: bool = False) -> list[Any]:
    """Return all experiments of this suite in the store, or all that were deleted."""
    from mlflow.entities import ViewType

    kind = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY
    condition = f"tags.{OURS} = 'yes'"
    search = client.search_experiments
    return all_pages(
        lambda token: search(view_type=kind, filter_string=condition, page_token=token)
    )


def all_pages(search: Callable[[str | None], Any]) -> list[Any]:
    """Return what all pages of a search hold, each of which is found by the token of the last."""
    found: list[Any] = []
    token = None
    while True:
        page = search(token)
        found.extend(page)
        token = page.token
        if not token:
            return found


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


def lock(results: Path) -> AbstractContextManager[None]:
    """Return the lock of the one process that brings MLflow up to date with a results folder."""
    return locked(results / ".mlflow.lock")
