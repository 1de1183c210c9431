"""Published numbers: CSV files with what a paper prints, cell by cell, under this suite's ids."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from decimal import Decimal
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge
from pydantic import AfterValidator, StringConstraints

from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Count, parse

Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$")]
Text = Annotated[str, StringConstraints(min_length=1)]

UNITS = {"": 0, "%": -2, "1/100": -2}  # powers of ten
KEY = ("dataset", "model", "method", "variant", "budget", "metric")


def _budget(text: str) -> str:
    """Require the spelling of runs.csv, so that equal budgets compare equal."""
    name, _, number = text.partition("=")
    try:
        written = f"{name}={float(number):g}" if name in ("eps", "sigma") else "non-private"
    except ValueError:
        written = f"{name}=1"
    if text != written:
        raise ValueError(f"written eps=1, sigma=0.5 or non-private; expected {written!r}")
    return text


BudgetText = Annotated[str, AfterValidator(_budget)]


@dataclass(frozen=True, kw_only=True)
class PublishedCell:
    """One number of a published table.

    Any id is allowed: a paper may have datasets, models and methods that are not in this suite.

    Attributes:
        dataset: as in a study.
        model: as in a study.
        method: as in a study.
        variant: the study's label of this configuration; empty where the method identifies it.
        budget: `eps=1`, `sigma=0.5` or `non-private`, as in a study's tables.
        metric: a column of runs.csv, such as test_accuracy, or any other name.
        mean: as printed, with the digits printed.
        std: the standard deviation, as printed.
        n: how many runs the mean is over.
        unit: unit of mean and std: empty for the metric's own, `%`, or `1/100`.
        source: paper, table, row and column.
        note: a remark for readers of the number.
    """

    __pydantic_config__: ClassVar = STRICT

    dataset: Id
    model: Id
    method: Id
    variant: str = ""
    budget: BudgetText
    metric: Name
    mean: Decimal
    std: Annotated[Decimal, Ge(0)] | None = None
    n: Count | None = None
    unit: Literal["", "%", "1/100"] = ""
    source: Text
    note: str = ""

    @property
    def value(self) -> Decimal:
        """The mean in the metric's own unit."""
        return self.mean.scaleb(UNITS[self.unit])

    @property
    def deviation(self) -> Decimal | None:
        """The standard deviation in the metric's own unit."""
        return None if self.std is None else self.std.scaleb(UNITS[self.unit])


def read_published(path: Path) -> tuple[PublishedCell, ...]:
    """Read a published table.

    Args:
        path: a CSV file whose columns are fields of `PublishedCell`; those with a default may be
            missing or empty.

    Returns:
        Its cells in the order of the file.

    Raises:
        UserError: names file, line, column, value and what is allowed, or the line that a cell
            repeats.
    """
    cells: list[PublishedCell] = []
    lines: dict[tuple[str, ...], int] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, restkey="beyond the last column", strict=True)
            for values in reader:
                where = f"{path}, line {reader.line_num}"
                given = {name: value for name, value in values.items() if value}
                cell = parse(PublishedCell, given, file=where)
                key = tuple(getattr(cell, name) for name in KEY)
                if key in lines:
                    raise UserError(f"{where}: the same {', '.join(KEY)} as line {lines[key]}.")
                lines[key] = reader.line_num
                cells.append(cell)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file.") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a CSV table: {error}") from None
    if not cells:
        columns = ", ".join(field.name for field in fields(PublishedCell))
        raise UserError(f"{path}: no cells. Columns: {columns}.")
    return tuple(cells)
