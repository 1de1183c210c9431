"""The UI: MLflow's own pages over the local store, served on loopback only."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clipnoise.tracking.store import SETTINGS, StoreError, connect, our_experiments, tracking_uri
from clipnoise.tracking.view import means_of, page

STARTS_WITHIN = 120.0  # seconds; usually 6 to 20
STOPS_WITHIN = 10.0  # seconds
PR_SET_PDEATHSIG = 1
# MLflow runs evaluations of language models as jobs, for which it starts eight processes.
NO_JOBS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


@contextmanager
def serve(results: Path, *, port: int, log: Path | None = None) -> Iterator[str]:
    """Run MLflow's pages while the block runs, and leave no process behind; yield their address.

    Args:
        results: the results folder.
        port: on 127.0.0.1.
        log: file for the server's output; None drops it.

    Raises:
        StoreError: another program has the port, or the server did not start.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise StoreError(
                f"port {port}: {error.strerror}. Choose another (--port, or PORT=5001 of make), or "
                "end what has it, which may be MLflow's pages of an earlier call."
            ) from None
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port)]
    # Passed by environment, because other users can read arguments and an address may hold a
    # password.
    settings = {**SETTINGS, **NO_JOBS, "MLFLOW_BACKEND_STORE_URI": tracking_uri(results)}
    with open(log or os.devnull, "ab") as stream:  # noqa: PTH123 - devnull is no Path
        server = subprocess.Popen(
            [*command, "--workers", "1"],
            env={**os.environ, **settings},
            stdout=stream,
            stderr=stream,
            start_new_session=True,  # its own process group, so that its workers end with it
            preexec_fn=end_with_parent,
        )
        try:
            _wait(server, address)
            yield address
        finally:
            _end(server)


def end_with_parent() -> None:
    """Let Linux end this process when its parent ends, however that happens."""
    with suppress(OSError, AttributeError):  # another system
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def study_pages(results: Path, address: str) -> dict[str, str]:
    """Return the pages of the runs and of the means that there are, for every study in the store.

    Means are made by a whole workflow or by `clipnoise mlflow-sync --study`, which may be to come.
    """
    client = connect(results)
    known = {item.name: item.experiment_id for item in our_experiments(client)}
    for means in {*map(means_of, known)} & {*known}:
        if not client.search_runs([known[means]], max_results=1):
            del known[means]
    return {name: f"{address}/{page(known[name])}" for name in sorted(known)}


def _wait(server: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.2)
    if server.poll() is not None:
        raise StoreError(f"{address}: the MLflow server ended with status {server.returncode}.")
    raise StoreError(
        f"{address}: the MLflow server has not answered within {STARTS_WITHIN:.0f} s. The machine "
        "may be busy: try again later."
    )


def _end(server: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
        except ProcessLookupError:
            break
        try:
            server.wait(STOPS_WITHIN)
        except subprocess.TimeoutExpired:
            continue
    server.wait()
