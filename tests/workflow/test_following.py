"""MLflow's pages show runs while they train; a store that does not answer is reported."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from recorded_runs import damage, record, spec
from tracked import STUDY, curve, expected_curve, finish, note_some, shown, training

from clipnoise.cli import main
from clipnoise.tracking import Membership, note, sync
from clipnoise.tracking.store import tracking_uri

Step = Callable[[], object]


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Commands that run until they are interrupted hear signals in their own way."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def follow(monkeypatch: pytest.MonkeyPatch, *words: str | Path, between: list[Step]) -> int:
    """Run `mlflow-sync --follow` and do something between its looks; then interrupt it."""
    steps = iter(between)

    def sleep(seconds: float) -> None:
        assert seconds > 0
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr("clipnoise.cli.mlflow.time", clock)
    return main(["mlflow-sync", "--follow", *map(str, words)])


@pytest.mark.long
def test_who_follows_sees_curves_grow_and_runs_end(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, later = spec(), spec(seed=1)
    with training(results, run) as evaluations:

        def go_on() -> None:
            (found,) = shown(results)
            assert curve(results, found) == []
            note_some(results, run, evaluations[:3])

        def end() -> None:
            (found,) = shown(results)
            assert curve(results, found) == expected_curve(run)[:3]
            assert found.info.status == "RUNNING"
            finish(results, run)

        def one_more() -> None:
            assert [found.info.status for found in shown(results)] == ["FINISHED"]
            record(results, later)

        steps: list[Step] = [go_on, end, one_more, lambda: None]
        assert follow(monkeypatch, "--results", results, between=steps) == 0
    assert len(shown(results)) == 2
    said = capsys.readouterr().out.splitlines()
    counts = [line.rpartition(": ")[2] for line in said]
    assert counts == ["1 added", "1 completed", "1 added"]  # a curve that grows is no news


@pytest.mark.long
def test_a_store_that_does_not_answer_is_named_once_and_tried_again(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(results, spec())
    address = tracking_uri(results)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = f"http://user:s3cret@127.0.0.1:{probe.getsockname()[1]}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", closed)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

    def answer() -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)

    steps: list[Step] = [lambda: None, answer, lambda: None]
    assert follow(monkeypatch, "--results", results, between=steps) == 0
    said = capsys.readouterr()
    assert said.err.count("It is tried again.") == 1
    assert "s3cret" not in said.err
    assert "1 added" in said.out
    assert len(shown(results)) == 1


def test_a_damaged_file_is_named_once(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(record(results, spec()))
    steps: list[Step] = [lambda: record(results, spec(seed=1)), lambda: None]
    assert follow(monkeypatch, "--results", results, between=steps) == 0
    assert capsys.readouterr().err.count("summary.json") == 1
    assert len(shown(results)) == 1


def test_following_has_no_outcome(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["mlflow-sync", "--follow", "--results", str(results), "--out", str(results / "o.json")]
    assert main(words) == 2
    assert "--follow" in capsys.readouterr().err


def test_pages_without_runs_say_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mlflow-ui", "--results", str(tmp_path)]) == 2
    assert "no recorded runs yet; `make quickstart`" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_pages_of_a_server_are_its_own(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://u:s3cret@mlflow.example.org")
    assert main(["mlflow-ui", "--results", str(results)]) == 2
    said = capsys.readouterr().err
    assert "https://mlflow.example.org" in said
    assert "`clipnoise mlflow-sync --follow`" in said
    assert "s3cret" not in said


def heard() -> None:
    """Hear what whoever runs the tests ignores, as `nohup` does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_pages_follow_while_they_are_open_and_leave_nothing_behind(
    number: signal.Signals, tmp_path: Path
) -> None:
    run = spec()
    note(tmp_path, {run.hash: Membership(study=STUDY)}, {STUDY: "**Title**"})
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["mlflow-ui", "--results", str(tmp_path), "--port", str(port)]
    program = "import sys; from clipnoise.cli import main; sys.exit(main())"
    with (
        training(tmp_path, run) as evaluations,
        subprocess.Popen(
            [sys.executable, "-c", program, *words],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=heard,
        ) as command,
        ExitStack() as ending,
    ):
        ending.callback(command.kill)  # or a failure would wait for it
        assert command.stdout is not None
        for line in command.stdout:
            if line.startswith(f"{STUDY}: "):
                break
        assert f"http://127.0.0.1:{port}/#/experiments/" in line
        note_some(tmp_path, run, evaluations)
        deadline = time.monotonic() + 120
        while curve(tmp_path, shown(tmp_path)[0]) != expected_curve(run):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        command.send_signal(number)
        assert command.wait(60) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert not (tmp_path / ".mlflow.lock").exists()
    sync(tmp_path)
