"""Reports: the tables of a study in; tables, figures and PDFs out.

Belongs here: statistics, drawing, typesetting. Does not: torch, training, MLflow.

In every module `runs` and `curves` are rows of the two tables of a study, as `records` reads them;
`metric` is what runs are compared by; `template` is a Typst file; `watermark` is printed on
everything that shows the results, and empty for none. Plain data is what templates lay out.

A study file is read with the kinds of items that its report may have, and without what computes or
draws them: `from clipnoise.report import tables` imports `tables` when it is first used, and
`from clipnoise.report.tables import …` at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING

from clipnoise.lazy import LazyModule


def modules_when_used(package: str, path: Iterable[str]) -> Callable[[str], ModuleType]:
    """Return what gives the modules of a package by name, each imported when it is first used."""
    names = {found.name for found in iter_modules(path)}

    def module(name: str) -> ModuleType:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return LazyModule(f"{package}.{name}")

    return module


if not TYPE_CHECKING:  # a type checker sees the modules themselves
    __getattr__ = modules_when_used(__name__, __path__)
