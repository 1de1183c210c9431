"""Which panels and methods of a study each of its claims is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from clipnoise.errors import UserError, unknown
from clipnoise.studies.entry import PanelEntry
from clipnoise.studies.file import Panel, PaperClaim
from clipnoise.studies.grid import PanelGrid
from clipnoise.studies.panels import having


def place_claims(
    claims: Sequence[PaperClaim], panels: Sequence[PanelGrid], path: Path
) -> tuple[tuple[PaperClaim, ...], ...]:
    """Return each claim of a study file as one of each of its panels, with their full names.

    Methods have their labels, and where a claim has `than`, `than_panel` says where that is.

    Raises:
        UserError: a claim names a panel, option, method, dataset, model or ε that its panels do
            not have.
    """
    return tuple(
        tuple(_placed(claim, panels, path, f"claims.{number}"))
        for number, claim in enumerate(claims)
    )


def _placed(
    claim: PaperClaim, panels: Sequence[PanelGrid], path: Path, key: str
) -> Iterator[PaperClaim]:
    families = dict.fromkeys(one.family for one in panels)
    for name in (*claim.panels, *filter(None, [claim.than_panel])):
        if name not in families:
            raise unknown("panel", name, families, file=str(path), key=key)
    named = claim.panels or families
    chosen = having((one for one in panels if one.family in named), claim.only, path, key)
    pairs = [(one, _beside(one, claim, panels, path, key)) for one in chosen]
    _require_places(claim, [one.panel for one in chosen], path, key)
    if claim.than_dataset:
        datasets = (one for _, other in pairs for one in other.panel.datasets)
        _require("dataset", claim.than_dataset, datasets, path, f"{key}.than_dataset")
    for one, other in pairs:
        method = _label(claim.method, one, path, f"{key}.method")
        than = tuple(_label(name, other, path, f"{key}.than") for name in claim.than)
        beside = other.name if than else ""
        yield replace(claim, panels=(one.name,), method=method, than=than, than_panel=beside)


def _beside(
    panel: PanelGrid, claim: PaperClaim, panels: Sequence[PanelGrid], path: Path, key: str
) -> PanelGrid:
    """Return the panel of `than` that has the options of a panel."""
    if not claim.than_panel:
        return panel
    shared = [one for one in panels if one.family == claim.than_panel]
    for one in shared:
        if all(panel.options.get(axis, label) == label for axis, label in one.options.items()):
            return one
    raise UserError(f"{path}: {key}.than_panel: no option of it belongs to {panel.name!r}.")


def _require_places(claim: PaperClaim, panels: Iterable[Panel], path: Path, key: str) -> None:
    """Require that each dataset, model and ε that a claim names is in one of its panels."""
    every = list(panels)
    for axis in ("datasets", "models", "epsilons"):
        values = [value for panel in every for value in getattr(panel, axis)]
        for name in map(_name, getattr(claim, axis)):
            _require(axis.removesuffix("s"), name, values, path, f"{key}.{axis}")


def _require(
    kind: str, name: str, values: Iterable[PanelEntry | float], path: Path, key: str
) -> None:
    """Require that one of the values of an axis has a name."""
    names = {_name(value) for value in values}
    if name not in names:
        raise unknown(kind, name, names, file=str(path), key=key)


def _label(name: str, panel: PanelGrid, path: Path, key: str) -> str:
    """Return the label of the method with this label, or of the only one with this id."""
    ids = {one.label: one.id for one in panel.panel.each_method}
    having = [label for label, identifier in ids.items() if identifier == name]
    if name in ids:
        return name
    if len(having) == 1:
        return having[0]
    if having:
        raise UserError(
            f"{path}: {key}: several methods of panel {panel.name!r} have the id {name!r}. Name "
            f"one by its label: {', '.join(having)}."
        )
    raise unknown("method", name, {*ids, *ids.values()}, file=str(path), key=key)


def _name(value: PanelEntry | str | float) -> str:
    """Return the name of a dataset or a model as tables have it, or an ε as text."""
    if isinstance(value, PanelEntry):
        return value.label
    return value if isinstance(value, str) else f"{value:g}"
