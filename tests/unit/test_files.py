"""Files appear complete or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from clipnoise.files import write_atomically, write_json


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, "old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
    assert path.read_text() == "old"


def test_json_has_no_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": [float("nan"), float("inf"), 1.5], "b": None})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [None, None, 1.5], "b": None}
