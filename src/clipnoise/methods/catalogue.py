"""What there is to know about each method, for `clipnoise methods` and the documentation."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any

from clipnoise.methods.base import Method
from clipnoise.methods.registry import methods


@dataclass(frozen=True)
class Entry:
    """One method as a reader sees it.

    Attributes:
        id: its name in studies.
        family: the folder it lives in.
        privacy: "private" or "non-private".
        adjacency: what a neighbouring dataset is; "–" where nothing is protected.
        sensitivity: of each released value before noise, in C and B.
        passes: forward and backward passes per step, at the default settings.
        needs: what a run must provide besides private examples.
        source: paper, algorithm, equation.
        summary: the first line of its docstring.
        text: the rest of its docstring, without the source.
        hyperparameters: names with their defaults; None for those that must be given.
    """

    id: str
    family: str
    privacy: str
    adjacency: str
    sensitivity: str
    passes: int
    needs: str
    source: str
    summary: str
    text: str
    hyperparameters: dict[str, Any]


def catalogue() -> list[Entry]:
    """Return every registered method, by family, then id."""
    entries = [_entry(kind) for kind in methods().values()]
    return sorted(entries, key=lambda entry: (entry.family, entry.id))


def _entry(kind: type[Method]) -> Entry:
    private = kind.query.private
    lines = (kind.__doc__ or "").partition("Source:")[0].strip().split("\n\n")
    return Entry(
        id=kind.id,
        family=kind.family(),
        privacy="private" if private else "non-private",
        adjacency=kind.query.adjacency if private else "–",
        sensitivity=" and ".join(kind.query.formulas) if private else "–",
        passes=_passes(kind),
        needs=_needs(kind),
        source=kind.source(),
        summary=" ".join(lines[0].split()),
        text="\n\n".join(" ".join(line.split()) for line in lines[1:]),
        hyperparameters={
            field.name: None if field.default is MISSING else field.default
            for field in fields(kind)
        },
    )


def _passes(kind: type[Method]) -> int:
    defaults: dict[str, Any] = {field.name: field.default for field in fields(kind)}
    history = int(defaults.get("history", 1))
    return history + int(kind.uses_clean_gradient) + int(kind.uses_public_gradient)


def _needs(kind: type[Method]) -> str:
    """Say what a run must provide: read off the class, as the engine does."""
    wants = {
        "public gradients": kind.uses_public_gradient,
        "side information": kind.uses_side_information,
        "clean gradients": kind.uses_clean_gradient,
        "a public warm start": kind.warms_up(),
        "past iterates": kind.iterates is not Method.iterates,
    }
    return ", ".join(name for name, wanted in wants.items() if wanted) or "–"
