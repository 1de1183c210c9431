"""The contract of a reproduction, and the files that it leaves behind."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from clipnoise.errors import UserError
from clipnoise.fields import STRICT, parse
from clipnoise.files import write_atomically
from clipnoise.plugins import lookup, plugins

Row = Mapping[str, Any]
COMPARISON = ("quantity", "published", "measured", "difference")


@dataclass(frozen=True)
class Quantity:
    """One number to set beside a published one.

    Attributes:
        name: what it is, as the report says it.
        measured: what was found here; None where it could not be.
        cell: the published cell it belongs to; None where the name is the cell's.
        formula: what the paper's formula gives at these settings, where the paper has a formula
            instead of a number.
    """

    name: str
    measured: float | None
    cell: str | None = None
    formula: float | None = None


@dataclass(frozen=True)
class Findings:
    """What a reproduction found.

    Attributes:
        tables: tidy raw data by file name without suffix; every row of a table has the same keys.
        quantities: the numbers to compare, in the order of the report.
    """

    tables: Mapping[str, Sequence[Row]]
    quantities: Sequence[Quantity] = field(default=())


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """Base of every reproduction: a frozen dataclass with an `id`, its settings as fields.

    Attributes:
        uses: ids of methods that `run` names itself; those in the settings need not be listed.
    """

    __pydantic_config__: ClassVar = STRICT
    id: ClassVar[str]
    uses: ClassVar[tuple[str, ...]] = ()

    def run(self) -> Findings:
        """Run the experiment; the same settings give the same findings on the same machine."""
        raise NotImplementedError


def reproductions() -> Mapping[str, type[Reproduction]]:
    """Return every reproduction class by id, `"<paper>/<artefact>"`."""
    return plugins("clipnoise.papers", Reproduction)


def load(name: str, settings: Path, changes: Mapping[str, Any] | None = None) -> Reproduction:
    """Read the settings of a reproduction.

    Args:
        name: the id, e.g. `"adadps/fig3"`.
        settings: a YAML file with the fields of that reproduction.
        changes: fields that replace those of the file, to make the experiment smaller.

    Raises:
        UserError: an unknown id, or settings that do not fit.
    """
    from clipnoise.files import read_yaml

    kind = lookup("clipnoise.papers", Reproduction, "reproduction", name)
    return parse(kind, {**read_yaml(settings), **(changes or {})}, file=str(settings))


def fingerprint(name: str, settings: Path) -> str:
    """Return a fingerprint of the code that can change what a reproduction finds, and of no other.

    Args:
        name: the id.
        settings: its settings, which name methods and models.

    Raises:
        UserError: an unknown id, or a file that is not YAML.
    """
    from clipnoise.files import read_yaml
    from clipnoise.methods.registry import methods
    from clipnoise.models.base import Model
    from clipnoise.run.fingerprint import fingerprint_of

    kind = lookup("clipnoise.papers", Reproduction, "reproduction", name)
    words = {*kind.uses, *_texts(read_yaml(settings))}
    known = {**methods(), **plugins("clipnoise.models", Model)}
    return fingerprint_of([kind.__module__, *(known[w].__module__ for w in words if w in known)])


def _texts(values: Any) -> Iterator[str]:
    """Yield every string below a value read from YAML, keys left out."""
    if isinstance(values, str):
        yield values
    elif isinstance(values, dict | list):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _texts(value)


def read_published(path: Path) -> dict[str, float]:
    """Read published numbers by cell from a CSV with the columns quantity and published.

    Raises:
        UserError: the file is missing or lacks a column.
    """
    try:
        with path.open(newline="") as stream:
            return {row["quantity"]: float(row["published"]) for row in csv.DictReader(stream)}
    except FileNotFoundError:
        raise UserError(f"{path}: no such file.") from None
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: expected columns quantity and published: {error}.") from None


def compare(quantities: Sequence[Quantity], published: Mapping[str, float]) -> list[Row]:
    """Set measured numbers beside published ones.

    Args:
        quantities: what was measured.
        published: published numbers by cell.

    Returns:
        Rows with the columns of `COMPARISON`, one per quantity, then one per published cell that
        nothing was measured for. A number that is not there is None.
    """
    rows: list[Row] = []
    for quantity in quantities:
        reference = quantity.formula
        if reference is None:
            reference = published.get(quantity.cell or quantity.name)
        rows.append(_row(quantity.name, reference, quantity.measured))
    used = {quantity.cell or quantity.name for quantity in quantities}
    rows += [_row(cell, value, None) for cell, value in published.items() if cell not in used]
    return rows


def _row(name: str, published: float | None, measured: float | None) -> Row:
    both = published is not None and measured is not None
    return {
        "quantity": name,
        "published": published,
        "measured": measured,
        "difference": measured - published if both else None,  # type: ignore[operator]
    }


def write(findings: Findings, published: Mapping[str, float], folder: Path) -> None:
    """Write every table as <name>.csv, then comparison.csv, each whole or not at all."""
    for name, rows in findings.tables.items():
        write_atomically(folder / f"{name}.csv", to_csv(rows, tuple(rows[0])))
    rows = compare(findings.quantities, published)
    write_atomically(folder / "comparison.csv", to_csv(rows, COMPARISON))


def to_csv(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return rows as CSV text; floats with eight significant digits, None as an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row[column]) for column in columns])
    return text.getvalue()


def _cell(value: Any) -> Any:
    return f"{value:.8g}" if isinstance(value, float) else value
