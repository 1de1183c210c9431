"""Crashes, dead and slow servers, many writers: tracking loses nothing and delays no run."""

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
from recorded_runs import damage, record, rows, spec
from tracked import STUDY, counts, shown, train, wait_for_a_run

from clipnoise.cli import main
from clipnoise.files import write_json
from clipnoise.run.results import digest_of
from clipnoise.tracking import (
    LiveRun,
    Membership,
    StoreError,
    init_store,
    read_stamp,
    sync,
)
from clipnoise.tracking.store import (
    IN_START,
    explain,
    known_experiments,
    open_store,
    owner_of,
    redacted,
    stamp_path,
)
from clipnoise.tracking.ui import serve
from clipnoise.tracking.view import finished_view
from clipnoise.tracking.write import RunWriter


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


def test_a_crash_between_any_two_calls_is_repaired(results: Path) -> None:
    run = spec()
    folder = record(results, run)
    sync(results)
    client, _ = open_store(results, {})
    experiment, owner = shown(results)[0].info.experiment_id, owner_of(results, read_stamp(results))
    calls = 0
    while True:
        record(results, run, offset=0.001 * (calls + 1))
        view = finished_view(folder, Membership())
        try:
            RunWriter(DyingClient(client, calls), experiment, owner).write(view)
        except CrashError:
            assert len(shown(results)) <= 1
        else:
            break
        repaired = sync(results)
        assert repaired.added + repaired.replaced == 1
        (found,) = shown(results)
        assert found.data.tags["digest"] == view.digest
        calls += 1
    assert calls > 8
    assert counts(sync(results)) == {"unchanged": 1}


class RestartingClient:
    """An MLflow client whose server stops answering with a given call, until it is back."""

    def __init__(self, client: Any, answers: int) -> None:
        self.client, self.answers, self.back = client, answers, False

    def __getattr__(self, name: str) -> Any:
        self.answers -= 1
        if self.answers < 0 and not self.back:
            raise ConnectionError("Connection refused")
        return getattr(self.client, name)


