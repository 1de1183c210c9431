"""Look-up of methods by id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from clipnoise.core.method import Method
from clipnoise.plugins import lookup, plugins

M = TypeVar("M", bound=Method)

# A value for each hyper-parameter without a default. None of them changes what ε rests on, except
# the clip norms, in whose units every result is given.
EXAMPLE_SETTINGS: Mapping[str, Any] = {
    "learning_rate": 0.1,
    "clip_norm": 1.0,
    "phase_lengths": (2, 2),
    "learning_rates": (0.1, 0.05),
    "clip_norms": (1.0, 2.0),
    "phi": 1e-3,
}


def methods() -> Mapping[str, type[Method]]:
    """Return every registered method class by id."""
    return plugins("clipnoise.methods", Method)


def method_class(name: str, *, file: str | None = None) -> type[Method]:
    """Return the method class of an id.

    Args:
        name: a method id as in the papers' naming, e.g. `"dp-adambc"`.
        file: where the name was read, for the error message.

    Raises:
        UserError: there is no such method; the message names the nearest one.
    """
    return lookup("clipnoise.methods", Method, "method", name, file=file)


def example_settings(kind: type[Method]) -> dict[str, Any]:
    """Return a value for each hyper-parameter of a method that has no default."""
    names = [option.name for option in fields(kind) if option.default is MISSING]
    return {name: EXAMPLE_SETTINGS[name] for name in names if name in EXAMPLE_SETTINGS}


def example(kind: type[M], **options: Any) -> M:
    """Return an instance of a method; what `options` leave out are defaults or example settings."""
    return kind(**{**example_settings(kind), **options})
