"""Crashes, dead and slow servers, many at once: nothing is lost, nothing is shown twice."""

from __future__ import annotations

import http.server
import json
import multiprocessing
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import damage, record, spec
from tracked import (
    STUDY,
    counts,
    curve,
    expected_curve,
    finish,
    note_some,
    shown,
    training,
)

from clipnoise.cli import main
from clipnoise.run.progress import PROGRESS
from clipnoise.run.results import digest_of, run_folder
from clipnoise.tracking import Membership, StoreError, note, read_notes, sync
from clipnoise.tracking.store import connect, explain, notes_path, redacted, tracking_uri
from clipnoise.tracking.ui import serve


class CrashError(Exception):
    """The process dies here."""


class DyingClient:
    """An MLflow client whose process dies before a given call."""

    def __init__(self, client: Any, calls: int) -> None:
        self.client, self.left = client, calls

    def __getattr__(self, name: str) -> Any:
        if self.left == 0:
            raise CrashError(name)
        self.left -= 1
        return getattr(self.client, name)


def crash_between_all_calls(results: Path, prepare: Callable[[], object]) -> int:
    """Let a sync die before its first call, then before its second, and so on until it ends.

    After each crash the store shows no run twice, and the next sync makes it whole.

    Args:
        results: the results folder.
        prepare: gives the sync something to do.
    """
    alive, calls = connect(results), 0
    while True:
        prepare()
        if not _crashes(results, DyingClient(alive, calls)):
            return calls
        assert len(shown(results)) <= 1
        sync(results)
        assert len(shown(results)) == 1
        assert counts(sync(results)) == {"unchanged": 1}
        calls += 1


def _crashes(results: Path, client: Any) -> bool:
    """Return whether a sync with a client dies before its end."""
    with pytest.MonkeyPatch.context() as dying:
        dying.setattr("clipnoise.tracking.syncer.connect", lambda _: client)
        try:
            sync(results)
        except StoreError:
            return True
    return False


@pytest.mark.long
def test_a_crash_between_any_two_calls_is_repaired(results: Path) -> None:
    run, offsets = spec(), iter(range(1, 100))
    offset = 0.0

    def change() -> None:
        nonlocal offset
        offset = 0.001 * next(offsets)
        record(results, run, offset=offset)

    change()
    sync(results)
    assert crash_between_all_calls(results, change) > 8
    (found,) = shown(results)
    assert curve(results, found) == expected_curve(run, offset=offset)


@pytest.mark.long
def test_a_crash_while_a_run_is_followed_is_repaired(results: Path) -> None:
    run = spec()
    with training(results, run) as evaluations:
        left = iter(evaluations)

        def go_on() -> None:
            note_some(results, run, [metrics for metrics in (next(left, None),) if metrics])

        crash_between_all_calls(results, go_on)
        note_some(results, run, list(left))
        sync(results)
        (found,) = shown(results)
        assert curve(results, found) == expected_curve(run)


@pytest.mark.long
def test_a_crash_while_a_followed_run_ends_is_repaired(results: Path) -> None:
    run = spec()

    def show_and_end() -> None:
        (run_folder(results, run) / "summary.json").unlink(missing_ok=True)
        with training(results, run) as evaluations:
            note_some(results, run, evaluations[:3])
            sync(results)
            finish(results, run)

    assert crash_between_all_calls(results, show_and_end) > 8
    (found,) = shown(results)
    assert found.info.status == "FINISHED"
    assert curve(results, found) == expected_curve(run)


