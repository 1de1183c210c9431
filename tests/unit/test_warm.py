"""Warm processes: a command that is forked behaves like one that is started by itself."""

from __future__ import annotations

import json
import marshal
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
import yaml

from clipnoise.cli import client, main, warm
from clipnoise.privacy import calibration
from clipnoise.privacy.calibration import SEAL, calibrate
from clipnoise.run.spec import from_mapping, read_spec

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there are none here")

COMMAND = "import sys; from clipnoise.cli import main; sys.exit(main())"
# A warm process whose commands are a few lines of this test.
SERVER = """
import importlib, json, os, signal, sys, time
from clipnoise.cli import program, warm
def run(words):
    if words[0] == "exit":
        print("out"); print("err", file=sys.stderr)
        return int(words[1])
    if words[0] == "where":
        print(json.dumps([os.getcwd(), os.environ.get("MARK"), sys.argv, os.umask(0)]))
    if words[0] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if words[0] == "fail":
        raise RuntimeError("broken")
    if words[0] == "import":
        print(words[1] in sys.modules)
        importlib.import_module(words[1])
    if words[0] == "say":
        import atexit, logging, threading
        def later():
            time.sleep(0.2)
            print("end of thread", file=sys.stderr)
        atexit.register(print, "the interpreter was taken apart")
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        logging.info("logged")
        threading.Thread(target=later).start()
        sys.stdout.write("said\\n")
    if words[0] == "stop":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        print(os.getpid(), flush=True)
        time.sleep(60)
    return 0
program.run = run
warm.REQUEST_SECONDS = 600
warm.serve(int(sys.argv[1]), int(sys.argv[2]))
"""

