"""What an experiment is: its settings, its findings, its files, and when it must run again."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from clipnoise.errors import UserError
from clipnoise.fields import STRICT, parse
from clipnoise.files import csv_text, read_json, read_yaml, write_atomically
from clipnoise.plugins import lookup, plugins
from clipnoise.report.formats import significant

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PACKAGE = "clipnoise.papers"
COMPARISON = ("quantity", "published", "measured", "difference")
REPORT = ("title", "source", "setup", "claims", "figures", "remarks")  # make the report

Row = Mapping[str, Any]
Image = tuple[str, str, "Figure"]  # title, caption and figure


@dataclass(frozen=True)
class Quantity:
    """One measured number and what to compare it with."""

    name: str
    measured: float | None  # None where it could not be measured
    cell: str | None = None  # the published cell that it belongs to; None for that of its name
    formula: float | None = None  # what the paper's formula gives, where it prints no number


@dataclass(frozen=True)
class QuantityClaim:
    """What a paper says of a measured number, or of how much larger it is than another one."""

    text: str  # what the paper says
    source: str  # where it says so
    quantity: str  # name of the number
    minus: str = ""  # name of the number that is subtracted; empty for none
    bounds: tuple[float, float] = (0.0, math.inf)  # the open interval that is claimed


@dataclass(frozen=True)
class Findings:
    """What an experiment measured: tidy raw data by file name, and the numbers to compare."""

    tables: Mapping[str, Sequence[Row]]
    quantities: Sequence[Quantity] = ()


@dataclass(frozen=True)
class Results:
    """The folder that a run of an experiment wrote."""

    folder: Path

    def table(self, name: str) -> pd.DataFrame:
        """Return a table by its file name without suffix.

        Raises:
            UserError: the run did not write it.
        """
        import pandas as pd

        path = self.folder / f"{name}.csv"
        if not path.is_file():
            raise UserError(f"{path}: no such file. Run `clipnoise reproduce` first.")
        return pd.read_csv(path)

    @cached_property
    def comparison(self) -> pd.DataFrame:
        """comparison.csv, by quantity."""
        return self.table("comparison").set_index("quantity")

    @cached_property
    def provenance(self) -> Mapping[str, Any]:
        """The content of run.json; empty where there is no such file."""
        path = self.folder / "run.json"
        content: Mapping[str, Any] = read_json(path) if path.is_file() else {}
        return content

    @property
    def watermark(self) -> str:
        """What is printed across everything that shows the numbers; empty at full size."""
        return str(self.provenance.get("watermark", ""))

    def measured(self, quantity: str) -> float:
        """Return a measured number; NaN where there is none."""
        return float(self.comparison["measured"].get(quantity, math.nan))

    def published(self, quantity: str) -> float:
        """Return the number that a quantity is compared with; NaN where there is none."""
        return float(self.comparison["published"].get(quantity, math.nan))

    def text(self, quantity: str, digits: int = 4) -> str:
        """Return a measured number with so many significant digits."""
        return significant(self.measured(quantity), digits)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Base of every section of an experiment's settings: unknown keys are errors."""

    __pydantic_config__: ClassVar = STRICT


@dataclass(frozen=True, kw_only=True)
class Experiment(Section):
    """Base of every experiment: its settings are its fields."""

    id: ClassVar[str]  # "<paper>/<artefact>"
    uses: ClassVar[tuple[str, ...]] = ()  # methods that `run` names, other than in the settings
    title: ClassVar[str]
    source: ClassVar[str]  # paper, section and artefact
    setup: ClassVar[tuple[str, ...]]  # what was run, a paragraph each
    claims: ClassVar[tuple[QuantityClaim, ...]] = ()  # what the paper says of the numbers

    def run(self) -> Findings:
        """Run the experiment; the same settings give the same findings on the same machine."""
        raise NotImplementedError

    @staticmethod
    def figures(results: Results) -> list[Image]:
        """Draw the figures of the report from the files that a run wrote."""
        raise NotImplementedError

    @staticmethod
    def remarks(results: Results) -> list[str]:
        """Say what was found, and by how much and why published numbers were missed."""
        raise NotImplementedError