@pytest.mark.parametrize("answers", [3, 5, 7])
def test_what_a_server_that_restarts_has_missed_the_next_sync_adds(
    answers: int, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class RestartingClient(DyingClient):
        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except CrashError:
                raise ConnectionError("Connection refused") from None

    client = RestartingClient(connect(results), answers)
    monkeypatch.setattr("clipnoise.tracking.syncer.connect", lambda _: client)
    for seed in range(2):
        record(results, spec(seed=seed))
    seen: dict[str | Path, object] = {}
    with pytest.raises(StoreError, match="Connection refused"):
        sync(results, seen=seen)
    client.left = -1
    sync(results, seen=seen)
    assert counts(sync(results)) == {"unchanged": 2}
    assert sorted(run.data.tags["seed"] for run in shown(results)) == ["0", "1"]


@pytest.mark.long
def test_a_server_that_goes_away_while_a_run_is_followed_shows_it_whole_in_the_end(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, port = spec(), _closed_port()
    seen: dict[str | Path, object] = {}
    monkeypatch.chdir(results.parent)  # where the server keeps the artefacts it is sent
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with ExitStack() as running, training(results, run) as evaluations:
        address = running.enter_context(serve(results, port=port))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        note_some(results, run, evaluations[:2])
        assert sync(results, seen=seen).added == 1
        running.close()
        note_some(results, run, evaluations[2:])
        with pytest.raises(StoreError):
            sync(results, seen=seen)
        finish(results, run)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")  # of the database behind the server
    with serve(results, port=port) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        assert counts(sync(results, seen=seen)) == {"completed": 1}
        (found,) = shown(results)
        assert found.info.status == "FINISHED"
        assert curve(results, found) == expected_curve(run)
        assert counts(sync(results)) == {"unchanged": 1}


def _sync(results: Path) -> None:
    sync(results)


def _sync_after_a_signal(results: Path, ready: Path, address: str) -> None:
    """Bring the store up to date as soon as everybody is ready."""
    os.environ["MLFLOW_TRACKING_URI"] = address
    connect(results)
    while not ready.exists():
        time.sleep(0.01)
    for _ in range(3):
        sync(results)


def _spawn(job: Callable[..., None], *arguments: Any, **options: Any) -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["clipnoise.tracking", "mlflow.tracking.client"])
    process = context.Process(target=job, args=arguments, kwargs=options)
    process.start()
    return process


@pytest.mark.long
def test_four_who_bring_one_folder_up_to_date_at_once_show_each_run_once(results: Path) -> None:
    runs, ready = [spec(seed=seed) for seed in range(6)], results / "ready"
    for run in runs[:4]:
        record(results, run)
    with ExitStack() as jobs:
        for run in runs[4:]:
            note_some(results, run, jobs.enter_context(training(results, run)))
        address = tracking_uri(results)
        processes = [_spawn(_sync_after_a_signal, results, ready, address) for _ in range(4)]
        ready.touch()
        for process in processes:
            process.join(180)
        assert [process.exitcode for process in processes] == [0] * 4
        assert sorted(run.data.tags["seed"] for run in shown(results)) == list("012345")
        for found in shown(results):
            (run,) = (run for run in runs if run.hash == found.data.tags["hash"])
            assert curve(results, found) == expected_curve(run)


@pytest.mark.long
def test_eight_folders_at_once_lose_nothing_on_one_store(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, address = results / "ready", tracking_uri(results)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    record(results, spec())
    sync(results)  # makes the experiment
    folders = [results / str(number) for number in range(8)]
    for number, folder in enumerate(folders):
        for seed in (2 * number, 2 * number + 1):
            record(folder, spec(seed=seed))
    processes = [_spawn(_sync_after_a_signal, folder, ready, address) for folder in folders]
    ready.touch()
    for process in processes:
        process.join(180)
    assert [process.exitcode for process in processes] == [0] * 8
    for folder in folders:
        assert counts(sync(folder)) == {"unchanged": 2}
    found = shown(results)
    assert len(found) == 17
    assert {run.data.tags["seed"] for run in found} == {str(seed) for seed in range(16)}
    assert all(len(curve(results, run)) == 5 for run in found)


@pytest.mark.long
def test_three_at_once_make_one_store(tmp_path: Path) -> None:
    record(tmp_path, spec())
    processes = [_spawn(_sync, tmp_path) for _ in range(3)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 3
    assert len(shown(tmp_path)) == 1
    assert counts(sync(tmp_path)) == {"unchanged": 1}


# Ends its own process at the n-th statement of the migrations that make a database.
KILLED = """
import os, signal, sys
from pathlib import Path
from sqlalchemy import event
from sqlalchemy.engine import Engine
from clipnoise.tracking.store import connect

left = int(sys.argv[2])

@event.listens_for(Engine, "before_cursor_execute")
def count(*_):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

connect(Path(sys.argv[1]))
"""


@pytest.mark.long
@pytest.mark.parametrize("statements", [150, 400])
def test_a_store_whose_making_was_killed_is_made_by_the_next_call(
    statements: int, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", KILLED, str(tmp_path), str(statements)]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    record(tmp_path, spec())
    mask = os.umask(0o002)
    try:
        assert counts(sync(tmp_path)) == {"added": 1}
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "mlflow.db").stat().st_mode) == 0o664
    assert not list(tmp_path.glob(".*.part*"))


def test_a_job_that_was_killed_is_shown_as_such_and_its_result_in_the_end(results: Path) -> None:
    run = spec()
    job = _spawn(_train_until_killed, results)
    job.join(120)
    assert job.exitcode == -signal.SIGKILL
    assert counts(sync(results)) == {"added": 1}
    (found,) = shown(results)
    assert found.info.status == "KILLED"
    with training(results, run) as evaluations:
        note_some(results, run, evaluations)
        finish(results, run)
    sync(results)
    (found,) = shown(results)
    assert found.info.status == "FINISHED"
    assert curve(results, found) == expected_curve(run)


def _train_until_killed(results: Path) -> None:
    with training(results, spec()) as evaluations:
        note_some(results, spec(), evaluations[:2])
        os.kill(os.getpid(), signal.SIGKILL)


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


DELAY = 60.0  # seconds that the slow server takes for each answer


@pytest.fixture
def slow_server() -> Iterator[str]:
    """Return the address of a server that takes DELAY to answer."""
    over = threading.Event()

    class Slow(http.server.BaseHTTPRequestHandler):
        def handle(self) -> None:
            over.wait(DELAY)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    over.set()
    server.shutdown()
    server.server_close()


def test_a_server_that_hangs_holds_up_a_sync_for_one_call_only(
    results: Path, slow_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(9):
        record(results, spec(seed=seed))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", slow_server)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    begin = time.monotonic()
    with pytest.raises(StoreError):
        sync(results)
    assert time.monotonic() - begin < DELAY  # not one answer was waited for


@pytest.mark.long
def test_a_broken_database_that_is_moved_away_is_made_again_from_the_result_files(
    results: Path,
) -> None:
    record(results, spec())
    (results / "mlflow.db").write_bytes(b"no database")
    with pytest.raises(StoreError, match="file is not a database"):
        sync(results)
    (results / "mlflow.db").rename(results / "broken.db")
    again = _spawn(_sync_one, results)  # because MLflow keeps a database open
    again.join(120)
    assert again.exitcode == 0


def _sync_one(results: Path) -> None:
    assert counts(sync(results)) == {"added": 1}


def test_sync_names_a_dead_store_without_its_credentials(
    results: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    record(results, spec())
    port = _closed_port()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://someone:s3cret@127.0.0.1:{port}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert main(["mlflow-sync", "--results", str(results)]) == 1
    output = "".join(capfd.readouterr())
    assert f"http://127.0.0.1:{port}" in output
    assert "s3cret" not in output
    with pytest.raises(StoreError, match=str(port)):
        sync(results)


def test_a_workflow_reports_an_unavailable_store_and_continues(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{_closed_port()}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    out = results / "tracked.json"
    assert main(["mlflow-sync", "--results", str(results), "--out", str(out)]) == 0
    assert "127.0.0.1" in json.loads(out.read_text())["error"]


def test_a_damaged_summary_is_named_and_the_others_synced(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = record(results, spec(seed=0))
    record(results, spec(seed=1))
    damage(folder)
    assert main(["mlflow-sync", "--results", str(results)]) == 1
    output = capsys.readouterr()
    assert str(folder / "summary.json") in output.err
    assert "1 added, 1 damaged" in output.out
    assert len(shown(results)) == 1


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["pipe", "privacy of the spec", "method", "started"])
def test_a_hostile_result_is_named_and_the_others_synced(kind: str, results: Path) -> None:
    folder = record(results, spec(seed=0))
    record(results, spec(seed=1))
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    match kind:
        case "privacy of the spec":
            summary["spec"]["privacy"] = "none"
        case "method":
            summary["spec"]["method"] = 5
        case "started":
            summary["started"] = []
    summary["digest"] = digest_of(summary, (folder / "metrics.csv").read_text())
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_text(json.dumps(summary))
    report = sync(results)
    assert (report.added, len(report.damaged)) == (1, 1)
    assert str(path) in report.damaged[0]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["pipe", "no spec", "privacy of the spec", "started"])
def test_a_hostile_progress_is_named_and_the_others_synced(kind: str, results: Path) -> None:
    record(results, spec(seed=1))
    path = run_folder(results, spec()) / PROGRESS
    with training(results, spec()):
        head = json.loads(path.read_text())
        match kind:
            case "no spec":
                del head["spec"]
            case "privacy of the spec":
                head["spec"]["privacy"] = "none"
            case "started":
                head["started"] = []
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.write_text(json.dumps(head) + "\n")
        report = sync(results)
    assert (report.added, len(report.damaged)) == (1, 1)
    assert str(path) in report.damaged[0]


@pytest.mark.parametrize("text", ["", "[]", '{"owner": 5}', '{"runs": {"a": 5}}'])
def test_damaged_notes_cost_the_names_of_studies_only(text: str, results: Path) -> None:
    record(results, spec())
    notes_path(results).write_text(text)
    assert counts(sync(results)) == {"added": 1}
    (found,) = shown(results)
    assert found.data.tags["study"] == "unplanned"


@pytest.mark.parametrize("label", ["</script><script>alert(1)</script>", "a\x1b[31m\u202eb", "{x}"])
def test_a_label_is_shown_as_it_is_and_acts_on_nothing(label: str, results: Path) -> None:
    run = spec()
    note(results, {run.hash: Membership(study=STUDY, label=label)}, {STUDY: f"**{label}**"})
    record(results, run)
    assert main(["mlflow-sync", "--results", str(results)]) == 0
    (found,) = shown(results)
    assert found.data.tags["label"] == label


STUDY_FILE = """
title: Digits
panels:
  main:
    datasets: [digits]
    models: [logistic]
    methods: [{id: dp-sgd, label: SGD, learning_rate: 0.1, clip_norm: 1.0}]
    epsilons: [1.0]
    seeds: [0, 1]
    training: {expected_batch_size: 64, steps: 2}
report: []
"""


@pytest.mark.long
def test_the_study_given_first_shows_a_run_that_several_plan(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.yaml").write_text(STUDY_FILE)
    files = [str(tmp_path / f"{name}.yaml") for name in ("second", "first")]
    assert main(["mlflow-sync", "--study", *files, "--results", str(tmp_path / "results")]) == 0
    notes = read_notes(tmp_path / "results")
    assert len(notes.runs) == 2
    (said,) = set(notes.runs.values())
    assert said == Membership(
        study="second", studies=("second", "first"), label="SGD", panel="main"
    )
    assert set(notes.descriptions) == {"first", "second"}


def test_addresses_lose_their_secrets_and_nothing_else() -> None:
    assert redacted("sqlite:////tmp/a/mlflow.db") == "sqlite:////tmp/a/mlflow.db"
    assert redacted("postgresql://u:p@host:5/db?sslpassword=x") == "postgresql://host:5/db"
    assert redacted("https://token@host/path") == "https://host/path"
    assert redacted("postgresql://u:p/w@d@host:5/db") == "postgresql://host:5/db"
    assert redacted("https://u:p?w@host/db") == "https://…"
    assert redacted("https://host/db?token=a@b") == "https://…"
    for address in ("postgresql://u:p/w@d@host:5/db", "https://u:p?w@host/db"):
        assert "p" not in explain(RuntimeError(f"cannot reach {address}"), address).split("//")[1]
