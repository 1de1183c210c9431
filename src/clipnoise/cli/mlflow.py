"""MLflow: create the store, bring it up to date from the result files, and show its pages."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from clipnoise.cli import options
from clipnoise.errors import UserError
from clipnoise.files import read_json, write_atomically, write_json
from clipnoise.studies.study import Study, descriptions, find_study, load_study, memberships
from clipnoise.tracking import StoreError, init_store, read_stamp, sync
from clipnoise.tracking.store import OFF
from clipnoise.tracking.view import View, means_of

SECONDS_BETWEEN_LINES = 20.0  # of progress in a log


@options.command()
def mlflow_init(
    studies: Annotated[Sequence[str], options.ARGUMENT],
    results: options.Results = options.RESULTS,
    studies_folder: Annotated[Path, "Where study names are looked up."] = options.STUDIES,
    scale: options.Scale = None,
    secure_noise: options.SecureNoise = False,
    tracking: Annotated[
        options.Tracking, "off writes a stamp that keeps jobs away from MLflow."
    ] = "live",
) -> None:
    """Create the MLflow store and one experiment per study, before any job opens it.

    STUDIES are names or files; a run that several of them plan is shown under the first. The store
    is an SQLite database in the results folder, or what MLFLOW_TRACKING_URI says. Repeating the
    command changes nothing. A store that does not answer is a warning, not a failure: training
    continues, and `clipnoise mlflow-sync` adds the runs later.
    """

    found = [find_study(n, studies_folder, scale, secure_noise=secure_noise) for n in studies]
    wanted = tracking != "off"
    stamp = init_store(results, descriptions(found), runs=memberships(found), tracking=wanted)
    if stamp.available:
        print(f"{stamp.uri}: {', '.join(stamp.experiments)}")
    elif wanted:
        print(
            f"warning: {stamp.reason}\nTraining continues without it; "
            "run `clipnoise mlflow-sync` when it answers.",
            file=sys.stderr,
        )


@options.command()
def mlflow_sync(
    results: options.Results = options.RESULTS,
    study: Annotated[Sequence[Path], "Study files: sync only the runs that they plan."] = (),
    scale: options.Scale = None,
    secure_noise: options.SecureNoise = False,
    runs: Annotated[Path | None, "The study's runs.csv, whose means are shown, too."] = None,
    report: Annotated[str, "Where the study's report is, for readers of its means."] = "",
    tracking: Annotated[
        options.Tracking, "off does nothing; the others mean the same here."
    ] = "sync",
    out: Annotated[Path | None, "JSON file for the outcome; faults then exit with 0."] = None,
) -> int:
    """Bring the MLflow store up to date from the result files.

    Adds what is missing, replaces what has changed, and leaves the rest. The means are those of the
    studies given, or of every study that the workflow has collected. Exits with 1 when the store
    does not answer or a result file is damaged. With --out, the outcome is written there and the
    exit code is 0, so that a workflow finishes without its tracking server.
    """

    planned = [load_study(path, scale, secure_noise=secure_noise) for path in study]
    outcome: dict[str, Any] = {"error": None}
    if runs is not None:
        (one,) = planned
        outcome["means_of"] = _said(one, report)
    if tracking == "off":
        outcome["error"] = OFF
    else:
        try:
            outcome |= _sync(results, planned, _tables(results, planned, runs, report))
        except StoreError as error:
            outcome["error"] = str(error)
            print(f"clipnoise mlflow-sync: {error}", file=sys.stderr)
    for message in outcome.get("damaged", ()):
        print(f"clipnoise mlflow-sync: {message}", file=sys.stderr)
    if out is not None:
        write_json(out, outcome)
        return 0
    return 1 if outcome.get("damaged") or (outcome["error"] and tracking != "off") else 0


def _said(study: Study, report: str) -> dict[str, str]:
    """Return what MLflow says of the means of a study."""
    return {"experiment": study.experiment, "report": report, "warning": study.scale.watermark}


def _tables(
    results: Path, studies: Sequence[Study], runs: Path | None, report: str
) -> Iterator[tuple[str, Callable[[], list[View]]]]:
    """Yield where each table of means comes from, and what makes it.

    That is the runs.csv that was given; or else the result files of studies that were given; or
    else each runs.csv whose means were to be shown, with what an earlier call said of it.
    """
    from clipnoise.report.means import mean_views
    from clipnoise.report.records import read_runs
    from clipnoise.studies.collect import collect

    def read(path: Path, said: Mapping[str, str]) -> list[View]:
        return mean_views(read_runs(path), **said)

    def collected(study: Study) -> list[View]:
        with TemporaryDirectory() as folder:
            path = Path(folder, "runs.csv")
            write_atomically(path, collect(study, results)[0])
            return read(path, _said(study, report))

    for study in studies:
        made = (
            partial(collected, study) if runs is None else partial(read, runs, _said(study, report))
        )
        yield study.experiment, made
    for path in [] if studies else results.rglob("*tracked.json"):
        table = path.with_name("runs.csv")
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # it is damaged
            said = read_json(path)["means_of"]
            if table.is_file():
                yield said["experiment"], partial(read, table, said)


def _sync(
    results: Path,
    studies: list[Study],
    tables: Iterable[tuple[str, Callable[[], list[View]]]],
) -> dict[str, Any]:
    stamp = read_stamp(results)
    planned = set(memberships(studies))
    means, unreadable = {}, []
    for name, views in tables:
        try:
            means[means_of(name)] = views()
        except UserError as error:
            unreadable.append(str(error))
    with _progress() as progress:
        report = sync(
            results,
            runs=memberships(studies, stamp.runs if stamp else None),
            only=planned if studies else None,
            descriptions=descriptions(studies),
            means=means,
            progress=progress,
        )
    report.damaged += unreadable
    values = asdict(report)
    counts = ", ".join(f"{n} {name}" for name, n in values.items() if isinstance(n, int) and n)
    print(f"{report.store}: {counts or 'no finished runs'}", end="")
    print(f", {len(report.damaged)} damaged" if report.damaged else "")
    return values


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show a bar and the time left while the block runs; in a log, a line now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    console = Console(stderr=True)
    said = time.monotonic()

    def in_a_log(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said > SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            print(f"{done} of {total} runs", file=sys.stderr, flush=True)

    if not console.is_terminal:
        yield in_a_log
        return
    columns = (TextColumn("mlflow-sync"), BarColumn(), MofNCompleteColumn(), TimeLeft())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("runs", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@options.command()
def mlflow_ui(
    results: options.Results = options.RESULTS, port: Annotated[int, "Port on 127.0.0.1."] = 5000
) -> int:
    """Show the recorded runs in MLflow's pages, on 127.0.0.1, until interrupted.

    Prints, for every study, the addresses of the pages of its runs and of their means.
    """
    from clipnoise.tracking.store import redacted, tracking_uri
    from clipnoise.tracking.ui import serve, study_pages

    uri = tracking_uri(results)
    if uri.startswith("http"):
        raise UserError(f"MLFLOW_TRACKING_URI is a server with its own pages: {redacted(uri)}")
    local = results / "mlflow.db"
    if uri.endswith(str(local.resolve())) and not local.exists():
        raise UserError(f"{local}: no recorded runs yet; `make quickstart` records some.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server ends, too
    print("MLflow is starting; this takes up to 20 seconds.", flush=True)
    try:
        with serve(results, port=port) as address:
            for name, link in study_pages(results, address).items():
                print(f"{name}: {link}")
            print(f"All experiments: {address}\nStop with Ctrl-C.", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except StoreError as error:
        print(f"clipnoise mlflow-ui: {error}", file=sys.stderr)
    return 1
