"""Result files: spec.yaml, metrics.csv, summary.json and run.log of one run."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipnoise.data.measures import measured_columns
from clipnoise.errors import UserError
from clipnoise.fields import to_plain
from clipnoise.files import csv_text, finite, read_json, read_text, write_atomically, write_json
from clipnoise.privacy.claim import PrivacyStatement, state, with_search
from clipnoise.run.fingerprint import fingerprint, own_files
from clipnoise.run.outcome import Metrics, Outcome
from clipnoise.run.procedure import Procedure
from clipnoise.run.published import MANIFEST, PublishedModel, publish
from clipnoise.run.spec import RunSpec, from_mapping, to_mapping, write_spec

if TYPE_CHECKING:
    from clipnoise.privacy.calibration import Calibration
    from clipnoise.run.provenance import Provenance

Summary = Mapping[str, Any]  # the content of summary.json

SUMMARY, SPEC, METRICS, MODEL = "summary.json", "spec.yaml", "metrics.csv", "model"
FINAL = (
    "test_accuracy",
    "test_loss",
    "validation_accuracy",
    "validation_loss",
    "train_accuracy",
    "train_loss",
)
# What every summary has, and of which type.
FORM: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("hash", "status", "digest"), (str,)),
    **dict.fromkeys(("final", "privacy", "spec", "data"), (dict,)),
    "seconds": (int, float),
}


def run_folder(results: Path, spec: RunSpec) -> Path:
    """Return the folder of a run's files below the results folder."""
    return results / "runs" / spec.folder


def privacy_statement(procedure: Procedure, calibration: Calibration | None) -> PrivacyStatement:
    """Return what is claimed about a run, and about the search behind it if that is paid for."""
    statement, law = statement_of_run(procedure, calibration), procedure.search_law
    return statement if law is None else with_search(statement, law)


def statement_of_run(procedure: Procedure, calibration: Calibration | None) -> PrivacyStatement:
    """Return what is claimed about a run alone; without a calibration nothing is private."""
    privacy, method = procedure.privacy, procedure.method
    if privacy is None or calibration is None:
        return PrivacyStatement(claim="non-private")
    # A method may clip to another norm in another phase: the statement is about the largest. Where
    # releases decide the norm it is known for no step but the first, and nothing is stated.
    steps = range(1, procedure.steps + 1)
    clip_norms = [method.at(step, procedure.steps).clip_norm_at(step) for step in steps]
    known = [norm for norm in clip_norms if norm is not None]
    return state(
        procedure.mechanism,
        privacy,
        calibration,
        private=procedure.protects,
        clip_norm=max(known) if known and len(known) == len(clip_norms) else None,
        caveat=procedure.caveat(),
        class_weights=procedure.training.class_weights,
    )


def write_run(
    folder: Path,
    spec: RunSpec,
    outcome: Outcome,
    calibration: Calibration | None,
    provenance: Provenance,
) -> Summary:
    """Write a run's files, each whole or not at all, the summary last.

    A strict release holds no number that depends on private data and that ε does not cover.

    An older summary is removed first, so that no summary ever lies beside another run's files.

    Returns:
        The summary as it was written.

    Raises:
        OSError: the folder cannot be written; no summary appears then.
    """
    last = outcome.metrics[-1].row() if outcome.metrics else {}
    more, chance = measured_columns(spec.metrics), outcome.chance
    statement = privacy_statement(spec, calibration).with_profile(calibration)
    summary = {
        "hash": spec.hash,
        "folder": spec.folder,
        "spec": to_mapping(spec),
        "fingerprint": fingerprint(spec),
        "plugins": own_files(spec),
        "status": outcome.status,
        "reason": outcome.reason,
        "steps_done": outcome.steps_done,
        "final": {name: last.get(name, math.nan) for name in (*FINAL, *more)},
        "privacy": to_plain(statement),
        "data": {} if spec.strict else outcome.provenance,
        "engine": outcome.engine,
        "physical_batch_size": None if spec.strict else outcome.physical_batch_size,
        "bytes_per_step": outcome.bytes_per_step,
        "resumed": outcome.resumed,
        "seconds": outcome.seconds_before + provenance.seconds,
        **(dict.fromkeys(outcome.cost) if spec.strict else outcome.cost),
        "peak_memory_mb": last.get("peak_memory_mb", math.nan),
        "parameters": outcome.parameters,
        "scale_spread": outcome.scale_spread,
        "diagnostics": outcome.diagnostics and asdict(outcome.diagnostics),
        "chance": {} if chance is None else {"name": chance.name, **chance.levels},
        "confusion": {} if outcome.confusion is None else asdict(outcome.confusion),
        **({} if outcome.correct is None else {"correct": outcome.correct}),
        **provenance.as_mapping(),
    }
    (folder / SUMMARY).unlink(missing_ok=True)
    if outcome.tensors is not None:
        measured = {
            name: value
            for name in (*FINAL, *more)
            if name.startswith("test_") and (value := last.get(name, math.nan)) is not None
        }
        # The spec says how many trials there were, which ε with tuning needs to stay secret.
        alone = statement_of_run(spec, calibration).with_profile(calibration)
        model = PublishedModel(
            tensors=outcome.tensors, statement=alone, spec=spec, metrics=measured
        )
        summary["model"] = publish(folder / MODEL, model)
    table, text = _table(outcome.metrics, more), write_spec(spec)
    summary["spec_file"] = _digest(text)
    summary["digest"] = digest_of(finite(summary), table)
    write_atomically(folder / SPEC, text)
    write_atomically(folder / METRICS, table)
    write_json(folder / SUMMARY, summary)
    return summary


