"""Published numbers: CSV files with what a paper prints, cell by cell, and ours beside them."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pandas as pd
from annotated_types import Ge
from pydantic import AfterValidator, StringConstraints

from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Count, parse
from clipnoise.report.blocks import Grid, TableBlock
from clipnoise.report.diagnostics import QUANTITIES, diagnostic_notes
from clipnoise.report.formats import (
    ACCURACY,
    DASH,
    LOSS,
    Metric,
    budget,
    count,
    exact,
    metric_of,
    power,
    safe_csv,
)
from clipnoise.report.records import NON_PRIVATE, PLACE, of_panels, split
from clipnoise.report.statistics import Sample
from clipnoise.report.tables import (
    Cell,
    Row,
    Table,
    apart,
    build_table,
    cell_of,
    cost_grid,
    mark_notes,
)
from clipnoise.studies.items import ReportItem

Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$")]
Text = Annotated[str, StringConstraints(min_length=1)]

UNITS = {"": 0, "%": -2, "1/100": -2}  # powers of ten
BEST = "best baseline"  # the variant of a number of which the paper does not say whose it is
KEY = ("dataset", "model", "method", "variant", "budget", "metric")


def _budget(text: str) -> str:
    """Require the spelling of runs.parquet, so that equal budgets compare equal."""
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
        metric: a column of runs.parquet, such as test_accuracy, or any other name.
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
    def head(self) -> tuple[str, str, str, str]:
        """Dataset, model, budget and method."""
        return (self.dataset, self.model, self.budget, self.method)

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


# ---- Beside ours

COLUMNS = (
    *("panel", *PLACE, "metric", "published", "published_std", "published_n"),
    *("ours", "ours_std", "n", "planned", "claim", "difference", "standard_error"),
    *("source", "note"),
)

Configuration = tuple[str, ...]  # dataset, model, budget, method and label


@dataclass(frozen=True)
class ComparedCell:
    """One number as published and as measured here; either may be missing.

    Attributes:
        panel: the panel of the study; empty where no panel has the dataset and model.
        place: dataset, model, budget, method and label.
        metric: what is compared.
        published: the published cell.
        ours: the runs of the study.
    """

    panel: str
    place: Configuration
    metric: Metric
    published: PublishedCell | None = None
    ours: Cell | None = None

    @property
    def difference(self) -> float:
        """Ours minus published; NaN where either has no number."""
        if self.published is None or self.ours is None:
            return math.nan
        return self.ours.sample.mean - float(self.published.value)

    @property
    def standard_error(self) -> float:
        """The standard error of the difference of two means; NaN where a deviation is unknown.

        Source: Welch 1947, for samples of unequal variance.
        """
        if self.published is None or self.ours is None:
            return math.nan
        theirs, runs, ours = self.published.deviation, self.published.n, self.ours.sample
        if theirs is None or runs is None or ours.n < 2:
            return math.nan
        return math.sqrt(float(theirs) ** 2 / runs + ours.deviation**2 / ours.n)


@dataclass(frozen=True)
class Comparison:
    """A panel of a study beside a published table.

    Attributes:
        panel: the panel, or the first of several.
        table: where the published numbers were read.
        pairs: the published cells at the panel's datasets and models, in the order of the table.
        unpublished: what the panel has and the table lacks.
        elsewhere: the published cells at other datasets and models.
        runs: those that it shows, under the name of its first panel.
    """

    panel: str
    table: Path
    pairs: tuple[ComparedCell, ...]
    unpublished: tuple[ComparedCell, ...]
    elsewhere: tuple[ComparedCell, ...]
    runs: pd.DataFrame


def compare(runs: pd.DataFrame, panels: Sequence[str], table: Path) -> Comparison:
    """Set the runs of a panel, or of several as one, beside the cells of a published table.

    A published cell is matched with the configuration of the same dataset, model, budget and
    method whose label is the cell's variant. A cell without a variant is matched if there is only
    one such configuration and its label is no other cell's variant.

    Args:
        runs: of all panels.
        panels: their names.
        table: the published table.

    Raises:
        UserError: the table is missing or wrong.
    """
    selected, panel = of_panels(runs, panels), panels[0]
    configurations = dict(split(selected, *PLACE))
    sites = {place[:2] for place in configurations}
    pairs: list[ComparedCell] = []
    elsewhere: list[ComparedCell] = []
    used = set()
    cells = read_published(table)
    named = {(*cell.head, cell.variant) for cell in cells}
    for cell in cells:
        metric = metric_of(cell.metric)
        match = _match(cell, configurations, named)
        if match and metric.column in runs.columns:
            used.add((match, metric.column))
            ours = cell_of(configurations[match], metric)
            pairs.append(ComparedCell(panel, match, metric, cell, ours))
            continue
        place = (*cell.head, cell.variant or cell.method)
        here = place[:2] in sites
        pair = ComparedCell(panel if here else "", place, metric, cell)
        (pairs if here else elsewhere).append(pair)
    metrics = dict.fromkeys(pair.metric for pair in pairs if pair.metric.column in runs.columns)
    extra = [
        ComparedCell(panel, place, metric, None, cell_of(rows, metric))
        for metric in metrics
        for place, rows in configurations.items()
        if (place, metric.column) not in used and not _never_records(rows, metric)
    ]
    return Comparison(panel, table, tuple(pairs), tuple(extra), tuple(elsewhere), selected)


def _never_records(runs: pd.DataFrame, metric: Metric) -> bool:
    """Return whether all runs completed, but runs of this kind do not record the metric."""
    done = (runs["status"] == "completed").all()
    return bool(done and runs[metric.column].isna().all())


def printed_runs(
    runs: pd.DataFrame, report: Sequence[ReportItem], tables: Mapping[int, Path]
) -> pd.DataFrame:
    """Return what a paper prints of the configurations of a study, as one run of each.

    Args:
        runs: the planned runs of all panels; whether they have results does not matter.
        report: the items of its report.
        tables: the published tables that they show, by the number of the item.

    Returns:
        A row for each configuration, and for each best baseline of which no name is printed: its
        panel and place, `status`, `seed` 0, the number of `seeds` planned, each metric in its own
        unit, and its `<metric> deviation`; NaN where none is printed.

    Raises:
        UserError: a table is wrong.
    """
    rows: dict[Configuration, dict[str, float]] = {}
    for (panel, *place), planned in split(runs, "panel", *PLACE):
        rows[panel, *place] = {"seeds": planned["seed"].nunique()}
    for number, table in tables.items():
        cells = read_published(table)
        named = {(*cell.head, cell.variant) for cell in cells}
        for panel in report[number].named:
            here = [place for name, *place in map(tuple, rows) if name == panel]
            for cell in cells:
                match = _printed_place(cell, {tuple(place) for place in here}, named)
                if match is not None:
                    row = rows.setdefault((panel, *match), {"seeds": 1})
                    row[cell.metric] = float(cell.value)
                    if cell.deviation is not None:
                        row[f"{cell.metric} deviation"] = float(cell.deviation)
    lines = [
        {
            **dict(zip(("panel", *PLACE), place, strict=True)),
            "status": "completed",
            "seed": 0,
            **row,
        }
        for place, row in rows.items()
    ]
    frame = pd.DataFrame(lines)
    metrics = {name.removesuffix(" deviation") for name in frame.columns[len(PLACE) + 4 :]}
    usual = {ACCURACY.column, LOSS.column, *metrics}
    every = [f"{name}{end}" for name in sorted(usual) for end in ("", " deviation")]
    return frame.reindex(columns=[*frame.columns[: len(PLACE) + 4], *every])


def _printed_place(
    cell: PublishedCell, places: Collection[Configuration], named: Container[Configuration]
) -> Configuration | None:
    """Return the place of a cell in a panel, also if the paper does not say whose number it is."""
    if cell.variant == BEST and any(place[:3] == cell.head[:3] for place in places):
        return (*cell.head, BEST)
    return _match(cell, places, named)


def _match(
    cell: PublishedCell, configurations: Collection[Configuration], named: Container[Configuration]
) -> Configuration | None:
    """Return the place of a published cell among those of a panel, if exactly one fits."""
    exact_place = (*cell.head, cell.variant or cell.method)
    if exact_place in configurations:
        return exact_place
    places = [place for place in configurations if place[:4] == cell.head]
    unambiguous = len(places) == 1 and places[0] not in named and not cell.variant
    return places[0] if unambiguous else None


def to_csv(compared: Iterable[Comparison], watermark: str = "") -> str:
    """Return one line per pair, every number in the metric's own unit.

    Published cells that no panel has appear once, without a panel; results without a published
    number appear too.
    """
    comparisons = list(compared)
    rows = [_line(pair) for each in comparisons for pair in (*each.pairs, *each.unpublished)]
    placed = {pair.published for each in comparisons for pair in each.pairs}
    rest = (pair for each in comparisons for pair in each.elsewhere if pair.published not in placed)
    lines = [*rows, *dict.fromkeys(map(_line, rest))]
    return safe_csv(COLUMNS, (dict(zip(COLUMNS, line, strict=True)) for line in lines), watermark)


def _line(pair: ComparedCell) -> tuple[Any, ...]:
    """Return a line of the CSV file; None is written as an empty field."""
    line: list[Any] = [pair.panel, *pair.place, pair.metric.column]
    theirs, ours = pair.published, pair.ours
    line += [theirs.value, theirs.deviation, theirs.n] if theirs else [None] * 3
    if ours:
        runs = ours.sample
        line += [exact(runs.mean), exact(runs.deviation), runs.n, runs.planned, ours.claim]
    else:
        line += [None] * 5
    line += [exact(pair.difference), exact(pair.standard_error)]
    return (*line, *((theirs.source, theirs.note) if theirs else (None, None)))


def comparison_block(comparison: Comparison, *, costs: bool = False) -> TableBlock:
    """Return a comparison as it is printed, without a title.

    It is the table of the panel's results, with what the paper prints in the same cells: one for
    each metric, or one of statistics by quantity.
    """
    tables = [*by_metric(comparison), *_by_quantity(comparison)]
    if not tables:
        tables = [build_table(comparison.runs, comparison.panel)]
    return TableBlock(
        title="",
        caption="",
        grids=[grid for table in tables for grid in _titled(table, len(tables) > 1)],
        costs=[cost_grid(comparison.runs)] if costs else [],
        notes=comparison_notes(comparison, tables),
    )


def _titled(table: Table, several: bool) -> list[Grid]:
    """Return the grids of a table; where there are several tables, each says what it shows."""
    if not several:
        return table.grids()
    return [
        replace(
            grid,
            groups=[replace(one, title=f"{table.title}: {one.title}") for one in grid.groups],
        )
        for grid in table.grids()
    ]


def by_metric(comparison: Comparison) -> Iterator[Table]:
    """Yield the panel's table of each metric that is compared, with the published numbers in it."""
    for metric in dict.fromkeys(pair.metric for pair in comparison.pairs):
        if "." in metric.column:
            continue
        runs = comparison.runs
        runs = runs if metric.column in runs.columns else runs.iloc[:0]
        title, panel = metric.heading, comparison.panel
        table = build_table(runs, panel, metric=metric, title=title)
        yield _beside(table, [pair for pair in comparison.pairs if pair.metric == metric])


