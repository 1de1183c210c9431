"""The plug-in for pytest judges a loop in a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TESTS = f"""
import sys

sys.path.insert(0, {str(ROOT / "tests" / "privacy")!r})
from loops import HalfNoise, Plain, claim, examples


def test_honest(dp_audit):
    assert dp_audit(Plain(), claim(), examples()).level == "quick"


def test_mistaken(dp_audit):
    dp_audit(HalfNoise(), claim(), examples())
"""


@pytest.mark.long
def test_a_refuted_loop_fails_its_test_with_the_reason_and_an_honest_one_passes(
    tmp_path: Path,
) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["clipnoise.audit.loops.plugin"]')
    (tmp_path / "test_mine.py").write_text(TESTS)
    words = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--rootdir"]
    done = subprocess.run(
        [*words, str(tmp_path), str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "the claim is refuted\nsensitivity: one example moves" in done.stdout
