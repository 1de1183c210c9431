"""The process keeps the memory it frees if the C library supports that, and runs without it too."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from clipnoise.run.memory import keep_freed_memory

FAULTS = """
import resource
{first}
def fill():
    block = bytearray(64 * 2**20)
    del block
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
KEEP = "from clipnoise.run.memory import keep_freed_memory; assert keep_freed_memory()"


def page_faults(first: str) -> int:
    code = FAULTS.format(first=first)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the options are glibc's")
def test_memory_that_is_used_again_is_not_asked_for_again() -> None:
    assert page_faults(KEEP) < 0.2 * page_faults("")


def test_a_c_library_without_the_options_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()