@pytest.mark.parametrize("answers", [0, 2, 4])
def test_a_server_that_restarts_during_a_run_shows_it_whole_in_the_end(
    answers: int, results: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    restarted = RestartingClient(open_store(results, {})[0], answers)
    monkeypatch.setattr("clipnoise.tracking.live.connect", lambda *_: restarted)
    assert not train(results, spec(), mode="live", patience=60.0)
    assert "Connection refused. `clipnoise mlflow-sync` adds the rest" in caplog.text
    restarted.back = True
    assert train(results, spec(seed=1), mode="live", patience=60.0)
    repaired = sync(results)
    assert repaired.added + repaired.replaced == 1
    assert counts(sync(results)) == {"unchanged": 2}
    assert sorted(run.data.tags["seed"] for run in shown(results)) == ["0", "1"]


@pytest.mark.long
def test_a_server_that_goes_away_during_a_run_costs_only_the_rest_of_its_view(
    results: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, port = spec(), _closed_port()
    table = rows(run)
    monkeypatch.chdir(results.parent)  # where the server keeps the artefacts it is sent
    with ExitStack() as running:
        address = running.enter_context(serve(results, port=port))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        assert init_store(results, {STUDY: ""}).available
        with LiveRun(results, run, mode="live", patience=60.0) as live:
            live.log(table[0])
            wait_for_a_run(results)
            running.close()
            for row in table[1:]:
                live.log(row)
            record(results, run)
    assert not live.complete
    assert "`clipnoise mlflow-sync` adds the rest" in caplog.text
    monkeypatch.delenv("MLFLOW_TRACKING_URI")  # of the database behind the server
    with serve(results, port=port) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        repaired = sync(results)
        assert repaired.added + repaired.replaced == 1
        (found,) = shown(results)
        assert found.info.status == "FINISHED"
        assert counts(sync(results)) == {"unchanged": 1}


def _job(results: Path, writer: int, *, die: bool = False, **options: Any) -> None:
    """Run two specs, as a job does."""
    for seed in (2 * writer, 2 * writer + 1):
        run = spec(seed=seed)
        with LiveRun(results, run, **options) as live:
            for row in rows(run):
                live.log(row)
            record(results, run)
            if die:
                wait_for_a_run(results)
                os.kill(os.getpid(), signal.SIGKILL)


def _first_job(results: Path) -> None:
    sys.exit(not init_store(results, {"a": "", "b": ""}).available)


def _spawn(job: Callable[..., None], *arguments: Any, **options: Any) -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["clipnoise.tracking", "mlflow.tracking.client"])
    process = context.Process(target=job, args=arguments, kwargs=options)
    process.start()
    return process


def test_eight_jobs_at_once_lose_nothing(results: Path) -> None:
    processes = [_spawn(_job, results, writer, mode="live", patience=120.0) for writer in range(8)]
    for process in processes:
        process.join(180)
        assert process.exitcode == 0
    assert counts(sync(results)) == {"unchanged": 16}
    found = shown(results)
    assert {run.data.tags["seed"] for run in found} == {str(seed) for seed in range(16)}
    client, _ = open_store(results, {})
    for run in found:
        assert len(client.get_metric_history(run.info.run_id, "test_accuracy")) == 5


def test_three_first_jobs_at_once_create_one_store(tmp_path: Path) -> None:
    processes = [_spawn(_first_job, tmp_path) for _ in range(3)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 3
    stamp = read_stamp(tmp_path)
    assert stamp is not None
    client, _ = open_store(tmp_path, {})
    assert sorted(known_experiments(client)) == sorted(stamp.experiments.values())


# Ends its own process at the n-th statement of the migrations that make a database.
KILLED = """
import os, signal, sys
from pathlib import Path
from sqlalchemy import event
from sqlalchemy.engine import Engine
from clipnoise.tracking import init_store

left = int(sys.argv[2])

@event.listens_for(Engine, "before_cursor_execute")
def count(*_):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

init_store(Path(sys.argv[1]), {})
"""


@pytest.mark.parametrize("statements", [150, pytest.param(400, marks=pytest.mark.long)])
def test_a_store_whose_making_was_killed_is_made_by_the_next_call(
    statements: int, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", KILLED, str(tmp_path), str(statements)]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    mask = os.umask(0o002)
    try:
        stamp = init_store(tmp_path, {STUDY: ""})
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "mlflow.db").stat().st_mode) == 0o664
    assert (stamp.available, stamp.reason) == (True, None)
    assert not list(tmp_path.glob(".*.part*"))
    record(tmp_path, spec())
    assert counts(sync(tmp_path)) == {"added": 1}


def test_a_job_killed_before_it_finishes_is_repaired_by_sync(results: Path) -> None:
    process = _spawn(_job, results, 0, die=True, mode="live")
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    assert counts(sync(results)) == {"replaced": 1}
    (found,) = shown(results)
    assert found.info.status == "FINISHED"
    assert counts(sync(results)) == {"unchanged": 1}


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _pretend_available(results: Path, uri: str) -> None:
    stamp = {"uri": redacted(uri), "available": True, "reason": None}
    write_json(stamp_path(results), {**stamp, "experiments": {STUDY: "1"}, "runs": {}})


@pytest.mark.parametrize("mode", ["live", "after"])
def test_a_dead_server_costs_a_job_only_its_view(
    results: Path,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    uri = f"http://someone:s3cret@127.0.0.1:{_closed_port()}"
    _pretend_available(results, uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert not train(results, spec(), mode=mode, patience=60.0)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert "mlflow-sync" in caplog.text
    assert "s3cret" not in caplog.text
    assert counts(sync(results)) == {"added": 1}


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


def test_a_slow_server_does_not_hold_a_job(
    results: Path, slow_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend_available(results, slow_server)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", slow_server)
    begin = time.monotonic()
    process = _spawn(_job, results, 0, mode="live", patience=0.5)
    process.join(DELAY)
    assert process.exitcode == 0
    assert time.monotonic() - begin < DELAY  # two runs, not one answer
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert counts(sync(results)) == {"added": 2}


def test_a_server_that_hangs_holds_up_the_first_job_for_one_call_only(
    tmp_path: Path, slow_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", slow_server)
    monkeypatch.setattr("clipnoise.tracking.store.IN_START", (1, IN_START[1]))
    begin = time.monotonic()
    assert not init_store(tmp_path, {STUDY: ""}).available
    assert time.monotonic() - begin < DELAY


def test_a_broken_database_that_is_moved_away_is_made_again_from_the_result_files(
    results: Path,
) -> None:
    record(results, spec())
    (results / "mlflow.db").write_bytes(b"no database")
    program = (
        "import sys; from pathlib import Path; from clipnoise.tracking import init_store, sync\n"
        "results = Path(sys.argv[1]); init_store(results, {'study': ''})\n"
        "print(sync(results).added)"
    )
    words = [sys.executable, "-c", program, str(results)]
    broken = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "file is not a database" in broken.stderr
    (results / "mlflow.db").rename(results / "broken.db")
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "1\n"


def test_a_store_that_was_never_initialised_is_left_alone(tmp_path: Path) -> None:
    assert not train(tmp_path, spec(), mode="live")
    assert not (tmp_path / "mlflow.db").exists()


def test_a_dead_server_at_the_start_is_stamped_and_leaves_jobs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    uri = f"http://someone:s3cret@127.0.0.1:{_closed_port()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    stamp = init_store(tmp_path, {STUDY: ""})
    assert not stamp.available
    assert "127.0.0.1" in str(stamp.reason)
    assert "s3cret" not in stamp_path(tmp_path).read_text()
    assert not train(tmp_path, spec(), mode="live")


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


def test_the_first_job_notes_which_study_shows_a_run(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.yaml").write_text(STUDY_FILE)
    files = [str(tmp_path / f"{name}.yaml") for name in ("second", "first")]
    assert main(["mlflow-init", *files, "--results", str(tmp_path), "--tracking", "off"]) == 0
    stamp = read_stamp(tmp_path)
    assert stamp is not None
    assert not stamp.available
    assert len(stamp.runs) == 2
    (said,) = set(stamp.runs.values())
    assert said == Membership(
        study="second", studies=("second", "first"), label="SGD", panel="main"
    )
    assert not (tmp_path / "mlflow.db").exists()


def test_addresses_lose_their_secrets_and_nothing_else() -> None:
    assert redacted("sqlite:////tmp/a/mlflow.db") == "sqlite:////tmp/a/mlflow.db"
    assert redacted("postgresql://u:p@host:5/db?sslpassword=x") == "postgresql://host:5/db"
    assert redacted("https://token@host/path") == "https://host/path"
    assert redacted("postgresql://u:p/w@d@host:5/db") == "postgresql://host:5/db"
    assert redacted("https://u:p?w@host/db") == "https://…"
    assert redacted("https://host/db?token=a@b") == "https://…"
    for address in ("postgresql://u:p/w@d@host:5/db", "https://u:p?w@host/db"):
        assert "p" not in explain(RuntimeError(f"cannot reach {address}"), address).split("//")[1]