def _table(metrics: Sequence[Metrics], more: Sequence[str]) -> str:
    """Return metrics.csv; only where the learning rate follows a schedule it has a column.

    The columns of the metrics that the run was asked for come last.
    """
    columns = [field.name for field in fields(Metrics) if field.name != "measured"]
    if all(row.learning_rate is None for row in metrics):
        columns.remove("learning_rate")
    every = [*columns, *more]
    rows = [row.row() for row in metrics]
    return csv_text(every, [{name: row[name] for name in every} for row in rows])


def digest_of(summary: Summary, table: str) -> str:
    """Return 16 hex digits over the text of metrics.csv and a summary without its digest."""
    values = {name: value for name, value in summary.items() if name != "digest"}
    return _digest(json.dumps(values, sort_keys=True) + table)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class RunFiles:
    """A run's result as read back.

    Attributes:
        summary: the content of summary.json.
        metrics: one mapping of column to text per evaluation.
    """

    summary: Summary
    metrics: list[dict[str, str]]


def read_run(folder: Path) -> RunFiles | None:
    """Read the result files in a run's folder; None if the run has not finished.

    Raises:
        UserError: a file is damaged; the message names it and says how to recompute it.
    """
    summary = read_summary(folder)
    if summary is None:
        return None
    path = folder / SUMMARY
    try:
        text = read_text(folder / "metrics.csv")
        noted = summary.get("spec_file")  # older results have none
        changed = noted is not None and noted != _digest(read_text(folder / SPEC))
    except (OSError, ValueError) as error:
        raise UserError(damaged(path, str(error))) from None
    if summary["digest"] != digest_of(summary, text):
        raise UserError(damaged(path, "it or metrics.csv has changed since the run"))
    if changed:
        raise UserError(damaged(path, f"{SPEC} has changed since the run"))
    if "model" in summary and not (folder / MODEL / MANIFEST).is_file():
        raise UserError(damaged(path, "its model is missing"))
    return RunFiles(summary, list(csv.DictReader(io.StringIO(text))))


def read_summary(folder: Path) -> Summary | None:
    """Read only a run's summary, without checking its digest; None if it has not finished.

    Raises:
        UserError: the file is damaged; the message names it and says how to recompute it.
    """
    path = folder / SUMMARY
    try:
        summary = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(damaged(path, str(error))) from None
    if not isinstance(summary, dict):
        raise UserError(damaged(path, "it is no mapping"))
    wrong = [name for name, kinds in FORM.items() if not isinstance(summary.get(name), kinds)]
    if wrong or summary["hash"] != folder.name:
        reason = f"no {', '.join(sorted(wrong))}" if wrong else "it belongs to another run"
        raise UserError(damaged(path, reason))
    return summary


def set_aside(folder: Path, reason: str) -> str:
    """Rename a damaged summary, so that the next call of Snakemake repeats the run.

    Returns:
        The reason, and whether renaming was possible: read-only results stay where they are.
    """
    try:
        (folder / SUMMARY).replace(folder / "summary.damaged.json")
    except OSError:
        return f"{reason} It cannot be set aside."
    return f"{reason} It is set aside."


def verify_epsilon(spec: RunSpec, files: RunFiles) -> Calibration | None:
    """Compute the ε of a run from its σ and its budget again, and refuse a result with another.

    Under a numerical accountant, which takes seconds for each, only the last ε is computed.

    Args:
        spec: the run as planned, or as its summary has it.
        files: its result.

    Returns:
        What was verified; None where nothing is protected.

    Raises:
        UserError: names the file, σ, the ε that is stated and the ε that σ costs.
    """
    from clipnoise.privacy.accountants.poisson import NUMERICAL
    from clipnoise.privacy.calibration import Calibration

    made = spec if spec.tuning is None else from_mapping(files.summary["spec"])  # with the choice
    budget, stated = made.budget, files.summary["privacy"]
    if budget is None or stated["epsilon"] is None:
        return None
    spent = {int(row["step"]): float(row["epsilon"]) for row in files.metrics if row["epsilon"]}
    if budget.accountant in NUMERICAL:
        budget, spent = replace(budget, evaluation_steps=()), {}
    calibration = Calibration(
        budget=budget,
        noise_multiplier=stated["noise_multiplier"],
        epsilon=stated["epsilon"],
        spent=spent,
        adjacency=budget.adjacency,
    )
    try:
        calibration.verify()
    except UserError as error:
        path = Path(spec.folder) / SUMMARY
        raise UserError(f"{path}: {error} Delete it, and the next call repeats the run.") from None
    return calibration


def damaged(path: Path, reason: str) -> str:
    """Return the sentence that says what is wrong with a result file and what to do about it."""
    return f"{path}: damaged result file ({reason}). Delete it, and the next call repeats the run."
