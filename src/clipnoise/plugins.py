"""Plug-ins: a class is registered by being in its folder.

A plug-in folder is a Python package whose modules define frozen dataclasses with an `id`. These
modules import nothing heavy at their top (no torch, timm or transformers), so that listing plug-ins
takes milliseconds.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar, cast

from clipnoise.errors import unknown

P = TypeVar("P")


def plugins(package: str, base: type[P]) -> Mapping[str, type[P]]:
    """Find every concrete plug-in class below a package, once per process.

    Args:
        package: dotted name of the plug-in folder, e.g. `"clipnoise.methods"`.
        base: the contract class; subclasses that define an `id` are plug-ins.

    Returns:
        Plug-in classes by id, sorted by id, read-only.

    Raises:
        RuntimeError: two classes claim the same id.
    """
    return cast("Mapping[str, type[P]]", _plugins(package, cast("Any", base)))


@cache
def _plugins(package: str, base: Any) -> Mapping[str, Any]:
    classes: dict[str, Any] = {}
    root = importlib.import_module(package)
    for module_info in pkgutil.walk_packages(root.__path__, package + "."):
        module = importlib.import_module(module_info.name)
        for value in vars(module).values():
            if not (inspect.isclass(value) and issubclass(value, base)):
                continue
            identifier = vars(value).get("id")
            if identifier is None or value.__module__ != module.__name__:
                continue
            if identifier in classes:
                raise RuntimeError(f"{value} and {classes[identifier]} share the id {identifier!r}")
            classes[identifier] = value
    return MappingProxyType(dict(sorted(classes.items())))


def lookup(
    package: str, base: type[P], kind: str, name: str, *, file: str | None = None
) -> type[P]:
    """Return the plug-in class with an id.

    Args:
        package: dotted name of the plug-in folder.
        base: the contract class.
        kind: the word for an error message, e.g. `"dataset"`.
        name: the id.
        file: that the id was read from, for the error message.

    Raises:
        UserError: no such plug-in; the message lists the valid ids and the nearest one.
    """
    known = plugins(package, base)
    if name not in known:
        raise unknown(kind, name, known, file=file, key=f"{kind}.id")
    return known[name]
