"""Faults of MLflow's store during an update: a full disk, a database that restarts.

Everything goes through the command line, as a user or Snakemake calls it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import record, spec
from team_server import MEMBER, programs, team

from clipnoise.tracking import Membership, note

pytestmark = pytest.mark.workflow

PROGRAM = str(Path(sys.executable).parent / "clipnoise")
RUNS = 12


def start(results: Path, settings: dict[str, str], **options: Any) -> subprocess.Popen[str]:
    """Start to update MLflow with all runs of a results folder."""
    return subprocess.Popen(
        [PROGRAM, "mlflow-sync", "--results", str(results)],
        env={**os.environ, **settings},
        cwd=results,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=400)
    return process.returncode, said


def prepare(results: Path, settings: dict[str, str]) -> None:
    """Make the store, and then the files of some runs."""
    results.mkdir()
    runs = [spec(seed=seed) for seed in range(RUNS)]
    note(results, {run.hash: Membership(study="one") for run in runs}, {"one": "One"})
    code, said = ended(start(results, settings))
    assert code == 0, said
    for run in runs:
        record(results, run)


def limited(megabytes: float) -> Callable[[], None]:
    size = int(megabytes * 2**20)
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.long
def test_a_store_that_is_full_is_named_and_filled_when_there_is_room(tmp_path: Path) -> None:
    """SQLite cannot grow its file, as on a full disk."""
    results = tmp_path / "results"
    prepare(results, {})
    full = (results / "mlflow.db").stat().st_size / 2**20
    code, said = ended(start(results, {}, preexec_fn=limited(full)))
    assert (code, "disk I/O error" in said.splitlines()[-1]) == (1, True), said
    code, said = ended(start(results, {}))
    assert code == 0, said
    code, said = ended(start(results, {}))
    assert (code, f"{RUNS} unchanged" in said) == (0, True), said


@pytest.mark.long
@pytest.mark.skipif(
    programs() is None and os.environ.get("CLIPNOISE_REQUIRE_POSTGRES") != "1",
    reason="no PostgreSQL here (apt-get install postgresql)",
)
def test_a_database_that_restarts_while_two_clients_write_loses_nothing(tmp_path: Path) -> None:
    """Each client has a results folder; what fails is named, and the next call completes it."""
    with team() as server:
        settings = {
            "MLFLOW_TRACKING_URI": server.address,
            "MLFLOW_TRACKING_USERNAME": MEMBER,
            "MLFLOW_TRACKING_PASSWORD": server.password,
        }
        folders = [tmp_path / name for name in ("one", "two")]
        for folder in folders:
            prepare(folder, settings)
        clients = [start(folder, settings) for folder in folders]
        while not list(server.artefacts.rglob("summary.json")):
            assert any(client.poll() is None for client in clients), "they wrote nothing"
            time.sleep(0.05)
        assert all(client.poll() is None for client in clients), "they had finished before"
        server.database.stop()
        time.sleep(1)
        server.database.start()
        for client in clients:
            code, said = ended(client)
            assert code in (0, 1), said
            assert "Traceback" not in said
            assert server.password not in said
        for folder in folders:
            code, said = ended(start(folder, settings))
            assert code == 0, said
            code, said = ended(start(folder, settings))
            assert (code, f"{RUNS} unchanged" in said) == (0, True), said
        assert len(list(server.artefacts.rglob("summary.json"))) >= 2 * RUNS
