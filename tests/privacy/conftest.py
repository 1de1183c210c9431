"""The data that tests of audits and of the judge read, and how tests of the judge start."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest
from forked_worker import ForkedWorker
from judging import REAL

from clipnoise.audit.judge import remote


@pytest.fixture(autouse=True)
def forked_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the workers of the judge, but for a whole judgement and for that of one method."""
    name = getattr(request.node, "callspec", None) and request.node.callspec.params.get("name")
    if name != REAL and "whole" not in request.fixturenames:
        forked = SimpleNamespace(Popen=ForkedWorker, DEVNULL=subprocess.DEVNULL)
        monkeypatch.setattr(remote, "subprocess", forked)
