"""The view: how a run, and a study's page, look in MLflow. Plain data, no MLflow."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from textwrap import shorten
from typing import Any

from clipnoise.data.measures import (
    ACCURACY,
    MEASURES,
    column_of,
    higher_is_better,
    measured_columns,
)
from clipnoise.errors import UserError
from clipnoise.fields import parse, to_plain
from clipnoise.files import read_bytes
from clipnoise.methods.base import method_class
from clipnoise.privacy.counterfactual import Counterfactual
from clipnoise.run.choice import in_words
from clipnoise.run.outcome import Metrics
from clipnoise.run.progress import is_training, read_progress
from clipnoise.run.results import SPEC, SUMMARY, RunFiles, read_run, verify_epsilon
from clipnoise.run.spec import TRAINING, from_mapping

# Raise it when params, metrics or artefacts change: the next sync then rewrites every run. Names
# and tags are compared with the store at every sync, whatever the digest.
LAYOUT = "2"
UNPLANNED = "unplanned"
TUNING = "tuning"  # tuning runs are shown as a panel of this name
LONGEST_TRIED = 150  # characters; MLflow's databases take 250 of a name
LOG = "run.log"
ARTEFACTS = (SPEC, SUMMARY, "metrics.csv", LOG)
LARGEST_ARTEFACT = 5_000_000  # bytes
NOT_TAKEN = re.compile(r"[^\w/.\- :]")  # in the name of a param or a tag
ADJACENCY = "add-remove"  # ε under any other adjacency is marked and not compared
SPENT = ("epsilon", "epsilon_target", "delta", "noise_multiplier")
SECTIONS = {  # curves that are not of losses and accuracies
    "epsilon": "privacy/epsilon_by_step",
    "examples_per_second": "resources/examples_per_second",
    "peak_memory_mb": "resources/peak_memory_mb",
}
CURVES = [
    *(one.name for one in fields(Metrics) if one.name not in ("step", "seconds", "measured")),
    *measured_columns(MEASURES),
]

Point = tuple[str, float, int, int]  # metric, value, milliseconds since 1970, step


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The studies that plan a run, which its spec does not contain."""

    study: str = UNPLANNED  # the home study, the first that plans the run: its MLflow experiment
    studies: tuple[str, ...] = ()  # every study that plans it
    label: str | None = None  # the home study's label for the method
    panel: str | None = None  # of the home study


@dataclass(frozen=True, kw_only=True)
class View:
    """The state of a run as MLflow shows it, while it trains or after it has finished."""

    experiment: str  # its name
    name: str  # of the run
    tags: dict[str, str]  # to filter and group by
    params: dict[str, str]  # the spec, flattened
    started: int  # milliseconds since 1970
    rows: tuple[list[Point], ...] = ()  # the points of each evaluation
    status: str = "RUNNING"  # or KILLED, FINISHED, or FAILED if it diverged, so that it stands out
    finished: int | None = None  # milliseconds since 1970
    finals: tuple[Point, ...] = ()  # what finished runs are compared by
    artefacts: tuple[Path, ...] = ()  # small files to keep with the run
    digest: str = ""  # of what it shows: equal for equal content


def planned_view(
    spec: Mapping[str, Any],
    run_hash: str,
    membership: Membership,
    started: int,
    warning: str = "",
) -> View:
    """Return the view of a run that starts.

    Args:
        spec: as plain data.
        run_hash: its content hash.
        membership: the studies that plan it.
        started: milliseconds since 1970.
        warning: the watermark of its home study's report.
    """
    method, model = spec["method"]["id"], spec["model"]["id"]
    label = membership.label or method
    dataset, budget = spec["dataset"]["id"], budget_label(spec)
    tries = tried(spec) if membership.panel == TUNING else ""
    setting = setting_name(label, dataset, model, budget, tries)
    tags = {
        "study": membership.study,
        **{
            f"study.{NOT_TAKEN.sub('', name)}": "yes"
            for name in (membership.study, *membership.studies)
        },
        "panel": membership.panel or "",
        "method": method,
        "label": label,
        "dataset": dataset,
        "model": model,
        "budget": budget,
        "seed": str(spec["seed"]),
        "setting": setting,  # all but the seed
        "warning": warning,
        "hash": run_hash,
        "status": "running",
        "mlflow.source.name": "clipnoise",
        "mlflow.source.type": "JOB",
    }
    return View(
        experiment=membership.study,
        name=_run_name(tags),
        tags=tags,
        params=dict(flatten(spec)),
        started=started,
    )


