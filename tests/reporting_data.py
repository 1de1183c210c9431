"""An invented study in the form of its two tables, for the tests of reports."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from clipnoise.fields import parse
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.profile import privacy_profile
from clipnoise.report.items import FigureItem, ItemData
from clipnoise.studies.columns import (
    ALL,
    CURVE_COLUMNS,
    IDENTITY,
    RUN_COLUMNS,
    table,
    to_parquet,
)
from clipnoise.studies.items import item_kinds

SEEDS = (1, 2, 3, 4, 5, 6)
STEPS = (0, 40, 80, 120, 160, 200)
LEVELS = {
    "sgd": 0.96,
    "dp-sgd": 0.86,
    "dp-adam": 0.84,
    "dp-adambc": 0.885,
    "stp-adam": 0.87,
    "dp-pmlf": 0.89,
    "dp-pmlf-wo-lf": 0.87,
    "lp-dpsgd": 0.88,
}
FILTERS = {
    "a {} b {1}": ([], [1.0]),
    "a {-0.5} b {0.5}": ([-0.5], [0.5]),
    "a {-0.9} b {0.1}": ([-0.9], [0.1]),
    "a {-0.9} b {0.15, -0.05}": ([-0.9], [0.15, -0.05]),
    "a {-0.99} b {0.01}": ([-0.99], [0.01]),
}
STUDY = {
    "title": "Quickstart on handwritten digits",
    "description": (
        "One method per family at equal privacy on the 1,797 handwritten digits that scikit-learn "
        "carries, with two models and two budgets; an ablation of DP-PMLF, and a sweep over "
        "low-pass filters. Small data, real numbers, a few minutes on two cores."
    ),
    "panels": {
        name: {
            **{"datasets": ["digits"], "models": ["logistic"], "seeds": [1]},
            "methods": [{"id": "sgd", "learning_rate": 1}],
            "training": {"expected_batch_size": 100, "steps": 200},
        }
        for name in ("comparison", "ablation", "filters")
    },
    "report": [
        {
            "kind": "table",
            "panels": "comparison",
            "title": "Test accuracy at equal privacy",
            "caption": "All methods share the sampling rate, the number of steps and the seeds.",
        },
        {
            "kind": "accuracy-vs-epsilon",
            "panels": "comparison",
            "title": "Accuracy against the privacy budget",
            "caption": "Mean and one standard deviation over seeds.",
        },
        {"kind": "curves", "panels": "comparison", "title": "Accuracy along training"},
        {"kind": "ablation", "panels": "ablation", "title": "What momentum and filter add"},
        {"kind": "table", "panels": "ablation", "title": "Ablation in numbers"},
        {"kind": "filter-sweep", "panels": "filters", "title": "Filter coefficients"},
        {"kind": "table", "panels": "filters", "title": "Filter sweep in numbers"},
    ],
}


def privacy_columns(budget: str) -> dict[str, Any]:
    """Return what a completed private run says about its privacy, by column of its runs."""
    if budget.endswith("non-private"):
        return {"claim": "non-private"}
    name, _, value = budget.partition("=")
    return {
        "claim": "guarantee",
        "epsilon": float(value) if name == "eps" else "",
        "delta": 1 / 1257,
        "noise_multiplier": 2.1874,
        "epsilon_achieved": float(value) - 4e-4 if name == "eps" else 3.2,
        "accountant": "rdp",
        "sampler": "poisson",
        "adjacency": "add-remove",
        "sensitivity": 0.005,
        "clip_norm": 0.5,
        "sampling_rate": 100 / 1257,
        "steps": 251,
        "examples": 1257,
        "profile": privacy_profile(
            Participation(sampling_rate=1, steps=1), "pld", 5 / float(value)
        ),
    }


def run_row(**changes: Any) -> dict[str, Any]:
    """Return one completed run as a row of its table; `changes` replaces columns."""
    identity = {
        "study": "quickstart",
        "panel": "comparison",
        "dataset": "digits",
        "model": "logistic",
        "method": "dp-sgd",
        "budget": "eps=1",
        "seed": 1,
        **{k: v for k, v in changes.items() if k in RUN_COLUMNS},
    }
    identity.setdefault("label", identity["method"])
    text = "/".join(str(identity[k]) for k in ("dataset", "model", "method", "label", "budget"))
    row: dict[str, Any] = {
        "hash": hashlib.sha256(f"{text}/{identity['seed']}".encode()).hexdigest()[:12],
        "folder": text,
        "status": "completed",
        "test_accuracy": 0.9,
        "test_loss": 0.3,
        "training_seconds": 3.2,
        "cpu_seconds": 3.0,
        "seconds": 4.25,
        "examples_per_second": 6600.0,
        "peak_memory_mb": 412.0,
        "parameters": 650,
        "engine": "vmap",
        "learning_rate": 2.0,
        "hyperparameters": json.dumps(
            {
                "id": identity["method"],
                "learning_rate": 2.0,
                "clip_norm": 0.5,
                "betas": [0.9, 0.999],
            }
        ),
        "git_commit": "4f1c2d9a8e7b6c5d4f3e2a1b0c9d8e7f6a5b4c3d",
        "torch": "2.13.0",
        "host": "node-1",
        "cpu": "AMD EPYC 7763 64-Core Processor",
        "started": "2026-11-02T10:00:00+00:00",
        "finished": "2026-11-02T10:00:04+00:00",
        "train_examples": 1257,
        "validation_examples": 180,
        "test_examples": 360,
    }
    row |= privacy_columns(str(identity["budget"]))
    row |= identity
    if row["status"] in ("missing", "corrupt"):
        kept = {*list(RUN_COLUMNS)[:13], "learning_rate", "hyperparameters"}
        row = {k: v for k, v in row.items() if k in kept}
    if row["status"] != "completed":
        row = {k: v for k, v in row.items() if k not in ("test_accuracy", "test_loss")}
        row.setdefault("reason", "train loss is NaN at step 37")
    return row


def quickstart() -> list[dict[str, Any]]:
    """Return the runs of a study like the embedded one, all completed."""
    source = random.Random(1)
    rows = []

    def add(level: float, **identity: Any) -> None:
        gain = 0.06 if identity["budget"] == "eps=8" else 0.0
        for seed in SEEDS:
            accuracy = round(level + gain + source.gauss(0, 0.006), 6)
            rows.append(run_row(**identity, seed=seed, test_accuracy=accuracy))

    for model, lift in (("logistic", 0.0), ("cnn-small", 0.02)):
        for method in ("sgd", "dp-sgd", "dp-adam", "dp-adambc", "stp-adam", "dp-pmlf"):
            for budget in ["non-private"] if method == "sgd" else ["eps=1", "eps=8"]:
                add(LEVELS[method] + lift, model=model, method=method, budget=budget)
    labels = {
        "dp-sgd": "neither",
        "dp-pmlf-wo-lf": "without low-pass filter",
        "lp-dpsgd": "without per-sample momentum",
        "dp-pmlf": "DP-PMLF",
    }
    for method, label in labels.items():
        for budget in ("eps=1", "eps=8"):
            add(
                LEVELS[method] + 0.02,
                panel="ablation",
                model="cnn-small",
                method=method,
                label=label,
                budget=budget,
            )
    for rank, (label, (a, b)) in enumerate(FILTERS.items()):
        add(
            0.84 + 0.02 * min(rank, 4 - rank),
            panel="filters",
            method="lp-dpsgd",
            label=label,
            budget="eps=1",
            hyperparameters=json.dumps({"id": "lp-dpsgd", "filter_a": a, "filter_b": b}),
        )
    return rows


def curve_rows(runs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return evaluations that rise to each completed run's final accuracy."""
    rows = []
    for run in runs:
        if run["status"] != "completed":
            continue
        identity = {name: run.get(name, "") for name in IDENTITY}
        for step in STEPS:
            share = 1 - 2.718 ** (-step / 45)
            accuracy = 0.1 + (float(run["test_accuracy"]) - 0.1) * share
            losses = {"test_loss": 1.0, "train_loss": 1 - accuracy}
            rows.append({**identity, "step": step, "test_accuracy": accuracy, **losses})
    return rows


