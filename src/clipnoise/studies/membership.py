"""Which studies a run belongs to: what MLflow shows and a run spec does not know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from clipnoise.engine.tracking.view import Membership
from clipnoise.studies.study import Study


def memberships(
    studies: Iterable[Study], known: Mapping[str, Membership] | None = None
) -> dict[str, Membership]:
    """Return what studies say about each of their runs.

    Args:
        studies: in order of precedence: the first that plans a run is its home.
        known: memberships found before; they take precedence and gain the studies given here.

    Returns:
        Memberships by spec hash, of `known` and of every run planned by the studies.
    """
    found = dict(known or {})
    for study in studies:
        for run in study.runs:
            before = found.get(run.spec.hash)
            if before is None:
                found[run.spec.hash] = Membership(
                    study=study.name, studies=(study.name,), label=run.label, part=run.part
                )
            elif study.name not in before.studies:
                found[run.spec.hash] = replace(before, studies=(*before.studies, study.name))
    return found


def descriptions(studies: Iterable[Study]) -> dict[str, str]:
    """Return what MLflow shows above each study's runs, by study name."""
    return {
        study.name: "\n\n".join(filter(None, [f"**{study.title}**", study.description]))
        for study in studies
    }