def setting_name(label: str, dataset: str, model: str, budget: str, apart: str = "") -> str:
    """Return what runs that differ in the seed only, and their mean, are called.

    Args:
        label: of the method.
        dataset, model: their names.
        budget: for a reader.
        apart: what tells the setting from others that are called the same; empty for nothing.
    """
    return " · ".join(filter(None, (label, dataset, model, budget, apart)))


def with_remarks(name: str, tags: Mapping[str, str], runs: str = "") -> str:
    """Return a name with what keeps its numbers from being compared with others, in brackets.

    Args:
        name: of a run or a mean.
        tags: of the same; any may be missing.
        runs: how many a mean is of, where some are missing.
    """
    claim, adjacency = tags.get("claim", ""), tags.get("adjacency", "")
    said = claim in tags["budget"]  # a budget may say itself that it is non-private
    remarks = [
        claim if claim in ("nominal", "non-private") and not said else "",
        f"{adjacency} adjacency" if adjacency not in ("", ADJACENCY) else "",
        runs,
        "not evidence" if tags.get("warning") else "",
    ]
    given = ", ".join(filter(None, remarks))
    return f"{name} ({given})" if given else name


def _run_name(tags: Mapping[str, str]) -> str:
    return with_remarks(f"{tags['setting']} · seed {tags['seed']}", tags)


def tried(spec: Mapping[str, Any]) -> str:
    """Return what a tuning run tries, in words: what is not as its method or nothing else has it.

    A spec does not say what of it is tuned, so this names all that its study may have chosen.
    """
    values = {name: value for name, value in spec["method"].items() if name != "id"}
    with suppress(UserError):  # a method that is no longer known here
        options = fields(method_class(spec["method"]["id"]))
        usual = {one.name: to_plain(one.default) for one in options if one.default is not MISSING}
        values = {name: value for name, value in values.items() if usual.get(name) != value}
    lengths = {name: spec["training"].get(name) for name in TRAINING}
    return shorten(in_words(values | lengths), LONGEST_TRIED, placeholder=" …")


def run_view(folder: Path, membership: Membership, warning: str = "") -> View | None:
    """Return the view of a run from its folder; None where there is nothing to show.

    A job that trains a run again goes before the result that it will replace; a result goes before
    what a job left that was stopped.

    Args:
        folder: of the run's files.
        membership: the studies that plan it.
        warning: the watermark of its home study's report.

    Raises:
        UserError: a file is damaged; the message names it.
    """
    training = is_training(folder)
    if not training and (folder / SUMMARY).exists():
        return finished_view(folder, membership, warning)
    progress = read_progress(folder)
    if progress is None:
        return None
    started = _milliseconds(progress.started)
    planned = planned_view(progress.spec, progress.hash, membership, started, warning)
    status = "running" if training else "interrupted"
    return replace(
        planned,
        tags={**planned.tags, "status": status},
        rows=_rows(progress.metrics, started),
        status="RUNNING" if training else "KILLED",
        digest=f"{started}-{status}-{len(progress.metrics)}",
    )


def rows_shown(digest: str, view: View) -> int | None:
    """Return how many rows of a view the digest of a run that is not whole stands for.

    None means that it does not belong to a run that the view continues.
    """
    found = re.fullmatch(rf"{view.started}-[a-z]+-([0-9]+)", digest)
    return int(found[1]) if found is not None and int(found[1]) <= len(view.rows) else None


