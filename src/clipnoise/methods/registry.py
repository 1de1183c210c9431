"""Look-up of methods by id."""

from __future__ import annotations

from collections.abc import Mapping

from clipnoise.methods.base import Method
from clipnoise.plugins import lookup, plugins


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
