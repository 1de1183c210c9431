"""Which studies a run belongs to: MLflow shows it, and a run spec does not contain it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from clipnoise.studies.study import Study
from clipnoise.tracking.view import Membership

TUNING = "tuning"  # tuning runs are shown as a panel of this name


def memberships(
    studies: Iterable[Study], known: Mapping[str, Membership] | None = None
) -> dict[str, Membership]:
    """Return to which studies each run belongs, and how its first study calls it.

    Args:
        studies: in order of precedence: the first that plans a run is its home.
        known: earlier memberships; they take precedence, and the studies given here are added.

    Returns:
        Memberships by spec hash: those of `known`, and of every run that the studies plan.
    """
    found = dict(known or {})
    for study in studies:
        name = study.experiment
        for run_hash, label, panel in _planned(study):
            before = found.get(run_hash)
            if before is None:
                found[run_hash] = Membership(study=name, studies=(name,), label=label, panel=panel)
            elif name not in before.studies:
                found[run_hash] = replace(before, studies=(*before.studies, name))
    return found


def _planned(study: Study) -> Iterator[tuple[str, str | None, str]]:
    """Yield hash, label and panel of every run of a study, tuning runs last."""
    for run in study.runs:
        yield run.spec.hash, run.label, run.panel
    for spec in study.tuning_runs:
        yield spec.hash, None, TUNING


def descriptions(studies: Iterable[Study]) -> dict[str, str]:
    """Return the text that MLflow shows above the runs of each study, by study name."""
    return {
        study.experiment: "\n\n".join(filter(None, [f"**{study.title}**", study.description]))
        for study in studies
    }
