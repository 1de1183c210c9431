"""What a study would run, how long that takes, and what a reader of its results would object to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from clipnoise.studies.plan import Plan
from clipnoise.studies.status import ENDED, span, study_status
from clipnoise.studies.study import Study, published_tables

# "How to DP-fy ML" (Ponomareva et al. 2023), section 5.2.1, calls ε ≤ 10 reasonable, and what is
# above it weak or no formal protection.
PROTECTS = 10.0
UNKNOWN = "time unknown until runs have ended"


def jobs(plan: Plan, study: Study) -> Counter[str]:
    """Return how many jobs of each rule lead from nothing to the study's report."""
    specs = study.specs.values()
    counts = {
        "prepare": len({one.prepared for spec in specs for one in spec.datasets}),
        "calibrate": len({spec.budget.key for spec in specs if spec.budget is not None}),
        "train": len(study.specs),
        "select": len(study.searches),
        "collect": 1,
        "table": len(plan.tables(study.name)),
        "figure": len(plan.figures(study.name)),
        "compare": int(bool(published_tables(study, plan.published))),
        "report": 1,
        "track": 1,
    }
    return Counter({rule: count for rule, count in counts.items() if count})


def outlook(study: Study, results: Path, cores: int = 1) -> str:
    """Return how many runs are left, and how long they take, in one sentence.

    Args:
        study: the study.
        results: the results folder; runs that have ended there tell how long the others take.
        cores: how many runs train at a time.
    """
    status = study_status(study, results)
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
    return f"{total - done} of {total} runs to train, {time}"


def outlooks(studies: Iterable[Study], results: Path, cores: int = 1) -> Iterator[str]:
    """Yield the outlook of each study, in one line for all whose time is unknown.

    Args:
        studies: the studies.
        results: the results folder.
        cores: how many runs train at a time.
    """
    said = {study.experiment: outlook(study, results, cores) for study in studies}
    unknown = [name for name, text in said.items() if text.endswith(UNKNOWN)]
    several = len(unknown) > 1
    for name, text in said.items():
        if not several or name not in unknown:
            yield f"{name}: {text}"
    if several:
        yield f"{unknown[0]} and {len(unknown) - 1} more: {UNKNOWN}"


def remarks(study: Study) -> Iterator[str]:
    """Yield what is allowed, but makes the results of a study weaker than they look."""
    yield from dict.fromkeys(_of_delta(study))
    epsilons = {run.spec.privacy.epsilon or 0.0 for run in study.runs if run.spec.privacy}
    for epsilon in sorted(value for value in epsilons if value > PROTECTS):
        yield (
            f"ε = {epsilon:g}: above {PROTECTS:g} the guarantee is weak; seeing the model may "
            f"multiply an attacker's odds by e^{epsilon:g}."
        )
    for name in study.panels:
        if len({run.spec.seed for run in study.runs if run.panel == name}) == 1:
            yield f"panel {name}: one seed, so its results have no spread and no interval."


def _of_delta(study: Study) -> Iterator[str]:
    for run in study.runs:
        if run.spec.budget is None:
            continue
        delta, n, unit = run.spec.budget.delta, run.spec.examples, run.spec.unit
        if delta * n > 1 - 1e-9:
            above = "is above" if delta * n > 1 + 1e-9 else "="
            yield (
                f"δ = {delta:.2g} {above} 1/n (n = {n:,} {unit}s of {run.dataset}): publishing one "
                f"{unit} picked at random satisfies it. A δ far below 1/n does not allow that."
            )