def _by_quantity(comparison: Comparison) -> Iterator[Table]:
    """Yield a table of quantities down and statistics across for each configuration."""
    places: dict[Configuration, list[ComparedCell]] = {}
    for pair in comparison.pairs:
        if "." in pair.metric.column:
            places.setdefault(pair.place, []).append(pair)
    for (dataset, model, text, _, label), pairs in places.items():
        rows: dict[str, Row] = {}
        for pair in pairs:
            name, _, statistic = pair.metric.column.partition(".")
            row = rows.setdefault(name, Row(name, QUANTITIES.get(name, name), True, {}))
            row.cells[dataset, model, statistic] = _shared(pair, pair.ours)
        group = tuple(dict.fromkeys(place for row in rows.values() for place in row.cells))
        title = f"{label}, {budget(text)}"
        panel, metric = comparison.panel, Metric("", title)
        yield Table(panel, title, "", metric, (group,), tuple(rows.values()), ())


def _beside(table: Table, pairs: Sequence[ComparedCell]) -> Table:
    """Put published numbers into the cells of a table, in new rows and columns where it has none.

    The pairs are at its datasets and models.
    """
    rows = {row.key: row for row in (*table.rows, *table.references)}
    groups = {group[0][:2]: group for group in table.groups}
    for pair in pairs:
        dataset, model, text, method, label = pair.place
        private, site = text != NON_PRIVATE, (dataset, model)
        row = rows.setdefault((method, label), Row(method, label, private, {}))
        place = (dataset, model, text)
        row.cells[place] = _shared(pair, row.cells.get(place))
        if private or not any(one.private for one in rows.values()):
            groups[site] = tuple(dict.fromkeys((*groups.get(site, ()), place)))
    competing, references = apart(rows.values())
    return replace(table, groups=tuple(groups.values()), rows=competing, references=references)


