"""A disk that is full, for tests of what is left on it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes; Python would cut short what it compiles, too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.dont_write_bytecode", True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
