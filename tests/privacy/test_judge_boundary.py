"""The judge refutes in a file whatever the privacy boundary refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import judged_leaks
import leaks
import pytest
from judging import judged, refuted_by

from clipnoise.core.clipping import ClippedSum


@pytest.mark.quick(leak=[leaks.LEAKS[0]])
@pytest.mark.parametrize("leak", leaks.LEAKS, ids=lambda leak: leak.__name__)
def test_what_the_boundary_refuses_is_refuted_in_a_file(
    leak: Callable[[ClippedSum], object], tmp_path: Path, cache: Path
) -> None:
    result = judged(judged_leaks.moved(leak), tmp_path, cache)
    assert result.verdict == "refuted"
    assert refuted_by(result) & {"boundary", "discovery"}