def _shared(pair: ComparedCell, ours: Cell | None) -> Cell:
    cell = ours or Cell(Sample(), pair.metric)
    return replace(cell, published=_printed(pair), difference=_difference(pair))


def _printed(pair: ComparedCell) -> str:
    """Return the published number with the digits that the paper prints."""
    if pair.published is None:
        return DASH
    mean, std = (_shown(x, pair.metric) for x in (pair.published.value, pair.published.deviation))
    return mean + (f" ± {std}" if std else "")


def _shown(value: Decimal | None, metric: Metric) -> str:
    if value is None:
        return ""
    scaled = value.scaleb(round(math.log10(metric.factor)))
    smallest = -3 if metric.decimals is None else -6
    if not scaled or smallest <= scaled.adjusted() < 6:
        return f"{scaled:f}".replace("-", "−")
    digits = len(scaled.as_tuple().digits)
    return power(*f"{scaled:.{digits - 1}e}".split("e"))


def _difference(pair: ComparedCell) -> str:
    if math.isnan(pair.difference):
        return DASH
    sign = "+" if pair.difference >= 0 else ""
    error = pair.standard_error
    spread = "" if math.isnan(error) else f" ± {pair.metric.show(error)}"
    return sign + pair.metric.show(pair.difference) + spread


def comparison_notes(comparison: Comparison, tables: Sequence[Table]) -> list[str]:
    """Return how to read a comparison, and what it has no pair for."""
    lost = sum(pair.ours is None for pair in comparison.pairs)
    elsewhere = len(comparison.elsewhere)
    remarks = dict.fromkeys(pair.published.note for pair in comparison.pairs if pair.published)
    if any("." in pair.metric.column for pair in comparison.pairs):
        cells = [cell for table in tables for _, _, cell in table.cells()]
        own = [*diagnostic_notes(comparison.runs), *mark_notes(cells)]
    else:
        own = [note for table in tables for note in table.notes]
    notes = [
        "In each cell, from top to bottom: found here; printed in the paper; the difference, found "
        "here minus printed. Its ± is the standard error, given where both sides report a "
        "deviation and a number of runs."
        if comparison.pairs
        else "No published number has a dataset and model of this panel.",
        *own,
        f"Published numbers: {comparison.table.as_posix().rpartition('published/')[2]}. Their ε "
        "is as the paper states it and was not verified here.",
        f"{count(lost, 'published cell')} {'has' if lost == 1 else 'have'} no run in this panel."
        if lost
        else "",
        f"{count(elsewhere, 'further published cell')} {'is' if elsewhere == 1 else 'are'} for "
        "datasets or models that this panel does not have."
        if elsewhere
        else "",
        *(f"The paper: {remark}" for remark in remarks if remark),
    ]
    return list(dict.fromkeys(note for note in notes if note))
