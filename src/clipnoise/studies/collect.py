"""Collect: one scan over a study's result files into two tidy tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from clipnoise.engine.results import FINAL, RunFiles, read_run, run_folder
from clipnoise.engine.spec import to_mapping
from clipnoise.errors import UserError
from clipnoise.studies.study import PlannedRun, Study

IDENTITY = (
    "study",
    "part",
    "dataset",
    "model",
    "method",
    "label",
    "budget",
    "epsilon",
    "seed",
    "hash",
)
PRIVACY = (
    "claim",
    "delta",
    "noise_multiplier",
    "epsilon_achieved",
    "accountant",
    "sampler",
    "adjacency",
    "unit",
    "sensitivity",
    "microbatch_size",
    "caveat",
    "clip_norm",
    "sampling_rate",
    "steps",
    "examples",
)
COST = ("seconds", "examples_per_second", "peak_memory_mb", "parameters", "engine")
SETTINGS = ("learning_rate", "filter_a", "filter_b", "hyperparameters")
ORIGIN = ("git_commit", "torch", "host", "cpu", "gpu", "started", "finished")
RUN_COLUMNS = (*IDENTITY, "folder", "status", "reason", *PRIVACY, *FINAL, *COST, *SETTINGS, *ORIGIN)
CURVE_COLUMNS = (
    *IDENTITY,
    "step",
    "epsilon_spent",
    "train_loss",
    "train_accuracy",
    "validation_loss",
    "validation_accuracy",
    "test_loss",
    "test_accuracy",
    "examples_per_second",
    "peak_memory_mb",
    "seconds",
)


def collect(study: Study, results: Path) -> tuple[str, str]:
    """Read every run of a study and return its two tables.

    Args:
        study: the study; every planned run gets a row, missing and damaged ones too.
        results: the results folder.

    Returns:
        CSV texts: one row per planned run, and one row per evaluation of every finished run.
    """
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for run in study.runs:
        row, points = _read(study.name, run, results)
        rows.append(row)
        curves.extend(points)
    return _csv(RUN_COLUMNS, rows), _csv(CURVE_COLUMNS, curves)


def _read(
    study: str, run: PlannedRun, results: Path
) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    identity = _identity(study, run)
    planned = {**identity, "folder": run.spec.folder, **_settings(run)}
    try:
        files = read_run(run_folder(results, run.spec))
    except UserError as error:
        return {**planned, "status": "corrupt", "reason": str(error)}, iter(())
    if files is None:
        return {**planned, "status": "missing", "reason": "no result file yet"}, iter(())
    return {**planned, **_finished(files)}, _points(identity, files)


def _identity(study: str, run: PlannedRun) -> dict[str, Any]:
    spec = run.spec
    return {
        "study": study,
        "part": run.part,
        "dataset": spec.dataset.id,
        "model": spec.model.id,
        "method": spec.method.id,
        "label": run.label,
        "budget": spec.budget,
        "epsilon": spec.privacy.epsilon if spec.privacy else None,
        "seed": spec.seed,
        "hash": spec.hash,
    }


def _settings(run: PlannedRun) -> dict[str, Any]:
    values = to_mapping(run.spec)["method"]
    taps = {name: json.dumps(values[name]) for name in ("filter_a", "filter_b") if name in values}
    return {
        "learning_rate": values.get("learning_rate"),
        **taps,
        "hyperparameters": json.dumps(values),
    }


def _finished(files: RunFiles) -> dict[str, Any]:
    summary = files.summary
    privacy, hardware = summary["privacy"], summary["hardware"]
    return {
        "status": summary["status"],
        "reason": summary["reason"],
        **{name: privacy.get(name) for name in PRIVACY},
        "epsilon_achieved": privacy["epsilon"],
        **{name: summary["final"].get(name) for name in FINAL},
        **{name: summary[name] for name in COST},
        "git_commit": summary["git_commit"],
        "torch": summary["versions"].get("torch"),
        **{name: hardware.get(name) for name in ("host", "cpu", "gpu")},
        "started": summary["started"],
        "finished": summary["finished"],
    }


def _points(identity: Mapping[str, Any], files: RunFiles) -> Iterator[dict[str, Any]]:
    for row in files.metrics:
        values = {name: value for name, value in row.items() if name != "epsilon"}
        yield {**values, **identity, "epsilon_spent": row["epsilon"]}


def _csv(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**dict.fromkeys(columns), **row} for row in rows)
    return stream.getvalue()
