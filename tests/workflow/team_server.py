"""An MLflow server for a team: with PostgreSQL, proxied artefacts and a password."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clipnoise.tracking.ui import NO_JOBS

ADMINISTRATOR, MEMBER = "administrator", "member"


@dataclass
class Database:
    """A PostgreSQL server of its own.

    Attributes:
        command, user: what it is started with, and as whom.
        port, log: where it listens, and what it prints.
        address: of the database, with its password.
    """

    command: list[str | Path]
    user: str | None
    port: int
    log: Path
    address: str
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, user=self.user, cwd=self.log.parent, stdout=log, stderr=log
            )
        _wait_for(self._process, lambda: _answers(self.port), "PostgreSQL", self.log)

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)  # fast shutdown: it does not wait for clients
        self._process.wait(30)


@dataclass(frozen=True)
class Team:
    """A running server.

    Attributes:
        address: without credentials.
        password: of the member that writes runs.
        secrets: every password there is, none of which may be seen anywhere.
        log: what the server prints.
        artefacts: where the server keeps them.
        command, settings, configuration: what it was started with.
        database: behind it.
    """

    address: str
    password: str
    secrets: tuple[str, ...]
    log: Path
    artefacts: Path
    command: list[str]
    settings: dict[str, str]
    configuration: str
    database: Database

    def with_credentials(self) -> str:
        """Return the address as a careless user would write it, with the password in it."""
        scheme, _, place = self.address.partition("://")
        return f"{scheme}://{MEMBER}:{self.password}@{place}"


def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, Debian's newest first."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which("initdb")
    folders += [Path(found).resolve().parent] if found else []
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@contextmanager
def team() -> Iterator[Team]:
    """Start PostgreSQL as an unprivileged user and MLflow before it, in a temporary folder."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clipnoise-team-")))
        folder.chmod(0o755)
        passwords = tuple(secrets.token_hex(12) for _ in range(3))
        database = stack.enter_context(_database(folder, passwords[0]))
        yield stack.enter_context(_server(folder, database, passwords))


@contextmanager
def _database(folder: Path, password: str) -> Iterator[Database]:
    binaries, port = programs(), _free_port()
    assert binaries is not None
    user = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
    data, secret = folder / "postgres", folder / "postgres.password"
    data.mkdir(mode=0o700)
    secret.write_text(password)
    if user is not None:
        shutil.chown(data, user)
        shutil.chown(secret, user)
    options = ["--username=mlflow", "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync"]
    subprocess.run(
        [binaries / "initdb", "--pgdata", data, *options, "--encoding=UTF8", "--locale=C"],
        user=user,
        cwd=data,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    secret.unlink()
    settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": ""}
    words = [f"-c{name}={value}" for name, value in {**settings, "fsync": "off"}.items()]
    address = f"postgresql://mlflow:{password}@127.0.0.1:{port}/postgres"
    database = Database(
        [binaries / "postgres", "-D", data, *words], user, port, folder / "postgres.log", address
    )
    database.start()
    try:
        yield database
    finally:
        database.stop()


@contextmanager
def _server(folder: Path, database: Database, passwords: tuple[str, ...]) -> Iterator[Team]:
    """Start MLflow as docs/operations.md says: secrets in files and the environment only."""
    port, log, artefacts = _free_port(), folder / "mlflow.log", folder / "artefacts"
    address = f"http://127.0.0.1:{port}"
    configuration = folder / "auth.ini"
    configuration.touch(mode=0o600)
    configuration.write_text(
        "[mlflow]\n"
        "default_permission = EDIT\n"
        f"database_uri = {database.address}\n"
        f"admin_username = {ADMINISTRATOR}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        "auth_cache_ttl_seconds = 60\n"
    )
    settings = {
        "MLFLOW_BACKEND_STORE_URI": database.address,
        "MLFLOW_AUTH_CONFIG_PATH": str(configuration),
        "MLFLOW_AUTH_ADMIN_PASSWORD": passwords[1],
        "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(16),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        **NO_JOBS,
    }
    words = ["server", "--app-name", "basic-auth", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--workers", "2", "--artifacts-destination", str(artefacts)]
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *words],
            env={**os.environ, **settings},
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        _wait_for(server, lambda: _healthy(address), "MLflow", log)
        _add_member(address, passwords[1], passwords[2])
        text = configuration.read_text()
        yield Team(
            address, passwords[2], passwords, log, artefacts, words, settings, text, database
        )
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _add_member(address: str, administrator: str, password: str) -> None:
    code = (
        "import os; from mlflow.server import get_app_client\n"
        "client = get_app_client('basic-auth', tracking_uri=os.environ['ADDRESS'])\n"
        f"client.create_user({MEMBER!r}, os.environ['PASSWORD'])"
    )
    settings = {
        "ADDRESS": address,
        "PASSWORD": password,
        "MLFLOW_TRACKING_USERNAME": ADMINISTRATOR,
        "MLFLOW_TRACKING_PASSWORD": administrator,
    }
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **settings}, check=True)


def _wait_for(server: subprocess.Popen[bytes], ready: object, what: str, log: Path) -> None:
    deadline = time.monotonic() + 300
    while not ready():  # type: ignore[operator]
        running = server.poll() is None and time.monotonic() < deadline
        assert running, f"{what} did not start:\n{log.read_text()[-3000:]}"
        time.sleep(0.2)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5):
            return True
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
