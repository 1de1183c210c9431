"""Which runs a batch holds, on the disk: its job may start after the studies were edited."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from clipnoise.files import locked, write_json
from clipnoise.studies.batches import Batch

FILE = "batches/planned.json"  # below the results folder


def note(results: Path, batches: Mapping[str, Batch]) -> None:
    """Write down the runs of every batch that is not done, besides those noted before.

    Args:
        results: the results folder; where it cannot be written, jobs will say so.
        batches: by key.
    """
    now = {
        key: {"runs": [run.hash for run in batch.runs], "parallel": batch.parallel}
        for key, batch in batches.items()
        if not batch.alone and not _done(results, key)
    }
    path = results / FILE
    if not now:
        return
    with suppress(OSError), locked(path.with_suffix(".lock")):
        before = {key: one for key, one in noted(results).items() if not _done(results, key)}
        write_json(path, {**before, **now})


def noted(results: Path) -> dict[str, dict[str, Any]]:
    """Return the hashes of the runs of every batch that was noted, and how many train at a time."""
    try:
        found: dict[str, dict[str, Any]] = json.loads((results / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return found


def _done(results: Path, key: str) -> bool:
    return (results / "batches" / f"{key}.json").exists()
