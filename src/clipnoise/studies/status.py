"""Status: the progress of studies, read from the files of their runs.

A finished run has a summary. Any other run writes to its log at every evaluation and checkpoint, so
that the last lines show its progress or why it ended, and the age of the log whether it is alive.
This needs no scheduler, and gives the same answer on every machine that sees the folder.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from stat import S_ISREG
from statistics import mean
from typing import Literal

from clipnoise.data.base import Dataset
from clipnoise.data.cache import read_manifest
from clipnoise.errors import UserError
from clipnoise.run.fingerprint import fingerprint
from clipnoise.run.job import CHECKPOINT_SECONDS, by_role, made_with
from clipnoise.run.progress import PROGRESS, is_training
from clipnoise.run.results import METRICS, SPEC, read_summary, run_folder
from clipnoise.run.scheduler import STARTED
from clipnoise.run.spec import RunSpec
from clipnoise.studies.study import Study

State = Literal[
    "done",
    "diverged",
    "outdated",
    "running",
    "stopped",
    "silent",
    "failed",
    "damaged",
    "not started",
]
ENDED = ("done", "diverged")
SILENT_SECONDS = 3 * CHECKPOINT_SECONDS  # a living run writes to its log at every checkpoint
UNKNOWN = "time unknown until runs have ended"
TAIL = 8192  # bytes of a log that are read

LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (.*)$", re.MULTILINE)
STEP = re.compile(r"step (\d+)/(\d+) .*?(?:(\d+) s left)?$")
SAVED = re.compile(r"checkpoint after step (\d+)")
STOPPED = "stopped by "
ATTEMPT = re.compile(rf"^\S+ \S+ {STARTED}\b.*$", re.MULTILINE)  # the first line of one
FAULT = "Traceback (most recent call last)"
COMPLAINT = re.compile(r"clipnoise [a-z-]+: |\S*\bbash: ")  # of the command, or of its shell

# Rules that runs wait for → what they make for a name.
MADE_BY = {
    "prepare": "{cache}/{name}/manifest.json",
    "calibrate": "{results}/calibration/{name}.json",
    "select": "{results}/tuning/{name}.json",
}


@dataclass(frozen=True)
class RunStatus:
    """The state of one run.

    Attributes:
        spec: the run.
        state: "outdated" means that code or data that can change its result have been changed
            since, so that Snakemake will train it again; "silent" that the run started but shows no
            sign of life; "stopped" that it was told to stop, and will resume from its checkpoint.
        reason: why it diverged, failed, stopped, is outdated or damaged; the last step of a running
            one.
        log: its log, if there is one.
        age: seconds since its last sign of life, if it started and has not ended.
        seconds: how long it took, or an estimate of how long it will take as a whole.
        left: seconds that a running one still needs according to its log.
        name: what its study calls it.
    """

    spec: RunSpec
    state: State
    reason: str = ""
    log: Path | None = None
    age: float | None = None
    seconds: float | None = None
    left: float | None = None
    name: str = ""


@dataclass(frozen=True)
class StudyStatus:
    """The state of a study.

    Attributes:
        name: the study.
        runs: each of its runs once, including tuning runs.
    """

    name: str
    runs: tuple[RunStatus, ...]

    @property
    def counts(self) -> Counter[str]:
        """How many runs are in each state."""
        return Counter(run.state for run in self.runs)

    def of(self, *states: str) -> list[RunStatus]:
        """Return the runs in some states."""
        return [run for run in self.runs if run.state in states]

    @cached_property
    def work_left(self) -> float | None:
        """Seconds of training that are left, one run after another; None if nothing is known.

        A run is expected to take as long as others with its dataset, model and method, or else
        with its dataset and model, or else as long as any run.
        """
        open_runs = [run for run in self.runs if run.state not in ENDED]
        typical = _durations(self.runs)
        work = 0.0
        for run in open_runs:
            kinds = (typical[kind] for kind in _kinds(run.spec) if kind in typical)
            left = (
                run.left if run.left is not None and run.state == "running" else next(kinds, None)
            )
            if left is None:
                return None
            work += left
        return work

    @property
    def time_left(self) -> float | None:
        """Seconds until all runs have ended, if as many keep training at a time as now."""
        running, work = self.counts["running"], self.work_left
        return work / running if running and work is not None else None


def _durations(runs: Iterable[RunStatus]) -> dict[tuple[str, ...], float]:
    """Return how many seconds runs take on average, by what they have in common."""
    found: dict[tuple[str, ...], list[float]] = {}
    for run in runs:
        if run.seconds is not None and run.state in (*ENDED, "outdated", "running"):
            for kind in _kinds(run.spec):
                found.setdefault(kind, []).append(run.seconds)
    return {kind: mean(values) for kind, values in found.items()}


def _kinds(spec: RunSpec) -> list[tuple[str, ...]]:
    names = (spec.dataset.id, spec.model.id, spec.method.id)
    return [names, names[:2], ()]


def span(seconds: float) -> str:
    """Format a time span by its two largest units: `8 s`, `12 min`, `3 h 5 min`, `2 d 4 h`."""
    minutes = round(seconds / 60)
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def study_status(study: Study, results: Path, data: Path | None = None) -> StudyStatus:
    """Return the state of every run of a study.

    Args:
        study: the study.
        results: the results folder.
        data: the folder of prepared datasets, with which results are compared; None for none.
    """
    clock = file_clock(results)
    names = study.names
    digests = {one: _digests(one, data) for spec in study.specs.values() for one in spec.datasets}
    found = (_run(spec, results, clock, digests) for spec in study.specs.values())
    runs = tuple(replace(run, name=names[run.spec.hash]) for run in found)
    return StudyStatus(study.name, runs)


def outlook(study: Study, results: Path, cores: int = 1, data: Path | None = None) -> str:
    """Return in a sentence how many runs are left, and how long they take on some cores."""
    status = study_status(study, results, data)
    total, done = len(status.runs), len(status.of(*ENDED))
    if done == total:
        return f"all {total} runs are done"
    left, source = status.work_left, "by the runs that have ended"
    if left is None and study.core_minutes is not None:
        left, source = 60 * study.core_minutes * (1 - done / total), "as its author measured"
    where = "one core" if cores == 1 else f"{cores} cores"
    time = UNKNOWN
    if left is not None:
        time = f"about {span(left / cores)} on {where}, {source}"
    again = status.counts["outdated"]
    changed = f" ({again} of them again, because code or data have changed)" if again else ""
    return f"{total - done} of {total} runs to train{changed}, {time}"


def outlooks(
    studies: Iterable[Study], results: Path, cores: int = 1, data: Path | None = None
) -> Iterator[str]:
    """Yield the outlook of each study, in one line for all whose time is unknown."""
    said = {study.experiment: outlook(study, results, cores, data) for study in studies}
    unknown = [name for name, text in said.items() if text.endswith(UNKNOWN)]
    several = len(unknown) > 1
    for name, text in said.items():
        if not several or name not in unknown:
            yield f"{name}: {text}"
    if several:
        yield f"{unknown[0]} and {len(unknown) - 1} more: {UNKNOWN}"


def file_clock(folder: Path) -> float:
    """Return the time of the clock that dates files in a folder; this machine's may differ."""
    try:
        with tempfile.TemporaryFile(dir=folder) as stream:
            return os.fstat(stream.fileno()).st_mtime
    except OSError:  # the folder is read-only
        return time.time()


