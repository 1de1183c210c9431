"""Panels: how the grids of a study follow from its file.

A panel is built up from layers, the later ones taking precedence: the bases that the defaults and
it name in the file shared by its folder, the defaults, itself, and one option of each of its axes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path

from clipnoise.core.schedule import each_candidate
from clipnoise.errors import UserError, shorten, unknown
from clipnoise.studies.entry import PanelEntry
from clipnoise.studies.file import LONGEST_NAME, Panel, SharedFile, StudyFile, alike_but_different
from clipnoise.studies.grid import PanelGrid
from clipnoise.studies.scale import Scale


def expand_panels(
    file: StudyFile, shared: SharedFile, path: Path, scale: Scale | None = None
) -> tuple[PanelGrid, ...]:
    """Return every panel of a study file, those of one family in the order of their axes.

    Args:
        file: what the study says.
        shared: what the studies of its folder share.
        path: of the file.
        scale: how much smaller the panels are made; None leaves them as they are.

    Raises:
        UserError: a base does not exist, a panel lacks a value, or two panels have one name.
    """
    found: dict[str, PanelGrid] = {}
    for family in file.panels:
        for grid in _family(family, file, shared, path, scale or Scale()):
            if grid.name in found:
                raise UserError(f"{path}: panels: two panels are named {grid.name!r}.")
            found[grid.name] = grid
    if alike := alike_but_different(found):  # they name files
        raise UserError(f"{path}: panels: {alike[0]!r} and {alike[1]!r} look the same.")
    return tuple(found.values())


def _family(
    family: str, file: StudyFile, shared: SharedFile, path: Path, scale: Scale
) -> Iterator[PanelGrid]:
    key, panel = f"panels.{family}", file.panels[family]
    bases = {
        **_bases(file.defaults.base, shared, f"{path}: defaults"),
        **_bases(panel.base, shared, f"{path}: {key}"),
    }
    layers = [*bases.values(), file.defaults, panel]
    title = next((layer.title for layer in reversed(layers) if layer.title), family)
    axes: dict[str, dict[str, Panel]] = {}
    for layer in layers:
        axes |= layer.axes
    axes = {axis: options for axis, options in axes.items() if options}
    for labels in itertools.product(*axes.values()):
        at = dict(zip(axes, labels, strict=True))
        options = {axis: axes[axis][label] for axis, label in at.items()}
        suffixes = [at[k] if one.suffix is None else one.suffix for k, one in options.items()]
        name = "-".join([family, *filter(None, suffixes)])
        if not re.fullmatch(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}", name):  # it names files
            allowed = f"letters, digits, - and _ make a name, {LONGEST_NAME} at most"
            raise UserError(f"{path}: panel {shorten(name)}: {allowed}.")
        whole = reduce(Panel.beneath, [*layers, *options.values()], Panel())
        placed = [
            (f"{key}.methods.{number}", swept)
            for number, one in enumerate(whole.methods)
            for swept in _swept(one, path, f"{key}.methods.{number}")
        ]
        methods = tuple(method for _, method in placed)
        whole = replace(whole, methods=methods, epsilons=whole.epsilons or ())
        whole.require_complete(path, key)
        yield PanelGrid(
            name=name,
            family=family,
            options=at,
            titles={"panel": title, **{k: one.title or at[k] for k, one in options.items()}},
            panel=whole,
            scale=scale,
            path=path,
            entries=tuple(entry for entry, _ in placed),
        )


def having(
    panels: Iterable[PanelGrid], only: Mapping[str, str], path: Path, key: str
) -> list[PanelGrid]:
    """Return the panels that have some options; a panel without the axis of one has it, too.

    Raises:
        UserError: no panel has one of the options.
    """
    found = list(panels)
    for axis, label in only.items():
        labels = dict.fromkeys(one.options[axis] for one in found if axis in one.options)
        if label not in labels:
            raise unknown(f"option of {axis}", label, labels, file=str(path), key=f"{key}.only")
        found = [one for one in found if one.options.get(axis, label) == label]
    return found


def _bases(
    names: str | tuple[str, ...], shared: SharedFile, where: str, *before: str
) -> dict[str, Panel]:
    """Return bases in order, each once and after those that it starts from itself."""
    found: dict[str, Panel] = {}
    for name in (names,) if isinstance(names, str) else names:
        if name not in shared.bases:
            raise unknown("base", name, shared.bases, file=where, key="base")
        if name in before:
            raise UserError(f"{where}.base: {' → '.join([*before, name])} never ends.")
        base = shared.bases[name]
        found |= {**_bases(base.base, shared, where, *before, name), name: base} | found
    return found


def _swept(method: PanelEntry, path: Path, key: str) -> list[PanelEntry]:
    """Return a method for each value of its `sweep`, which its label may name; or itself."""
    if "sweep" not in method.values:
        return [method]
    sweep = method.values["sweep"]
    if isinstance(sweep, dict):
        schedules = {name: one for name, one in sweep.items() if isinstance(one, dict)}
        sweep = sweep | {name: each_candidate(one) for name, one in schedules.items()}
    if not isinstance(sweep, dict) or not all(isinstance(one, list) for one in sweep.values()):
        raise UserError(f"{path}: {key}.sweep: expected values by hyper-parameter, got {sweep!r}.")
    for name, values in sweep.items():
        if name in method.values:
            raise UserError(f"{path}: {key}.{name}: is swept, too. Give one of them.")
        if not values:
            raise UserError(f"{path}: {key}.sweep.{name}: give at least one value.")
    found = []
    for point in itertools.product(*sweep.values()):
        values = {**method.values, **dict(zip(sweep, point, strict=True))}
        del values["sweep"]
        if "label" in values:
            label = str(values["label"])
            for name in re.findall(r"\{([a-z_]+)\}", label):
                if name not in sweep:
                    kind = "hyper-parameter of `sweep`"
                    raise unknown(kind, name, sweep, file=str(path), key=f"{key}.label")
            for name, value in zip(sweep, point, strict=True):
                label = label.replace(f"{{{name}}}", _text(value))
            values["label"] = label
        found.append(PanelEntry(values))
    return found


def _text(value: object) -> str:
    """Return how a label shows a value: 0.5, 1e-4 and 1e-9; a list without its brackets.

    A mapping has its kind first: `cosine, peak 0.1`.
    """
    if isinstance(value, dict):
        options = [f"{name} {_text(one)}" for name, one in value.items() if name != "kind"]
        return ", ".join(filter(None, [value.get("kind"), *options]))
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, float) and 0 < abs(value) < 1e-3:
        return re.sub(r"\.?0*e-0*", "e-", f"{value:e}")
    return f"{value:g}" if isinstance(value, float) else str(value)
