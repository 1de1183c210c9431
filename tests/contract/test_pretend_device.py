"""Whole runs on a device that is not the CPU end where those on the CPU do, bit for bit.

PyTorch learns of a device before its first backward pass, and does not forget it. So the tests run
in a process of their own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).with_name("on_pretend_device.py")


@pytest.mark.parametrize("chosen", ["not long", pytest.param("long", marks=pytest.mark.long)])
def test_runs_on_a_pretended_device_are_those_on_the_cpu(chosen: str) -> None:
    words = ["-p", "no:xdist", "-p", "no:cacheprovider", "-q", "-m", chosen, str(TESTS)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
