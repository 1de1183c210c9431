"""A results folder with an MLflow store, for tests of tracking."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tracked import STUDY

from clipnoise.tracking import note
from clipnoise.tracking.store import connect


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """MLflow is set up by environment variables: give each test its own."""
    before = dict(os.environ)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return an empty database; its migrations take over a second."""
    results = tmp_path_factory.mktemp("empty")
    connect(results)
    return (results / "mlflow.db").read_bytes()


@pytest.fixture
def results(tmp_path: Path, empty_store: bytes) -> Path:
    """Return a results folder with an empty store, which knows of a study without runs."""
    (tmp_path / "mlflow.db").write_bytes(empty_store)
    note(tmp_path, descriptions={STUDY: "What it asks."})
    return tmp_path