def finished_view(folder: Path, membership: Membership, warning: str = "") -> View:
    """Return the view of a finished run from its folder.

    Args:
        folder: of its result files.
        membership: the studies that plan it.
        warning: the watermark of its home study's report.

    Raises:
        UserError: a result file is damaged; the message names it.
        FileNotFoundError: the run has not finished.
    """
    digest = _digest(folder)  # before reading: if the files change now, the next sync notices
    files = read_run(folder)
    if files is None:
        raise FileNotFoundError(f"{folder / SUMMARY}: the run has not finished.")
    summary = files.summary
    _verify(files)
    started = _milliseconds(summary["started"])
    finished = started + round(1000 * summary["seconds"])  # the clock may have been set back
    planned = planned_view(summary["spec"], summary["hash"], membership, started, warning)
    commit = summary.get("git_commit") or "unknown"
    tags = {
        **planned.tags,
        "status": summary["status"],
        "reason": summary.get("reason") or "",
        "claim": summary["privacy"]["claim"],
        "adjacency": summary["privacy"].get("adjacency") or "",
        "git_commit": commit,
        "mlflow.source.git.commit": commit,
    }
    return replace(
        planned,
        name=_run_name(tags),
        tags=tags,
        rows=_rows(files.metrics, started),
        status="FINISHED" if summary["status"] == "completed" else "FAILED",
        finished=finished,
        finals=tuple(numbers(_finals(summary), finished)),
        artefacts=tuple(_artefacts(folder, summary)),
        digest=digest,
    )