def failed_steps(
    results: Path, cache: Path, studies: Sequence[Study]
) -> dict[tuple[str, str], str]:
    """Return the failed steps that runs of some studies wait for: rule and key → reason.

    Args:
        results, cache: the folders of results and of prepared datasets.
        studies: whose steps are looked for. The logs of others, and of what studies once planned,
            lie beside theirs.
    """
    specs = [spec for study in studies for spec in study.specs.values()]
    needed = {
        "prepare": {one.prepared for spec in specs for one in spec.datasets},
        "calibrate": {spec.budget.key for spec in specs if spec.budget is not None},
        "select": {key for study in studies for key in study.searches},
    }
    found = {}
    for rule, pattern in MADE_BY.items():
        for key in sorted(needed[rule]):
            log = results / "logs" / rule / f"{key}.log"
            made = Path(pattern.format(results=results, cache=cache, name=key))
            reason = _failure(_tail(log)) if log.is_file() and not made.exists() else None
            if reason is not None:
                found[rule, key] = f"{reason} ({log})"
    return found


def _digests(dataset: Dataset, data: Path | None) -> dict[str, str]:
    """Return the digests of a dataset's prepared files; none where it is not prepared."""
    if data is None:
        return {}
    try:
        return read_manifest(data / dataset.prepared, dataset.invocation).digests()
    except UserError:
        return {}


