"""Repeating finished runs: the same spec must give the same numbers again, bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path

from clipnoise.privacy.calibration import read_calibration
from clipnoise.run.job import run_job
from clipnoise.run.results import FINAL, read_run, run_folder
from clipnoise.run.spec import RunSpec, read_spec

MEASURED = ("seconds", "examples_per_second", "peak_memory_mb")  # differ from run to run


def repeatable(results: Path, spec: RunSpec) -> bool:
    """Return whether a run has completed, with noise that its seed determines."""
    files = None if spec.secure_noise else read_run(run_folder(results, spec))
    return files is not None and files.summary["status"] == "completed"


def repeat(
    spec: RunSpec, *, results: Path, cache: Path, weights: Path, device: str
) -> dict[str, tuple[str, str]]:
    """Train a finished run again, elsewhere, and compare everything but times and memory.

    Args:
        spec: the run as a study plans it; its tuned settings are those that the result has.
        results: the results folder, of which nothing is changed.
        cache, weights, device: as for `run_job`.

    Returns:
        What differs: the number before and now, by its name and evaluation step.
    """
    folder = run_folder(results, spec)
    before, made = read_run(folder), read_spec(folder / "spec.yaml")
    assert before is not None
    key = None if made.budget is None else made.budget.key
    calibration = read_calibration(results / "calibration" / f"{key}.json") if key else None
    with tempfile.TemporaryDirectory() as name:
        elsewhere = Path(name)
        run_job(made, calibration, results=elsewhere, cache=cache, weights=weights, device=device)
        after = read_run(run_folder(elsewhere, made))
    assert after is not None
    pairs = {
        f"{column} at step {row['step']}": (str(row[column]), str(again[column]))
        for row, again in zip(before.metrics, after.metrics, strict=True)
        for column in row
        if column not in MEASURED
    }
    first, second = before.summary["final"], after.summary["final"]
    pairs |= {f"final {name}": (str(first.get(name)), str(second.get(name))) for name in FINAL}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