def _milliseconds(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def _rows(metrics: Iterable[Mapping[str, Any]], started: int) -> tuple[list[Point], ...]:
    """Return the points of each evaluation; one without a time has that of the start."""
    return tuple(
        points(row, started + round(1000 * (_finite(row.get("seconds")) or 0.0))) for row in metrics
    )


def _artefacts(folder: Path, summary: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the small files of a run; the log of a strict release would tell its speed."""
    strict = summary["privacy"].get("release") == "strict"
    for name in ARTEFACTS:
        path = folder / name
        small = path.is_file() and path.stat().st_size <= LARGEST_ARTEFACT
        if small and not (strict and name == LOG):
            yield path


def _verify(files: RunFiles) -> None:
    """Refuse an ε that its σ does not cost, unless the run's parts are no longer known here."""
    try:
        spec = from_mapping(files.summary["spec"])
    except UserError:
        return
    verify_epsilon(spec, files)


def budget_label(spec: Mapping[str, Any]) -> str:
    """Return the privacy budget for a reader: `ε=1`, `σ=0.5` or `non-private`.

    That of a run that leaves noise or clipping out says so.
    """
    privacy = spec.get("privacy")
    if privacy is None:
        return "non-private"
    epsilon, changed = privacy.get("epsilon"), privacy.get("counterfactual")
    asked = f"σ={privacy['noise_multiplier']:g}" if epsilon is None else f"ε={epsilon:g}"
    return f"{asked}, {parse(Counterfactual, changed).words}, non-private" if changed else asked


def points(row: Mapping[str, Any], milliseconds: int) -> list[Point]:
    """Return the points of one evaluation, given column of metrics.csv → number or text."""
    values = {SECTIONS.get(name, name): row.get(name) for name in CURVES}
    return list(numbers(values, milliseconds, int(row["step"])))


def _finals(summary: Mapping[str, Any]) -> dict[str, object]:
    # A diverged run has no final metrics, so that means over seeds in the UI leave it out.
    quality = summary["final"] if summary["status"] == "completed" else {}
    return {
        **{f"final/{name}": value for name, value in quality.items()},
        **{f"privacy/{name}": summary["privacy"].get(name) for name in SPENT},
        **{f"resources/{name}": summary.get(name) for name in ("seconds", "parameters")},
    }


def numbers(values: Mapping[str, object], milliseconds: int, step: int = 0) -> Iterator[Point]:
    """Yield the points of one moment; a value that is missing or not finite has none.

    The UI draws bars of what is there at step 0 only, and each prefix has its section of charts.
    """
    for name, value in values.items():
        number = _finite(value)
        if number is not None:
            yield name, number, milliseconds, step


def _finite(value: Any) -> float | None:
    if value is None or value == "":
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def flatten(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested values as the params of a run, such as `method.learning_rate`, as text.

    A mapping stays one value, as JSON, if MLflow does not take a name in it: a column of a table
    may be called anything.
    """
    for name, value in values.items():
        if isinstance(value, Mapping) and not any(map(NOT_TAKEN.search, value)):
            yield from flatten(value, f"{prefix}{name}.")
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{prefix}{name}", text


def with_digest(view: View) -> View:
    """Return a view that is not made from the files of one run, with the digest of its content."""
    content = (LAYOUT, view.name, view.tags, view.params, view.started, view.finals)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return replace(view, digest=digest[:16])


def _digest(folder: Path) -> str:
    content = hashlib.sha256(LAYOUT.encode())
    for name in (SPEC, "metrics.csv", SUMMARY):
        path = folder / name
        content.update(read_bytes(path) if path.exists() else b"")
        content.update(b"\0")
    return content.hexdigest()[:16]


# ---- A study's two pages. The UI keeps saved views as experiment tags, in the format of MLflow
# 3.17; a UI that does not know the format shows its plain table instead.

VIEW = "runs"  # the key of the saved view
# Without this query, the UI opens its pages for applications of language models.
EXPERIMENTS = "#/experiments?workflowType=machine_learning"
MEANS = "means over seeds"
Widths = Mapping[str, int]  # columns in order, with their widths in pixels
NAME: Widths = {"attributes.`Run Name`": 450}
PLACE: Widths = {"tags.`dataset`": 90, "tags.`model`": 110, "tags.`budget`": 100}
RUNS: Widths = {
    "metrics.`privacy/epsilon`": 130,
    "tags.`label`": 150,
    **PLACE,
    "tags.`seed`": 60,
    "tags.`status`": 90,
    "duration": 80,
}
SETTINGS: Widths = {
    "tags.`runs`": 80,
    "metrics.`privacy/epsilon`": 130,
    "metrics.`privacy/delta`": 130,
    "metrics.`privacy/noise_multiplier`": 190,
    "tags.`claim`": 100,
    "tags.`panel`": 110,
    "tags.`label`": 150,
    **PLACE,
    "tags.`report`": 250,
}


def means_of(experiment: str) -> str:
    """Return the name of the experiment that holds a run for each setting of a study."""
    return f"{experiment} ({MEANS})"


def study_of(experiment: str) -> str:
    """Return the study whose runs, or their means, an experiment holds, by its name."""
    return experiment.removesuffix(f" ({MEANS})")


def saved_view(name: str, ranked_by: str = ACCURACY) -> dict[str, str]:
    """Return the experiment tag that holds the saved view of an experiment.

    Args:
        name: of the experiment.
        ranked_by: the metric by which its runs are compared, by its name in study files.
    """
    column, upward = column_of(ranked_by), not higher_is_better(ranked_by)
    if name.endswith(f"({MEANS})"):  # in the order in which they were written: the report's
        shown = {f"metrics.`mean/{column}`": 160, f"metrics.`std/{column}`": 150}
        return _saved_view(
            "Means over seeds", {**NAME, **shown, **SETTINGS}, "attributes.start_time"
        )
    final = f"metrics.`final/{column}`"
    return _saved_view("Runs, best first", {**NAME, final: 150, **RUNS}, final, upward=upward)


def page(experiment_id: str) -> str:
    """Return the address of an experiment's saved view, below the UI's own."""
    path, _, query = EXPERIMENTS.partition("?")
    return f"{path}/{experiment_id}/runs?{query}&viewStateShareKey={VIEW}"


def description(text: str, pages: Mapping[str, str]) -> str:
    """Return an experiment's description with links to pages in the first line.

    The UI shows only the first line until it is unfolded.
    """
    head, _, rest = text.partition("\n")
    links = (f"[{title}]({page(identity)})" for title, identity in pages.items())
    return f"{' · '.join([head, *links])}\n{rest}"


def _saved_view(name: str, columns: Widths, order: str, *, upward: bool = False) -> dict[str, str]:
    state = {
        "searchFilter": "",
        "orderByKey": order,
        "orderByAsc": upward,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": [name for name in columns if name.startswith(("metrics.", "tags."))],
        "columnOrder": list(columns),
        "columnWidths": columns,
        "runsHiddenMode": "FIRST_20_RUNS",
        "useGroupedValuesInCharts": True,
        "groupBy": None,
    }
    saved = {"name": name, "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)}
    return {f"mlflow.sharedViewState.{VIEW}": json.dumps(saved, sort_keys=True)}
