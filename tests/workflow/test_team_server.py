"""MLflow for a team: 32 writers at once lose nothing, and no password is shown."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from recorded_runs import record, spec
from team_server import MEMBER, Team, programs, team
from tracked import STUDY, curve, expected_curve, finish, note_some, shown, training

from clipnoise.tracking import Membership, note, sync
from clipnoise.tracking.store import connect

REQUIRED = os.environ.get("CLIPNOISE_REQUIRE_POSTGRES") == "1"

pytestmark = [
    pytest.mark.workflow,
    pytest.mark.long,
    pytest.mark.skipif(
        programs() is None and not REQUIRED,
        reason="no PostgreSQL here (apt-get install postgresql)",
    ),
]

WRITERS = 32
PROGRAM = str(Path(sys.executable).parent / "clipnoise")


@pytest.fixture(scope="module")
def server() -> Iterator[Team]:
    with team() as running:
        yield running


@pytest.fixture
def member(server: Team, monkeypatch: pytest.MonkeyPatch) -> Team:
    """The server, with a member's credentials in the environment as MLflow wants them."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", MEMBER)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", server.password)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "300")  # so many at once on few cores
    return server


def test_the_documentation_starts_the_server_that_is_tested_here(server: Team) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    (command,) = re.findall(r"^mlflow server (.*)$", page, re.MULTILINE)
    options = re.compile(r"--[a-z-]+")
    assert options.findall(command) == options.findall(" ".join(server.command))
    assert all(f"{name}=" in page for name in server.settings)
    assert all(line.partition(" = ")[0] in page for line in server.configuration.splitlines())


def leaks(server: Team, text: bytes) -> list[str]:
    return [secret for secret in server.secrets if secret.encode() in text]


def test_who_has_no_password_is_refused(server: Team) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{server.address}/api/2.0/mlflow/experiments/get?experiment_id=0")
    assert refused.value.code == 401


def test_writers_at_once_lose_nothing(member: Team, tmp_path: Path) -> None:
    """Each has a results folder of its own, and all have runs of one study."""
    folders = [tmp_path / str(number) for number in range(WRITERS)]
    for number, folder in enumerate(folders):
        record(folder, run := spec(seed=number))
        note(folder, {run.hash: Membership(study=STUDY)}, {STUDY: "What it asks."})
    sync(folders[0])  # makes the experiments

    def write(folder: Path) -> None:
        sync(folder)

    import mlflow.tracking.client  # noqa: F401 - once, for all writers

    forks = multiprocessing.get_context("fork")
    writers = [forks.Process(target=write, args=(folder,)) for folder in folders[1:]]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * (WRITERS - 1)
    found = shown(tmp_path)
    assert sorted(run.data.tags["seed"] for run in found) == sorted(map(str, range(WRITERS)))
    assert all(len(curve(tmp_path, run)) == 5 for run in found)
    files = {item.path for item in connect(tmp_path).list_artifacts(found[0].info.run_id)}
    assert {"spec.yaml", "summary.json", "metrics.csv"} <= files
    assert len(list(member.artefacts.rglob("summary.json"))) >= WRITERS
    everything = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert leaks(member, everything) == []


def test_a_run_is_followed_through_the_server(member: Team, tmp_path: Path) -> None:
    run = spec(seed=WRITERS)
    with training(tmp_path, run) as evaluations:
        for metrics in evaluations:
            note_some(tmp_path, run, [metrics])
            sync(tmp_path)
        (found,) = (one for one in shown(tmp_path) if one.data.tags["hash"] == run.hash)
        assert found.info.status == "RUNNING"
        assert curve(tmp_path, found) == expected_curve(run)
        finish(tmp_path, run)
    assert sync(tmp_path).completed == 1


def test_credentials_in_an_address_are_never_written_or_printed(
    server: Team, tmp_path: Path
) -> None:
    settings = {**os.environ, "MLFLOW_TRACKING_URI": server.with_credentials()}
    study = tmp_path / "study.yaml"
    study.write_text(
        "title: One\npanels: {p: {datasets: [digits], models: [logistic], seeds: [1],\n"
        "  methods: [{id: sgd, learning_rate: 0.1}],\n"
        "  training: {expected_batch_size: 10, steps: 1}}}\nreport: [{kind: table, panels: p}]\n"
    )
    commands: list[bytes] = []
    for words in (["mlflow-sync", "--study", str(study)], ["mlflow-sync"], ["doctor"]):
        results = () if words == ["doctor"] else ("--results", str(tmp_path / "results"))
        done = subprocess.Popen(
            [PROGRAM, *words, *results],
            env=settings,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        while done.poll() is None:
            commands.append(command_lines())
            time.sleep(0.5)
        assert done.stdout is not None
        said = done.stdout.read()
        assert leaks(server, said) == [], words
    assert leaks(server, b"".join(commands)) == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert leaks(server, b"".join(path.read_bytes() for path in files)) == []
    assert leaks(server, server.log.read_bytes()) == []


def command_lines() -> bytes:
    """Return the command line of every process, as anybody on the machine may read it."""
    lines: list[str] = []
    for process in psutil.process_iter(["cmdline"]):
        lines += process.info["cmdline"] or []
    return "\n".join(lines).encode()
