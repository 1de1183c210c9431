"""The view: how a run's result files look in MLflow. Plain data, no MLflow."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from clipnoise.run.results import RunFiles, read_run

LAYOUT = "1"  # raise it when names, tags or metrics change: the next sync then rewrites every run
UNPLANNED = "unplanned"
ARTEFACTS = ("spec.yaml", "summary.json", "metrics.csv", "run.log")
LARGEST_ARTEFACT = 5_000_000  # bytes
CURVES = (
    "epsilon",
    "train_loss",
    "train_accuracy",
    "validation_loss",
    "validation_accuracy",
    "test_loss",
    "test_accuracy",
    "examples_per_second",
    "peak_memory_mb",
)

Point = tuple[str, float, int, int]  # metric, value, milliseconds since 1970, step


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What the studies say about a run; a spec alone does not know.

    Attributes:
        study: the home study, the first one that plans the run: its MLflow experiment.
        studies: every study that plans it.
        label: what the home study calls the method.
        panel: the panel of the home study.
    """

    study: str = UNPLANNED
    studies: tuple[str, ...] = ()
    label: str | None = None
    panel: str | None = None


@dataclass(frozen=True)
class View:
    """A run as MLflow shows it.

    Attributes:
        experiment: the experiment's name.
        name: the run's name.
        tags: to filter and group by.
        params: the spec, flattened.
    """

    experiment: str
    name: str
    tags: dict[str, str]
    params: dict[str, str]


@dataclass(frozen=True)
class FinishedView(View):
    """A finished run as MLflow shows it.

    Attributes:
        digest: of the result files; equal digests show equal content.
        curves: the metrics table as points.
        finals: what a run is compared by, one point each.
        status: MLflow's word: FINISHED, or FAILED for a run that diverged, so that it stands out.
        started, finished: milliseconds since 1970.
        rows: number of evaluations.
        artefacts: small files to keep with the run.
    """

    digest: str
    curves: list[Point]
    finals: list[Point]
    status: str
    started: int
    finished: int
    rows: int
    artefacts: list[Path]


def planned_view(spec: Mapping[str, Any], run_hash: str, membership: Membership) -> View:
    """Return what MLflow shows of a run before it has a result.

    Args:
        spec: the spec as plain data.
        run_hash: its content hash.
        membership: what the studies say about it.
    """
    method, model = spec["method"]["id"], spec["model"]["id"]
    label = membership.label or method
    dataset, budget = spec["dataset"]["id"], budget_label(spec)
    tags = {
        "study": membership.study,
        **{f"study.{name}": "yes" for name in (membership.study, *membership.studies)},
        "panel": membership.panel or "",
        "method": method,
        "label": label,
        "dataset": dataset,
        "model": model,
        "budget": budget,
        "seed": str(spec["seed"]),
        "setting": f"{label} · {dataset} · {model} · {budget}",  # all but the seed, to group by
        "hash": run_hash,
        "status": "running",
        "mlflow.source.name": "clipnoise",
        "mlflow.source.type": "JOB",
    }
    name = f"{label} · {model} · {budget} · seed {spec['seed']}"
    return View(membership.study, name, tags, dict(_flatten(spec)))


def finished_view(folder: Path, membership: Membership) -> FinishedView:
    """Return what MLflow shows of a finished run.

    Args:
        folder: the run's folder.
        membership: what the studies say about it.

    Raises:
        UserError: a result file is damaged; the message names it.
        FileNotFoundError: the run has not finished.
    """
    digest = _digest(folder)  # first: if the files change meanwhile, the next sync notices
    files = read_run(folder)
    if files is None:
        raise FileNotFoundError(f"{folder / 'summary.json'}: the run has not finished.")
    summary = files.summary
    planned = planned_view(summary["spec"], summary["hash"], membership)
    commit = summary.get("git_commit") or "unknown"
    tags = {
        "status": summary["status"],
        "reason": summary.get("reason") or "",
        "claim": summary["privacy"]["claim"],
        "git_commit": commit,
        "mlflow.source.git.commit": commit,
    }
    started, finished = _milliseconds(summary["started"]), _milliseconds(summary["finished"])
    return FinishedView(
        experiment=planned.experiment,
        name=planned.name,
        tags={**planned.tags, **tags},
        params=planned.params,
        digest=digest,
        curves=[point for row in files.metrics for point in _row_points(row, started)],
        finals=list(_finals(files, finished)),
        status="FINISHED" if summary["status"] == "completed" else "FAILED",
        started=started,
        finished=finished,
        rows=len(files.metrics),
        artefacts=[path for name in ARTEFACTS if _is_small(path := folder / name)],
    )


def budget_label(spec: Mapping[str, Any]) -> str:
    """Return the privacy budget for a person: `ε=1`, `σ=0.5` or `non-private`."""
    privacy = spec.get("privacy")
    if privacy is None:
        return "non-private"
    if privacy.get("epsilon") is not None:
        return f"ε={privacy['epsilon']:g}"
    return f"σ={privacy['noise_multiplier']:g}"


def points(row: Mapping[str, Any], milliseconds: int) -> Iterator[Point]:
    """Return one evaluation as points; what is empty or not finite is no point.

    Args:
        row: column of metrics.csv → number or text.
        milliseconds: when it was taken, since 1970.
    """
    step = int(row["step"])
    for name in CURVES:
        value = _finite(row.get(name))
        if value is not None:
            yield name, value, milliseconds, step


def _row_points(row: Mapping[str, Any], started: int) -> Iterator[Point]:
    return points(row, started + round(1000 * (_finite(row.get("seconds")) or 0.0)))


def _finals(files: RunFiles, milliseconds: int) -> Iterator[Point]:
    summary, privacy = files.summary, files.summary["privacy"]
    # A diverged run has none, so that no mean over seeds in the UI counts it.
    quality = summary["final"] if summary["status"] == "completed" else {}
    values = {
        **{f"final_{name}": value for name, value in quality.items()},
        "final_epsilon": privacy.get("epsilon"),
        "epsilon_target": privacy.get("epsilon_target"),
        "noise_multiplier": privacy.get("noise_multiplier"),
        "seconds": summary.get("seconds"),
        "parameters": summary.get("parameters"),
    }
    step = int(summary.get("steps_done") or 0)
    for name, value in values.items():
        number = _finite(value)
        if number is not None:
            yield name, number, milliseconds, step


def _finite(value: Any) -> float | None:
    if value is None or value == "":
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{prefix}{name}", text


def _digest(folder: Path) -> str:
    content = hashlib.sha256(LAYOUT.encode())
    for name in ("spec.yaml", "metrics.csv", "summary.json"):
        path = folder / name
        content.update(path.read_bytes() if path.exists() else b"")
        content.update(b"\0")
    return content.hexdigest()[:16]


def _milliseconds(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def _is_small(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= LARGEST_ARTEFACT
