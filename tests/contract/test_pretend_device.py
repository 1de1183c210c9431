"""Whole runs on a device that is not the CPU end where those on the CPU do, bit for bit.

PyTorch learns of a device before its first backward pass, and does not forget it. So the tests run
in a process of their own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # whole runs, in a process of their own
TESTS = Path(__file__).with_name("on_pretend_device.py")


def test_runs_on_a_pretended_device_are_those_on_the_cpu() -> None:
    words = ["-p", "no:xdist", "-p", "no:cacheprovider", "-q", str(TESTS)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