RUNS = int(os.environ.get("CLIPNOISE_RUNS", "200"))
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def owner() -> Iterator[int]:
    """A process that lasts as long as the test."""
    with subprocess.Popen(["sleep", "36000"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def server(owner: int) -> Iterator[subprocess.Popen[bytes]]:
    """The warm process of this test."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(client.socket_name("exit", owner))
        listener.listen()
        arguments = [sys.executable, "-c", SERVER, str(listener.fileno()), str(owner)]
        server = subprocess.Popen(arguments, pass_fds=[listener.fileno()])
    yield server
    server.kill()
    server.wait()


@pytest.fixture
def start(owner: int, server: subprocess.Popen[bytes]) -> Start:
    """Start a command in the warm process of this test."""

    def start(*words: str, mark: str = "", folder: Path | None = None) -> subprocess.Popen[str]:
        environment = {**os.environ, client.OWNER: str(owner), "MARK": mark}
        return subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words],
            env=environment,
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_output_and_exit_code_are_those_of_the_child(start: Start) -> None:
    assert ended(start("exit", "3")) == (3, "out\n", "err\n")
    assert ended(start("exit", "0")) == (0, "out\n", "err\n")


def test_a_child_has_the_folder_environment_and_words_of_its_command(
    start: Start, tmp_path: Path
) -> None:
    for mark in ("first", "a=b\n\udcff"):  # the last character stands for a byte that is no UTF-8
        code, out, _ = ended(start("where", "é", "", mark=mark, folder=tmp_path))
        mask = os.umask(0)
        os.umask(mask)
        assert (code, json.loads(out)) == (
            0,
            [str(tmp_path), mark, ["clipnoise", "where", "é", ""], mask],
        )


def test_a_request_that_is_cut_off_or_damaged_starts_nothing_and_holds_up_no_other(
    start: Start, owner: int
) -> None:
    whole = marshal.dumps((18, "/", ["exit", "0"], {}))
    for wrong in (whole[:-1], b"?" + whole):
        with socket.socket(socket.AF_UNIX) as cut:
            cut.connect(client.socket_name("exit", owner))
            socket.send_fds(cut, [b"\0"], client.STREAMS)
            cut.sendall(wrong)
            cut.shutdown(socket.SHUT_WR)
            assert cut.recv(1) == b""  # no child
    assert ended(start("exit", "3"))[0] == 3


def test_a_fault_and_a_kill_end_the_command_as_they_end_the_child(start: Start) -> None:
    code, _, err = ended(start("fail"))
    assert (code, err.splitlines()[-1]) == (1, "RuntimeError: broken")
    assert ended(start("die"))[0] == -signal.SIGKILL
    assert ended(start("exit", "0"))[0] == 0  # others are none the worse for it


def test_a_signal_to_the_command_reaches_the_child(start: Start) -> None:
    command = start("stop")
    assert command.stdout is not None
    command.stdout.readline()
    command.send_signal(signal.SIGTERM)
    assert ended(command)[0] == 75


def test_a_signal_before_the_child_is_known_reaches_it(
    start: Start, server: subprocess.Popen[bytes]
) -> None:
    assert ended(start("exit", "3"))[0] == 3
    server.send_signal(signal.SIGSTOP)
    command = start("stop")
    heard = (
        one for one in client.SIGNALS if signal.getsignal(one) != signal.SIG_IGN
    )  # not nohup's
    blocked = f"SigBlk:\t{sum(1 << (number - 1) for number in heard):016x}"
    until(lambda: blocked in Path(f"/proc/{command.pid}/status").read_text())  # until it is known
    command.send_signal(signal.SIGTERM)
    server.send_signal(signal.SIGCONT)
    assert ended(command)[0] in (-signal.SIGTERM, 75)  # without a handler yet, or with it


def test_a_signal_that_interrupts_no_system_call_reaches_the_child(owner: int) -> None:
    """So is one that comes just before the command waits; here another thread gets it."""
    before = {number: signal.getsignal(number) for number in client.SIGNALS}

    def answer(listener: socket.socket, child: subprocess.Popen[bytes]) -> None:
        with listener.accept()[0] as connection:
            for stream in socket.recv_fds(connection, 1, len(client.STREAMS))[1]:
                os.close(stream)
            marshal.load(connection.makefile("rb"))
            connection.sendall(b"%d\n" % child.pid)
            until(lambda: signal.getsignal(signal.SIGUSR1) != before[signal.SIGUSR1])
            time.sleep(0.1)  # the command waits now
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            with suppress(subprocess.TimeoutExpired):
                child.wait(10)
            connection.sendall(b"1\n" if child.poll() is None else b"75\n")

    with socket.socket(socket.AF_UNIX) as listener, subprocess.Popen(["sleep", "60"]) as child:
        listener.bind(client.socket_name("exit", owner))
        listener.listen()
        server = threading.Thread(target=answer, args=(listener, child), daemon=True)
        server.start()
        try:
            assert client.run_warm(["exit"], owner) == 75
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            child.kill()
            server.join()
        assert child.returncode == -signal.SIGUSR1


def test_a_signal_that_is_ignored_is_not_passed_on(start: Start) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        command = start("stop")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert command.stdout is not None
    child = int(command.stdout.readline())
    command.send_signal(signal.SIGHUP)
    command.send_signal(signal.SIGTERM)
    assert ended(command)[0] == 75
    until(lambda: not psutil.pid_exists(child))


def test_a_client_that_says_nothing_holds_up_no_other(start: Start, owner: int) -> None:
    with ExitStack() as silent:
        for _ in range(5):
            connection = silent.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(client.socket_name("exit", owner))
        assert ended(start("exit", "3"))[0] == 3


def test_a_child_does_not_outlive_its_command(start: Start) -> None:
    command = start("stop")
    assert command.stdout is not None
    child = int(command.stdout.readline())
    command.kill()
    until(lambda: not psutil.pid_exists(child))


def test_what_a_child_has_imported_is_there_for_the_next(start: Start) -> None:
    assert ended(start("import", "colorsys"))[1] == "False\n"
    assert ended(start("import", "colorsys"))[1] == "True\n"


SPEC = Path(__file__).parents[2] / "docs" / "run.yaml"
# What a run opens and calls after a warm process has prepared it.
PREPARED = """
import json, sys
from pathlib import Path
from clipnoise.cli.warm import prepare_training
words, spec, file = json.loads(sys.argv[1]), *map(Path, sys.argv[2:])
prepare_training(words, Path())
from clipnoise.privacy.calibration import find_calibration
from clipnoise.run.fingerprint import fingerprint
from clipnoise.run.spec import read_spec
opened, called = set(), set()
def audit(event, arguments):
    if event == "open":
        opened.add(str(arguments[0]))
sys.addaudithook(audit)
run = read_spec(spec)
fingerprint(run)
sys.setprofile(lambda frame, *_: called.add(frame.f_code.co_filename))
_ = find_calibration([file], run.budget).profile
sys.setprofile(None)
code = [name for name in opened if name.endswith(".py")]
print(json.dumps([len(code), any("accountants" in name for name in called)]))
"""


@pytest.mark.long
@pytest.mark.parametrize("text", [str(SPEC), read_spec(SPEC).to_json()], ids=["file", "text"])
def test_runs_share_what_was_read_of_their_code_and_computed_from_their_calibration(
    text: str, tmp_path: Path
) -> None:
    budget = read_spec(SPEC).budget
    assert budget is not None
    file = tmp_path / "it.json"
    calibrate(budget).write(file)

    def left(*words: str) -> list[object]:
        arguments = [json.dumps(words), str(SPEC), str(file)]
        done = subprocess.run(
            [sys.executable, "-c", PREPARED, *arguments], stdout=subprocess.PIPE, check=True
        )
        found: list[object] = json.loads(done.stdout)
        return found

    assert left("--spec", text, "--calibration", str(file), "--choice") == [0, False]
    file.with_suffix(SEAL).unlink()  # which says that the file has been verified
    read, accounted = left()
    assert read
    assert accounted


def test_a_wrong_spec_is_left_for_the_run_to_report() -> None:
    for text in ("{}", "{", "nowhere.yaml"):
        warm.prepare_training(["--spec", text], Path())


def test_a_wrong_calibration_is_left_for_the_run_to_report(tmp_path: Path) -> None:
    (tmp_path / "it.json").write_text("{")
    warm.prepare_training(["--calibration", "it.json"], tmp_path)


def test_a_child_ends_without_freeing_what_it_shares_but_prints_what_it_said(start: Start) -> None:
    assert ended(start("say")) == (0, "said\n", "logged\nend of thread\n")


def test_commands_run_at_the_same_time(start: Start) -> None:
    commands = [start("stop") for _ in range(3)]
    children = {int(command.stdout.readline()) for command in commands if command.stdout}
    assert len(children) == 3
    for command in commands:
        command.terminate()
    assert [ended(command)[0] for command in commands] == [75] * 3


def servers(owner: int) -> list[psutil.Process]:
    """Return the warm processes of an owner."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words: Sequence[str] = process.info["cmdline"] or []
        if any("serve(" in word and word.endswith(f", {owner})") for word in words):
            found.append(process)
    return found


def run_command(owner: int | str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *words],
        env={**os.environ, client.OWNER: str(owner)},
        text=True,
        capture_output=True,
        timeout=120,
    )


def test_the_first_command_starts_a_warm_process_that_ends_with_its_owner() -> None:
    with subprocess.Popen(["sleep", "600"]) as owner:
        plain = run_command("", "audit", "--help")
        both = [run_command(owner.pid, "audit", "--help") for _ in range(2)]
        (server,) = servers(owner.pid)
        assert server.num_threads() == 1
        owner.kill()
    assert all((one.returncode, one.stdout) == (0, plain.stdout) for one in both)
    until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.long
def test_after_many_runs_a_warm_process_is_as_small_as_after_a_few(
    owner: int, tmp_path: Path
) -> None:
    """CLIPNOISE_RUNS says how many; each has a seed of its own, and a calibration."""
    assert main(["data", "prepare", "digits", "--cache", str(tmp_path / "data")]) == 0
    values = {**yaml.safe_load(SPEC.read_text()), "dataset": "digits", "model": "logistic"}
    values["training"] = {"expected_batch_size": 50, "steps": 2, "evaluations": 1}
    run = from_mapping(values)
    assert run.budget is not None
    calibration.calibrate(run.budget).write(tmp_path / "it.json")
    words = ["--calibration", "it.json", "--device", "cpu", "--cache", "data", "--spec"]
    found: list[tuple[int, float]] = []
    seconds: list[float] = []
    environment = {**os.environ, client.OWNER: str(owner)}
    command = [str(Path(sys.executable).parent / "clipnoise"), "train", *words]
    for number in range(RUNS):
        begin = time.monotonic()
        spec = json.dumps({**values, "seed": number})
        subprocess.run([*command, spec], cwd=tmp_path, env=environment, check=True)
        seconds.append(time.monotonic() - begin)
        (server,) = [one for one in servers(owner) if one.ppid() == 1 or not one.children()]
        found.append((server.num_fds(), server.memory_full_info().uss / 2**20))
        if number % 100 == 99:
            print(
                f"{number + 1} runs: files, MB {found[-1]}; {statistics.median(seconds[-100:])} s"
            )
    assert not server.children()
    assert len(list(tmp_path.rglob("summary.json"))) == RUNS
    few, last = found[min(19, RUNS // 2)], found[-1]
    assert last[0] <= few[0] + 5  # a leak of one a run would be far more
    assert last[1] < few[1] + 5


def test_a_command_starts_as_usual_where_no_warm_process_can_be_had() -> None:
    result = run_command(2**22 + 1, "trian")
    assert (result.returncode, "Did you mean 'train'?" in result.stderr) == (2, True)


def test_an_edit_of_the_code_has_a_warm_process_of_its_own(
    owner: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "clipnoise" / "cli"
    package.mkdir(parents=True)
    source = package / "client.py"
    source.touch()
    monkeypatch.setattr(client, "__file__", str(source))
    before = client.socket_name("train", owner)
    assert client.socket_name("train", owner) == before
    os.utime(source, ns=(1, 1))
    assert client.socket_name("train", owner) != before
    assert client.socket_name("figure", owner) != client.socket_name("train", owner)