def experiments() -> Mapping[str, type[Experiment]]:
    """Return every experiment class by id."""
    return plugins(PACKAGE, Experiment)


def experiment_class(name: str) -> type[Experiment]:
    """Return the experiment class of an id.

    Raises:
        UserError: there is none of that id.
    """
    return lookup(PACKAGE, Experiment, "experiment", name)


def load(name: str, settings: Path, changes: Mapping[str, Any] | None = None) -> Experiment:
    """Read the settings of an experiment.

    Args:
        name: the id, e.g. `"adadps/fig3"`.
        settings: a YAML file with the fields of that experiment.
        changes: fields that replace those of the file, to make the experiment smaller.

    Raises:
        UserError: an unknown id, or settings that do not fit.
    """
    kind = experiment_class(name)
    return parse(kind, {**read_yaml(settings), **(changes or {})}, file=str(settings))


# The files of an experiment


def read_published(path: Path) -> dict[str, float]:
    """Read published numbers by cell from a CSV with the columns quantity and published.

    Raises:
        UserError: the file is missing or lacks a column.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            return {row["quantity"]: float(row["published"]) for row in csv.DictReader(stream)}
    except FileNotFoundError:
        raise UserError(f"{path}: no such file.") from None
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: expected columns quantity and published: {error}.") from None


def compare(quantities: Sequence[Quantity], published: Mapping[str, float]) -> list[Row]:
    """Set measured numbers beside published ones, which are given by cell.

    Returns:
        Rows with the columns of `COMPARISON`, one per quantity, then one per published cell that
        nothing was measured for. A missing number is None.
    """
    cells = {quantity.cell or quantity.name for quantity in quantities}
    unmeasured = [Quantity(name, None) for name in published if name not in cells]
    rows: list[Row] = []
    for quantity in (*quantities, *unmeasured):
        value, reference = quantity.measured, quantity.formula
        if reference is None:
            reference = published.get(quantity.cell or quantity.name)
        difference = None if reference is None or value is None else value - reference
        values = (quantity.name, reference, value, difference)
        rows.append(dict(zip(COMPARISON, values, strict=True)))
    return rows


def write(findings: Findings, published: Mapping[str, float], folder: Path) -> None:
    """Write every table as <name>.csv, then comparison.csv, each whole or not at all."""
    for name, rows in findings.tables.items():
        write_atomically(folder / f"{name}.csv", _csv(rows))
    rows = compare(findings.quantities, published)
    write_atomically(folder / "comparison.csv", _csv(rows))


def _csv(rows: Sequence[Row]) -> str:
    """Return rows as CSV text; floats with eight significant digits, None as an empty field."""

    def shown(value: Any) -> Any:
        return f"{value:.8g}" if isinstance(value, float) else value

    return csv_text(rows[0], ({name: shown(row[name]) for name in row} for row in rows))


# When an experiment must run again


def fingerprint(name: str, settings: Path) -> str:
    """Return a fingerprint of the code that can change what an experiment measures.

    It covers `run` with everything that it uses, how findings are written, and the methods and
    models that the settings name. Editing a figure or a remark does not change it.

    Raises:
        UserError: an unknown id, or a file that is not YAML.
    """
    from clipnoise.methods.base import methods
    from clipnoise.models.base import Model
    from clipnoise.run.fingerprint import fingerprint_of_names

    kind = experiment_class(name)
    words = {*kind.uses, *_texts(read_yaml(settings))}
    known = {**methods(), **plugins("clipnoise.models", Model)}
    named = {known[word].__module__ for word in words if word in known}
    roots = [(kind.__module__, kind.__name__), (__name__, write.__name__)]
    return fingerprint_of_names(roots, folder=PACKAGE, without=REPORT, modules=named)


def _texts(values: Any) -> Iterator[str]:
    """Yield every string below a value read from YAML, keys left out."""
    if isinstance(values, str):
        yield values
    elif isinstance(values, dict | list):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _texts(value)