def write_table(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows as Parquet; what a row lacks, and "", is empty. Nested values are plain data."""
    given = [
        {
            name: parse(ALL[name].kind, value) if isinstance(value, dict) else value
            for name, value in row.items()
            if value != ""
        }
        for row in rows
    ]
    path.write_bytes(to_parquet(table({name: ALL[name] for name in columns}, given)))
    return path


def item_data(
    kind: str,
    runs: Any,
    curves: Any = None,
    *,
    panels: tuple[str, ...] = ("comparison",),
    titles: tuple[str, ...] = (),
    others: Mapping[str, tuple[str, ...]] | None = None,
    beside: Path | None = None,
    **options: Any,
) -> ItemData:
    """Return what a table or figure of a kind is made from; `beside` is a published table."""
    item: Any = item_kinds()[kind](panels=panels, **options)
    return ItemData(
        item=item,
        titles=titles or panels,
        every_run=runs,
        every_curve=runs if curves is None else curves,
        others={name: runs[runs["panel"].isin(other)] for name, other in (others or {}).items()},
        other_titles={
            option: ", ".join(f"{axis} {label}" for axis, label in labels.items())
            for option, labels in item.compared.items()
        },
        published=beside,
    )


def draw_figure(data: ItemData) -> bytes:
    """Return the figure of an item as SVG."""
    assert isinstance(data.item, FigureItem)
    return data.item.svg(data)


def drawn(kind: str, runs: Any, curves: Any = None, **options: Any) -> Any:
    """Return the figure of a kind, as matplotlib has it."""
    from clipnoise.report.figures import canvas

    data: Any = item_data(kind, runs, curves, **options)
    with canvas.look():
        return data.item.draw(data)


def write_study(
    folder: Path, rows: list[dict[str, Any]], study: Mapping[str, Any] = STUDY
) -> tuple[Path, Path, Path]:
    """Write a study file and its two tables; return the three paths."""
    path = folder / "quickstart.yaml"
    path.write_text(yaml.safe_dump(dict(study), sort_keys=False))
    runs = write_table(folder / "runs.parquet", RUN_COLUMNS, rows)
    return path, runs, write_table(folder / "curves.parquet", CURVE_COLUMNS, curve_rows(rows))
