"""The contract of a reproduction's report, and the tables that it reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from matplotlib.figure import Figure

from clipnoise.errors import UserError
from clipnoise.plugins import lookup, plugins
from clipnoise.report.formats import significant


@dataclass(frozen=True)
class Drawing:
    """One figure with the words around it."""

    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Data:
    """The folder that a reproduction has written."""

    folder: Path

    def table(self, name: str) -> pd.DataFrame:
        """Return a raw table.

        Raises:
            UserError: the reproduction has not written it.
        """
        path = self.folder / f"{name}.csv"
        if not path.is_file():
            raise UserError(f"{path}: no such file. Run `clipnoise reproduce` first.")
        return pd.read_csv(path)

    @cached_property
    def comparison(self) -> pd.DataFrame:
        """comparison.csv, by quantity."""
        return self.table("comparison").set_index("quantity")

    @cached_property
    def run(self) -> Mapping[str, Any]:
        """What run.json says of how it ran; nothing where it is not there."""
        path = self.folder / "run.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        return found

    @property
    def watermark(self) -> str:
        """What stands on everything that shows the numbers; empty at their published size."""
        return str(self.run.get("watermark", ""))

    def measured(self, quantity: str) -> float:
        """Return a measured number; NaN where there is none."""
        return self._number(quantity, "measured")

    def published(self, quantity: str) -> float:
        """Return the number that a quantity is compared with; NaN where there is none."""
        return self._number(quantity, "published")

    def say(self, quantity: str, digits: int = 4) -> str:
        """Return a measured number as text."""
        return significant(self.measured(quantity), digits)

    def _number(self, quantity: str, column: str) -> float:
        if quantity not in self.comparison.index:
            return float("nan")
        return float(self.comparison[column].loc[quantity])


@dataclass(frozen=True)
class Report:
    """Base of every report: what the PDF says beside the table of published and measured numbers.

    Attributes:
        id: that of the reproduction.
        title: of the PDF.
        source: paper and place.
        setup: what was run, a paragraph each.
    """

    id: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    setup: ClassVar[tuple[str, ...]]

    def drawings(self, data: Data) -> list[Drawing]:
        """Return the figures, in order."""
        raise NotImplementedError

    def remarks(self, data: Data) -> list[str]:
        """Return what was found, and by how much and why published numbers were missed."""
        raise NotImplementedError


def reports() -> Mapping[str, type[Report]]:
    """Return every report class by id."""
    return plugins("clipnoise.report.reproductions", Report)


def find_report(name: str) -> Report:
    """Return the report of a reproduction.

    Raises:
        UserError: there is none of that id.
    """
    return lookup("clipnoise.report.reproductions", Report, "reproduction", name)()
