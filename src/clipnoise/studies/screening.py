"""Screen, then confirm: which methods pass from one panel of a study to another one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from clipnoise.errors import UserError
from clipnoise.fields import parse, to_plain
from clipnoise.files import read_yaml
from clipnoise.methods.base import example, method_class
from clipnoise.studies.entry import PanelEntry
from clipnoise.studies.file import Panel, StudyFile
from clipnoise.studies.grid import PanelGrid
from clipnoise.studies.panels import expand_panels
from clipnoise.studies.study import shared_file

CONFIRM = "confirm"  # the panel of a task of the league, and the base that it starts from


@dataclass(frozen=True, kw_only=True)
class Screening:
    """What one method reached in one run of a screen.

    Attributes:
        label: of the method.
        epsilon: the budget.
        score: on validation examples; nothing lower where the run diverged, and higher is better.
    """

    label: str
    epsilon: float
    score: float


def passing(runs: Iterable[Screening]) -> list[str]:
    """Return the labels of a screen, the best first, by the rule by which methods pass.

    At each ε methods are ranked by their mean score over seeds; equal ones share the mean of their
    ranks. The mean rank over ε decides; of equal ones the first in the panel comes first. Of
    methods that are equal in every run, the others are left out: they are the same method here, as
    a clip per layer is where there is one layer.
    """
    from scipy.stats import rankdata

    scores: dict[float, dict[str, list[float]]] = {}
    for run in _without_repetitions(runs):
        scores.setdefault(run.epsilon, {}).setdefault(run.label, []).append(run.score)
    ranks: dict[str, list[float]] = {}
    for by_label in scores.values():
        means = {label: sum(values) / len(values) for label, values in by_label.items()}
        for label, rank in zip(means, rankdata([-mean for mean in means.values()]), strict=True):
            ranks.setdefault(label, []).append(float(rank))
    if len({len(values) for values in ranks.values()}) > 1:
        raise ValueError("a method is missing at one of the budgets")
    return sorted(ranks, key=lambda label: sum(ranks[label]))


def _without_repetitions(runs: Iterable[Screening]) -> list[Screening]:
    """Leave out the methods whose runs all have the scores of another one before them."""
    by_label: dict[str, list[Screening]] = {}
    for run in runs:
        by_label.setdefault(run.label, []).append(run)
    first = {
        tuple((run.epsilon, run.score) for run in each): label
        for label, each in reversed(by_label.items())
    }
    return [run for label in by_label if label in first.values() for run in by_label[label]]


def confirmed(screen: Panel, confirm: Panel, ranked: Sequence[str]) -> list[PanelEntry]:
    """Return the methods of a panel: its own, and then the best of the screen.

    Args:
        screen: the panel that screens; its entries of methods are taken as they are.
        confirm: the other one, with the methods that take part in any case.
        ranked: the labels of the screen that may pass, the best first.
    """
    assert confirm.screened_by is not None
    own = {one.label: one for one in confirm.methods}
    places = confirm.screened_by.methods - sum(map(_private, own.values()))
    entries = {one.label: one for one in screen.methods}
    best = [label for label in ranked if label not in own and _private(entries[label])]
    return [*own.values(), *(entries[label] for label in best[: max(0, places)])]


def _private(method: PanelEntry) -> bool:
    return example(method_class(method.id)).private


def screened_panels(path: Path, name: str) -> tuple[PanelGrid, PanelGrid]:
    """Return the panel of a study that screens, and the other one as it is without a screen.

    Args:
        path: the study file, which may have the other panel already, or not yet.
        name: of the other panel, and of the base that it starts from.

    Raises:
        UserError: the base or the panel that screens is missing, or the base names no rule.
    """
    file = parse(StudyFile, read_yaml(path), file=str(path))
    alone = replace(file, panels={**file.panels, name: Panel(base=name)})
    panels = {one.name: one for one in expand_panels(alone, shared_file(path), path)}
    rule = panels[name].panel.screened_by
    if rule is None:
        raise UserError(f"{path}: panels.{name}.screened_by: name a panel of this study.")
    if rule.panel not in panels:
        raise UserError(
            f"{path}: has no panel {rule.panel!r} by which methods are chosen, so that there is "
            "nothing to confirm. `clipnoise league publish` publishes its runs as they are."
        )
    return panels[rule.panel], panels[name]


def with_methods(text: str, name: str, methods: Sequence[PanelEntry]) -> str:
    """Return the text of a study file whose panel of this name, in one line, has these methods.

    A line that the file has keeps its other values; where there is none, one that takes the base of
    that name is put after the last of the panels. Nothing else changes.

    Raises:
        ValueError: `panels` does not have a panel to a line.
    """
    expected = yaml.safe_load(text)
    panel = expected["panels"].get(name, {"base": name})
    expected["panels"][name] = panel | {"methods": [to_plain(one) for one in methods]}
    value = yaml.safe_dump(
        expected["panels"][name], default_flow_style=True, width=10**6, sort_keys=False
    )
    line = f"  {name}: {value.strip()}"
    written = re.compile(rf"^  {re.escape(name)}:.*$", re.MULTILINE)
    if written.search(text):
        made = written.sub(lambda _: line, text, count=1)
    else:
        panels = re.compile(r"^panels:\n(?:  .*\n)+", re.MULTILINE)
        made = panels.sub(lambda found: f"{found[0]}{line}\n", text, count=1)
    with suppress(yaml.YAMLError):
        if yaml.safe_load(made) == expected:
            return made
    raise ValueError(f"panels: give each panel a line, and {name} no more than that")