def _run(
    spec: RunSpec, results: Path, now: float, digests: Mapping[Dataset, Mapping[str, str]]
) -> RunStatus:
    folder = run_folder(results, spec)
    try:
        summary = read_summary(folder)
    except UserError as error:
        return RunStatus(spec, "damaged", str(error))
    if summary is not None:
        lacks = [name for name in (METRICS, SPEC) if not (folder / name).is_file()]
        if lacks:
            why = f"{folder}: lacks {' and '.join(lacks)}. Delete it, and the run is trained again"
            return RunStatus(spec, "damaged", why)
        state: State = "done" if summary["status"] == "completed" else "diverged"
        why = ""
        if summary.get("fingerprint") not in (None, fingerprint(spec)):
            why = "its code has changed since"
        elif not made_with(summary, by_role(digests[one] for one in spec.datasets)):
            why = "its data have changed since"
        if why:
            return _failed(spec, folder / "run.log", now) or RunStatus(
                spec, "outdated", why, seconds=summary["seconds"]
            )
        return RunStatus(spec, state, str(summary.get("reason") or ""), seconds=summary["seconds"])
    log = folder / "run.log"
    try:
        found = log.stat()
    except FileNotFoundError:
        return RunStatus(spec, "not started")
    if not S_ISREG(found.st_mode):
        return RunStatus(spec, "damaged", f"{log}: no regular file")
    age = max(0.0, now - found.st_mtime)
    return _begun(spec, log, age)


def _failed(spec: RunSpec, log: Path, now: float) -> RunStatus | None:
    """Return the state of a run whose last attempt to replace its result has failed, or None."""
    if not log.is_file():
        return None
    found = _begun(spec, log, max(0.0, now - log.stat().st_mtime))
    return found if found.state == "failed" else None


def _begun(spec: RunSpec, log: Path, age: float) -> RunStatus:
    """Return the state of a run without a result, from its log."""
    text = _tail(log)
    text = ATTEMPT.split(text)[-1]
    reason = _failure(text)
    if reason is not None:
        return RunStatus(spec, "failed", reason, log, age)
    lines = LINE.findall(text)
    if lines and lines[-1].partition(":")[0] in ("completed", "diverged"):
        return RunStatus(spec, "not started", "its result has been removed")
    if lines and lines[-1].startswith(STOPPED):
        return RunStatus(spec, "stopped", lines[-1], log, age)
    steps = [found.groups() for line in lines if (found := STEP.match(line))]
    state = _alive(log.parent, age)
    if not steps:
        return RunStatus(spec, state, "before its first step", log, age)
    done, total, remaining = steps[-1]
    saved = max([int(done), *map(int, SAVED.findall(text))])
    if remaining is None:
        return RunStatus(spec, state, f"step {saved}/{total}", log, age)
    whole = float(remaining) * int(total) / (int(total) - int(done))
    left = max(0.0, float(remaining) - age)
    return RunStatus(spec, state, f"step {saved}/{total}", log, age, whole, left)


def _alive(folder: Path, age: float) -> State:
    """Return whether a run that began goes on: a job that trains it locks its folder."""
    ended = (folder / PROGRESS).exists() and not is_training(folder)
    return "silent" if ended or age >= SILENT_SECONDS else "running"


def _tail(log: Path) -> str:
    with log.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - TAIL))
        return stream.read().decode(errors="replace")


def _failure(text: str) -> str | None:
    """Return why a command failed, from the end of its log; None if it has not failed."""
    ends = [found.end() for found in LINE.finditer(text)]
    lines = [line for line in text[max(ends, default=0) :].splitlines() if line.strip()]
    complaints = [line for line in lines if COMPLAINT.match(line)]
    if complaints:
        return complaints[0]
    return lines[-1] if any(line.startswith(FAULT) for line in lines) else None
