"""The study that asks what of privacy costs a method its accuracy."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path

from clipnoise.core.method import Method
from clipnoise.data.base import Dataset
from clipnoise.errors import UserError, unknown
from clipnoise.fields import to_plain
from clipnoise.models.base import Model
from clipnoise.privacy.budget import Privacy
from clipnoise.run.choice import read_choice, resolve
from clipnoise.run.procedure import Training
from clipnoise.run.spec import RunSpec
from clipnoise.studies.file import LONGEST_NAME
from clipnoise.studies.grid import PlannedRun
from clipnoise.studies.study import Study

ASKED = "as asked for"
# What is changed in the private run, by what it is called below `axes`.
CHANGES = {
    "asked": ASKED,
    "neither": "no clipping, no noise",
    "noiseless": "clipping without noise",
    "unclipped": "noise without clipping",
    "more-data": "noise of ten times the data",
    "more-steps": "twice the steps",
}
LEFT_OUT: Mapping[str, Mapping[str, float]] = {
    "neither": {"noise": 0.0, "clipping": False},
    "noiseless": {"noise": 0.0},
    "unclipped": {"clipping": False},
    "more-data": {"noise": 0.1},
}


def diagnosis(
    study: Study,
    results: Path,
    *,
    panels: Collection[str] = (),
    methods: Collection[str] = (),
    epsilons: Collection[float] = (),
) -> dict[str, object]:
    """Return a study file that repeats the private runs of a study with one thing changed each.

    Settings that are tuned take the values that were chosen.

    Args:
        study: whose runs are diagnosed.
        results: the folder of results, with the choices of hyper-parameters.
        panels, methods, epsilons: which of them, methods by their labels; all if none are given.

    Raises:
        UserError: a name is unknown, nothing is left, or a choice has not been made yet.
    """
    private = [(run, run.spec.privacy) for run in study.runs if run.spec.protects]
    asked = [(run, privacy.epsilon) for run, privacy in private if privacy and privacy.epsilon]
    if not asked:
        raise UserError(f"{study.path}: no private run with a target ε to diagnose.")
    _require("panel", panels, (run.panel for run, _ in asked), study)
    _require("private method", methods, (run.label for run, _ in asked), study)
    _require("ε", map(_number, epsilons), (_number(epsilon) for _, epsilon in asked), study)
    groups: dict[tuple[str, ...], list[PlannedRun]] = {}
    for run, epsilon in asked:
        given = ((panels, run.panel), (methods, run.label), (epsilons, epsilon))
        if all(not chosen or one in chosen for chosen, one in given):
            search = () if run.search is None else (f"search {run.search}",)
            place = (run.panel, run.dataset, run.model, run.label, _number(epsilon), *search)
            groups.setdefault(place, []).append(run)
    if not groups:
        raise UserError(f"{study.path}: no private run has this panel, method and ε together.")
    made = {
        _name(place, n): _panel(runs, results) for n, (place, runs) in enumerate(groups.items())
    }
    return {
        "title": f"What costs the accuracy? {study.title}",
        "description": "Each private run as it was asked for, and with one thing changed. Runs "
        "without noise or clipping protect nothing.",
        "scales": "none",
        "panels": made,
        "report": [
            {"kind": "diagnosis", "panels": name, "together": True, "title": one["title"]}
            for name, one in made.items()
        ],
    }


def _number(value: float) -> str:
    return f"{value:g}"


def _require(kind: str, given: Iterable[str], known: Iterable[str], study: Study) -> None:
    allowed = set(known)
    for name in given:
        if name not in allowed:
            raise unknown(kind, name, allowed, file=str(study.path))


def _name(place: tuple[str, ...], number: int) -> str:
    """Return the name of a panel: words where they are short, and a number that is its own."""
    words = re.sub("[^A-Za-z0-9_]+", "-", "-".join(place)).strip("-")
    return f"{words[: LONGEST_NAME // 2]}-{number + 1}"


def _panel(runs: list[PlannedRun], results: Path) -> dict[str, object]:
    """Return the panel of one method at one ε: an option for each change."""
    first = runs[0]
    spec = _settled(first.spec, results)
    assert spec.privacy is not None
    privacy, epsilon = _given(spec.privacy), spec.privacy.epsilon
    assert epsilon is not None
    del privacy["epsilon"]
    search = "" if first.search is None else f", search {first.search}"
    return {
        "title": f"What costs {first.label} its accuracy at ε = {_number(epsilon)} "
        f"({first.dataset}, {first.model}{search})",
        "datasets": [_named(spec.dataset, first.dataset)],
        "models": [_named(spec.model, first.model)],
        "methods": [_named(spec.method, first.label)],
        "epsilons": [epsilon],
        "seeds": [run.spec.seed for run in runs],
        "training": _given(spec.training),
        **({"privacy": privacy} if privacy else {}),
        **({"public": {"id": spec.public.id, **_given(spec.public)}} if spec.public else {}),
        **({"metrics": list(spec.metrics)} if spec.metrics else {}),
        **({"rank_by": first.rank_by} if first.rank_by else {}),
        "axes": {"change": dict(_options(spec))},
    }


def _named(part: Dataset | Model | Method, label: str) -> dict[str, object]:
    """Return a dataset, model or method as a study file has it."""
    return {"id": part.id, **({"label": label} if label != part.id else {}), **_given(part)}


def _given(part: Dataset | Model | Method | Privacy | Training) -> dict[str, object]:
    """Return the values of a dataclass that are not its defaults, as plain data."""
    plain = to_plain(part)
    return {
        one.name: plain[one.name]
        for one in fields(part)
        if getattr(part, one.name)
        != (one.default if one.default_factory is MISSING else one.default_factory())
    }


def _settled(spec: RunSpec, results: Path) -> RunSpec:
    """Return a run with the values that were chosen for what is tuned.

    Raises:
        UserError: the choice has not been made yet.
    """
    if spec.tuning is None:
        return spec
    path = results / "tuning" / f"{spec.tuning.key}.json"
    if not path.is_file():
        raise UserError(
            f"{path}: no such file. Hyper-parameters of {spec.method.id} are tuned; make the "
            "report of the study first."
        )
    return replace(resolve(spec, read_choice(path)), tuning=None)


def _options(spec: RunSpec) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield what each option of the panel changes in a run."""
    length = "epochs" if spec.training.steps is None else "steps"
    for name, title in CHANGES.items():
        changed = LEFT_OUT.get(name)
        if changed and not changed.get("clipping", True) and spec.method.query.of.extra:
            continue  # its clip norm follows from what is clipped
        option: dict[str, object] = {"title": title}
        if changed:
            option["privacy"] = {"counterfactual": dict(changed)}
        if name == "more-steps":
            option["training"] = {length: 2 * getattr(spec.training, length)}
        yield name, option
