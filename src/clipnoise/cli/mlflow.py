"""MLflow: update its store from the result files, once or continuously, and open its pages."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from clipnoise.cli import options
from clipnoise.errors import UserError
from clipnoise.files import read_json, write_json
from clipnoise.run.results import SUMMARY, run_folder
from clipnoise.studies.study import Study, facts_of, load_study, memberships
from clipnoise.tracking import MeansTable, StoreError, SyncReport, note, read_notes, sync
from clipnoise.tracking.view import View

SECONDS_BETWEEN_LINES = 20.0  # of progress in a log
SHORTEST_PAUSE, LONGEST_PAUSE = 5.0, 60.0  # seconds between two updates with --follow
SHARE = 0.25  # of the time is spent looking, if that is more
CHANGED = ("added", "completed", "replaced", "means")  # worth a line of one who follows


@options.command()
def mlflow_sync(
    results: options.Results = options.RESULTS,
    study: Annotated[Sequence[Path], "Study files: sync only the runs that they plan."] = (),
    scale: options.Scale = None,
    secure_noise: options.SecureNoise = False,
    runs: Annotated[Path | None, "The study's runs.parquet, whose means are shown, too."] = None,
    report: Annotated[str, "Where the study's report is, for readers of its means."] = "",
    follow: Annotated[bool, "Go on until interrupted, and show runs while they train."] = False,
    out: Annotated[Path | None, "JSON file for the outcome; faults then exit with 0."] = None,
) -> int:
    """Bring the MLflow store up to date from the result files.

    Adds what is missing, replaces what has changed, and leaves the rest. Runs that train are shown
    as far as they have got. The store is an SQLite database in the results folder, or what
    MLFLOW_TRACKING_URI says. The means are those of the studies given, or of every study that the
    workflow has collected. Exits with 1 when the store does not answer or a result file is damaged.
    With --out, the outcome is written there and the exit code is 0, so that a workflow finishes
    without its tracking server.
    """
    if runs is not None and len(study) != 1:
        raise UserError(f"--runs: is of one study, and --study names {len(study)}. Name that one.")
    planned = [load_study(path, scale, secure_noise=secure_noise) for path in study]
    if planned:
        known = read_notes(results).runs
        note(results, memberships(planned, known), **facts_of(planned))
    look = partial(_look, results, planned, runs, report)
    if follow:
        if out is not None:
            raise UserError("--follow: it has no end, so there is no outcome for --out.")
        with _until_interrupted():
            _follow(look)
        return 0
    means = {}
    if runs is not None:
        (one,) = planned
        means["means_of"] = _said(one, report)
    found, fault = None, None
    try:
        with _progress() as progress:
            found = look(progress=progress)
        print(_in_words(found))
    except StoreError as error:
        fault = str(error)
        print(f"clipnoise mlflow-sync: {error}", file=sys.stderr)
    if out is not None:
        write_json(out, {"error": fault, **means, **({} if found is None else asdict(found))})
        return 0
    return 1 if found is None or found.damaged else 0


def _look(
    results: Path,
    studies: Sequence[Study],
    runs: Path | None,
    report: str,
    *,
    seen: dict[str | Path, object] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SyncReport:
    """Bring the store up to date once, and name the files that are damaged."""
    found = sync(
        results,
        only=memberships(studies).keys() if studies else None,
        tables=_tables(results, studies, runs, report),
        seen=seen,
        progress=progress,
    )
    for message in found.damaged:
        print(f"clipnoise mlflow-sync: {message}", file=sys.stderr)
    return found


def _in_words(found: SyncReport) -> str:
    counts = {name: n for name, n in asdict(found).items() if isinstance(n, int) and n}
    counts |= {"damaged": len(found.damaged)} if found.damaged else {}
    return f"{found.store}: {', '.join(f'{n} {name}' for name, n in counts.items()) or 'no runs'}"


def _follow(
    look: Callable[..., SyncReport], after: Callable[[SyncReport], object] = lambda _: None
) -> None:
    """Bring the store up to date again and again.

    A store that does not answer is named once, and tried again.

    Args:
        look: does it once.
        after: called after the first time, and after each that changed more than a curve.
    """
    seen: dict[str | Path, object] = {}
    first, fault = True, ""
    while True:
        began = time.monotonic()
        try:
            with _progress() if first else nullcontext() as progress:
                found = look(seen=seen, progress=progress)
            if first or any(getattr(found, name) for name in CHANGED):
                print(_in_words(found), flush=True)
                after(found)
            first, fault = False, ""
        except (StoreError, UserError) as error:
            if fault != str(error):
                fault = str(error)
                print(f"{fault} It is tried again.", file=sys.stderr, flush=True)
        spent = time.monotonic() - began
        time.sleep(min(LONGEST_PAUSE, max(SHORTEST_PAUSE, spent / SHARE - spent)))


@contextmanager
def _until_interrupted() -> Iterator[None]:
    """End the block, and not the process, on Ctrl-C, SIGTERM, and when the terminal is closed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        yield


