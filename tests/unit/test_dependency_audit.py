"""The dependency audit never reports a package as sound that it could not ask about."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOUND = {"name": "numpy", "version": "2.0", "vulns": []}
SKIPPED = {"name": "scipy", "skip_reason": "not found"}
VULNERABLE = {
    "name": "torch",
    "version": "2.0",
    "vulns": [{"id": "CVE-1", "fix_versions": ["2.1"]}, {"id": "CVE-2", "fix_versions": []}],
}


@pytest.fixture(scope="module")
def verdict() -> Callable[[str, str], tuple[int, str]]:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "envs" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[[str, str], tuple[int, str]] = module.verdict
    return found


def report(*packages: object) -> str:
    return json.dumps({"dependencies": packages})


def test_every_vulnerability_is_named_and_fails(verdict: Callable[..., tuple[int, str]]) -> None:
    code, text = verdict(report(SOUND, VULNERABLE), "")
    assert code == 1
    assert "torch 2.0: CVE-1 (fixed in 2.1)" in text
    assert "torch 2.0: CVE-2 (fixed in no version yet)" in text
    assert "2 of 2" in text


def test_sound_packages_pass(verdict: Callable[..., tuple[int, str]]) -> None:
    assert verdict(report(SOUND), "") == (0, "1 of 1 locked packages audited")


def test_packages_without_an_answer_are_counted(verdict: Callable[..., tuple[int, str]]) -> None:
    code, text = verdict(report(SOUND, SKIPPED), "")
    assert code == 0
    assert "1 of 2 locked packages audited" in text
    assert "NOT AUDITED: 1 packages" in text
    assert verdict(report(SKIPPED, VULNERABLE), "")[0] == 1


def test_without_a_network_nothing_is_claimed(verdict: Callable[..., tuple[int, str]]) -> None:
    code, text = verdict("", "Traceback\nConnectionError: no such host\n")
    assert code == 0
    assert text.startswith("NOT AUDITED")
    assert "no such host" in text
