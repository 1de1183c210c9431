"""Collect: read the result files of a study into two tidy tables."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipnoise.data.measures import COLUMNS, column_of, measured_columns
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.privacy.claim import STATEMENT_NUMBERS, STATEMENT_WORDS
from clipnoise.run.choice import read_choice, tuned_values
from clipnoise.run.outcome import Chance, Predicted, Recorded
from clipnoise.run.results import (
    FINAL,
    SUMMARY,
    RunFiles,
    Summary,
    damaged,
    read_run,
    run_folder,
    verify_epsilon,
)
from clipnoise.run.spec import to_mapping
from clipnoise.studies.audits import found_by_audits
from clipnoise.studies.columns import (
    CURVE_COLUMNS,
    MEASURED,
    RUN_COLUMNS,
    SPLITS,
    FoundChoice,
    Scored,
    require_types,
    table,
)
from clipnoise.studies.grid import PlannedRun
from clipnoise.studies.study import Study
from clipnoise.studies.tuning import epsilon_with_tuning

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

Row = Mapping[str, object]  # of one of the tables, by column

# By column. The target is in the identity already, where a planned run has it, too.
PRIVACY = {
    "epsilon_achieved" if name == "epsilon" else name: name
    for name in (*STATEMENT_WORDS, *STATEMENT_NUMBERS)
    if name != "epsilon_target"
}
TIMES = ("training_seconds", "cpu_seconds")  # in steps; results of earlier versions have none
COST = ("seconds", "examples_per_second", "peak_memory_mb", "parameters", "engine")


def collect(study: Study, results: Path) -> tuple[pa.Table, pa.Table]:
    """Read every run of a study and return its two tables.

    Args:
        study: the study; every planned run gets a row, also if its result is missing or damaged.
        results: the results folder.

    Returns:
        One row per planned run, and one row per evaluation of every finished run.
    """
    rows: list[Row] = []
    curves: list[Row] = []
    audits = found_by_audits(results, (run.spec.method.id for run in study.runs))
    for run in study.runs:
        row, points = rows_of(study, run, results, audits)
        rows.append(row)
        curves.extend(points)
    asked = {name for run in study.runs for name in run.spec.metrics}
    more = {name: MEASURED[name] for name in measured_columns(asked)}
    tested = {name: column for name, column in more.items() if name in COLUMNS}
    return table({**RUN_COLUMNS, **tested}, rows), table({**CURVE_COLUMNS, **more}, curves)


def rows_of(
    study: Study, run: PlannedRun, results: Path, audits: Mapping[str, str]
) -> tuple[Row, list[Row]]:
    """Return the row of a planned run, and one for each of its evaluations.

    Args:
        study: to which the run belongs.
        run: its result may be missing or damaged.
        results: the results folder.
        audits: what an audit found, by method.
    """
    identity, sizes = _identity(study.name, run), run.spec.dataset.sizes()
    planned = {
        **identity,
        "folder": run.spec.folder,
        "data": run.spec.dataset.id,
        **{f"{split}_examples": sizes[split] for split in SPLITS},
        "passes_per_step": run.spec.passes,
        "audit": audits.get(run.spec.method.id),
        "rank_by": column_of(run.rank_by) if run.rank_by else None,
        "evaluated_examples": limit.examples if (limit := run.spec.training.evaluate) else None,
        **_settings(run, to_mapping(run.spec)),
    }
    folder = run_folder(results, run.spec)
    try:
        files = read_run(folder)
        if files is None:
            return {**planned, "status": "missing", "reason": "no result file yet"}, []
        calibration = verify_epsilon(run.spec, files)
        settings = _settings(run, files.summary["spec"])
        tuning = _tuning(study, run, files.summary, results)
        profile = None if calibration is None else calibration.profile
        row = {**planned, **_finished(files), **settings, **tuning, "profile": profile}
        points = list(_points(identity, files))
        for one in (row, *points):
            require_types(one)
        return row, points
    except UserError as error:
        reason = str(error)
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # whatever it lacks
        reason = damaged(folder / SUMMARY, repr(error))
    return {**planned, "status": "corrupt", "reason": reason}, []


def _identity(study: str, run: PlannedRun) -> Row:
    spec = run.spec
    return {
        "study": study,
        "panel": run.panel,
        "dataset": run.dataset,
        "model": run.model,
        "method": spec.method.id,
        "label": run.label,
        "budget": spec.budget_label,
        "epsilon": spec.privacy.epsilon if spec.privacy and not spec.counterfactual else None,
        "seed": spec.seed,
        "hash": spec.hash,
    }


def _settings(run: PlannedRun, spec: Mapping[str, Any]) -> Row:
    """Return the hyper-parameters, except those that are tuned and not chosen yet."""
    tuning = spec.get("tuning") or {"parameters": (), "chosen": True}
    tuned = tuned_values(spec, tuning["parameters"])
    values = {**spec["method"], **{n: v for n, v in tuned.items() if v is not None}}
    if not tuning["chosen"]:
        values = {name: value for name, value in values.items() if name not in tuned}
    planned, rate = run.spec.tuning, values.get("learning_rate")
    return {
        "learning_rate": rate.get("peak") if isinstance(rate, dict) else rate,  # of a schedule
        "hyperparameters": json.dumps(values),
        "tuned": json.dumps(tuned) if tuned and tuning["chosen"] else None,
        "configurations": planned.configurations if planned else None,
        "tuning_runs": planned.runs if planned else None,
        "charge": run.tune.charged if run.tune else None,
        "search": run.search,
    }


def _tuning(study: Study, run: PlannedRun, summary: Summary, results: Path) -> Row:
    """Return cost and outcome of the search behind a finished run, from the file of its choice."""
    if run.tune is None or run.spec.tuning is None:
        return {}
    path = results / "tuning" / f"{run.spec.tuning.key}.json"
    if not path.is_file():
        return {"tuning_remark": "The file of the choice is missing."}
    choice = read_choice(path)
    epsilon = epsilon_with_tuning(run.tune.charged, summary["privacy"], choice)
    known = None if math.isnan(epsilon) else epsilon
    found = FoundChoice(
        metric=choice.metric,
        best=tuple(
            Scored(hyperparameters=json.dumps(one.values), score=one.mean)
            for one in choice.ranked[:2]
            if one.mean is not None
        ),
        edges=tuple(choice.edges),
        seeds=len({spec.seed for spec in study.searches[run.spec.tuning.key].configurations[0]}),
    )
    return {
        "epsilon_with_tuning": known,
        "tuning_remark": choice.remark,
        "choice": found,
    }


def _finished(files: RunFiles) -> Row:
    summary = files.summary
    privacy, hardware = summary["privacy"], summary["hardware"]
    seen, told = summary.get("diagnostics"), summary.get("confusion")
    levels = dict(summary.get("chance") or {})
    return {
        "status": summary["status"],
        "reason": summary["reason"],
        **{column: privacy.get(name) for column, name in PRIVACY.items()},
        **{name: summary["final"].get(name) for name in FINAL},
        **{name: summary["final"][name] for name in COLUMNS if name in summary["final"]},
        **{name: summary.get(name) for name in TIMES},
        **{name: summary[name] for name in COST},
        "git_commit": summary["git_commit"],
        "fingerprint": summary.get("fingerprint"),
        "plugins": "; ".join(f"{k} {v}" for k, v in summary.get("plugins", {}).items()),
        "data_digest": _data_digest(summary["data"]),
        "torch": summary["versions"].get("torch"),
        **{name: hardware.get(name) for name in ("host", "cpu", "gpu")},
        "started": summary["started"],
        "finished": summary["finished"],
        "scale_spread": summary.get("scale_spread"),
        "diagnostics": parse(Recorded, seen, file=SUMMARY, key="diagnostics") if seen else None,
        "chance": Chance(name=levels.pop("name"), levels=levels) if levels else None,
        "confusion": parse(Predicted, told, file=SUMMARY, key="confusion") if told else None,
        "correct": summary.get("correct"),
    }


def _data_digest(data: Mapping[str, str]) -> str:
    """Return 12 hex digits over all checksums of what a run read, or nothing without any."""
    sums = {name: text for name, text in data.items() if "sha256" in name}
    text = json.dumps(sums, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12] if sums else ""


def _points(identity: Row, files: RunFiles) -> Iterator[Row]:
    for row in files.metrics:
        values = {name: float(text) if text else None for name, text in row.items()}
        spent, step = values.pop("epsilon"), int(row["step"])
        yield {**values, **identity, "step": step, "epsilon_spent": spent}