def _said(study: Study, report: str) -> dict[str, str]:
    """Return what MLflow says of the means of a study."""
    return {"experiment": study.experiment, "report": report, "warning": study.scale.watermark}


def _tables(
    results: Path, studies: Sequence[Study], runs: Path | None, report: str
) -> list[MeansTable]:
    """Return the tables of means: from the runs given, or the result files of studies given.

    Without either, from all runs whose means were to be shown, with what an earlier call said of
    them.
    """
    from clipnoise.report.means import mean_views
    from clipnoise.report.records import collected, read_runs

    def read(path: Path, said: Mapping[str, str]) -> list[View]:
        return mean_views(read_runs(path), **said)

    outcomes = list(_outcomes(results))
    noted = {said["experiment"]: said for _, said in outcomes}

    def of(study: Study) -> dict[str, str]:
        before = noted.get(study.experiment, {}).get("report", "")
        return _said(study, report or before)

    def current(study: Study) -> list[View]:
        return mean_views(collected(study, results)[0], **of(study))

    found: dict[str, MeansTable] = {}
    for study in studies:
        summaries = [run_folder(results, run.spec) / SUMMARY for run in study.runs]
        files = summaries if runs is None else [runs]
        views = partial(current, study) if runs is None else partial(read, runs, of(study))
        found[study.experiment] = MeansTable(study.experiment, files, views)
    for path, said in [] if studies else outcomes:
        table = path.with_name("runs.parquet")
        if table.is_file():
            views = partial(read, table, said)
            found[said["experiment"]] = MeansTable(said["experiment"], [table, path], views)
    return list(found.values())


def _outcomes(results: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield what a workflow noted of the means of each study, and the file; the newest last."""
    for path in sorted(results.glob("studies*/**/*tracked.json"), reverse=True):
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # it is damaged
            said = {name: str(text) for name, text in read_json(path)["means_of"].items()}
            if "experiment" in said:
                yield path, said


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
    """Show the runs in MLflow's pages, on 127.0.0.1, and follow them until interrupted.

    Prints, for every study, the addresses of the pages of its runs and of their means.
    """
    from clipnoise.tracking.store import (
        missing_database,
        notes_path,
        redacted,
        set_aside_if_moved,
        tracking_uri,
    )
    from clipnoise.tracking.ui import serve, study_pages
    from clipnoise.tracking.view import EXPERIMENTS

    uri = tracking_uri(results)
    if uri.startswith("http"):
        raise UserError(
            f"MLFLOW_TRACKING_URI is a server with its own pages: {redacted(uri)}. "
            "`clipnoise mlflow-sync --follow` brings it up to date."
        )
    if missing_database(uri) and not notes_path(results).exists() and _has_no_runs(results):
        raise UserError(f"{results}: no recorded runs yet; `make quickstart` records some.")
    shown: set[str] = set()

    def print_new_pages(address: str, _: SyncReport) -> None:
        for name, link in study_pages(results, address).items():
            if name not in shown:
                shown.add(name)
                print(f"{name}: {link}", flush=True)

    print("MLflow is starting; this takes up to 20 seconds.", flush=True)
    with suppress(OSError):  # where nothing can be written, the pages show what is there
        set_aside_if_moved(results)
    try:
        with _until_interrupted(), serve(results, port=port) as address:
            print(f"All experiments: {address}/{EXPERIMENTS}\nStop with Ctrl-C.", flush=True)
            _follow(partial(_look, results, (), None, ""), partial(print_new_pages, address))
    except StoreError as error:
        print(f"clipnoise mlflow-ui: {error}", file=sys.stderr)
        return 1
    return 0


def _has_no_runs(results: Path) -> bool:
    return next((results / "runs").rglob(SUMMARY), None) is None
