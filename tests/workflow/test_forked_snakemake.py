"""A forked Snakemake that takes too long ends, and the next one works."""

from __future__ import annotations

import os
from pathlib import Path

import forked_snakemake
import pytest

pytestmark = pytest.mark.workflow


def test_after_a_command_was_killed_the_next_one_is_run(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"no end after 0\.01 s: \['--version'\]"):
        forked_snakemake.run(["--version"], tmp_path, os.environ, timeout=0.01)
    assert forked_snakemake.run(["--version"], tmp_path, os.environ).returncode == 0
