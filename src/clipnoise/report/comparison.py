"""Published numbers beside ours: one row per published cell, with the difference."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd

from clipnoise.report.formats import DASH, METRICS, Metric, budget, count, power
from clipnoise.report.notes import mark_notes
from clipnoise.report.published import PublishedCell, read_published
from clipnoise.report.records import PLACE
from clipnoise.report.tables import Cell, cell_of
from clipnoise.studies.study import ReportItem

COLUMNS = (
    *("panel", *PLACE, "metric", "published", "published_std", "published_n"),
    *("ours", "ours_std", "n", "planned", "claim", "difference", "standard_error"),
    *("source", "note"),
)
HEADS = ["dataset", "model", "budget", "method", "published", "ours", "runs", "difference"]
FEW = 3  # metrics that a note names

Place = tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """One number as published and as found here; either may not be there.

    Attributes:
        panel: the panel of the study; empty where no panel has the dataset and model.
        place: dataset, model, budget, method and label.
        metric: what is compared.
        published: the published cell.
        ours: the runs of the study.
    """

    panel: str
    place: Place
    metric: Metric
    published: PublishedCell | None = None
    ours: Cell | None = None

    @property
    def difference(self) -> float:
        """Ours minus published; NaN where one of them has no number."""
        if self.published is None or self.ours is None:
            return math.nan
        return self.ours.sample.mean - float(self.published.value)

    @property
    def standard_error(self) -> float:
        """The standard error of the difference of two means; NaN where a deviation is not known.

        Source: Welch 1947, for samples of unequal variance.
        """
        if self.published is None or self.ours is None:
            return math.nan
        theirs, runs, one = self.published.deviation, self.published.n, self.ours.sample
        if theirs is None or runs is None or one.n < 2:
            return math.nan
        return math.sqrt(float(theirs) ** 2 / runs + one.deviation**2 / one.n)


@dataclass(frozen=True)
class Comparison:
    """A panel of a study beside a published table.

    Attributes:
        item: the report item.
        table: where the published numbers were read.
        pairs: the published cells at the panel's datasets and models, in the order of the table.
        extra: what the panel has and the table has not.
        elsewhere: the published cells at other datasets and models.
    """

    item: ReportItem
    table: Path
    pairs: tuple[Pair, ...]
    extra: tuple[Pair, ...]
    elsewhere: tuple[Pair, ...]


def compare(runs: pd.DataFrame, item: ReportItem, table: Path) -> Comparison:
    """Set the runs of one panel beside the cells of a published table.

    A published cell belongs to the configuration with its dataset, model, budget and method. Where
    the cell has a variant, the configuration's label is that variant. Where it has none, there is
    one such configuration, and its label is no other cell's variant.

    Args:
        runs: runs.csv.
        item: the report item; it names the panel.
        table: the published table.

    Raises:
        UserError: the table is missing or wrong.
    """
    own = runs[runs["panel"] == item.panel]
    found = {tuple(map(str, place)): rows for place, rows in own.groupby(PLACE, sort=False)}
    sites = {place[:2] for place in found}
    pairs: list[Pair] = []
    elsewhere: list[Pair] = []
    used = set()
    cells = read_published(table)
    named = {(*_head(cell), cell.variant) for cell in cells}
    for cell in cells:
        metric = METRICS.get(cell.metric, Metric(cell.metric, cell.metric, "", 1.0, None, True))
        match = _match(cell, found, named)
        if match and metric.column in runs.columns:
            used.add((match, metric.column))
            ours = cell_of(found[match], metric)
            pairs.append(Pair(item.panel, match, metric, cell, ours))
            continue
        place = (*_head(cell), cell.variant or cell.method)
        here = place[:2] in sites
        pair = Pair(item.panel if here else "", place, metric, cell)
        (pairs if here else elsewhere).append(pair)
    metrics = dict.fromkeys(pair.metric for pair in pairs if pair.metric.column in runs.columns)
    extra = [
        Pair(item.panel, place, metric, None, cell_of(rows, metric))
        for metric in metrics
        for place, rows in found.items()
        if (place, metric.column) not in used and not _has_none(rows, metric)
    ]
    return Comparison(item, table, tuple(pairs), tuple(extra), tuple(elsewhere))


def _has_none(runs: pd.DataFrame, metric: Metric) -> bool:
    """Return whether all runs completed, and such runs have no such number."""
    done = (runs["status"] == "completed").all()
    return bool(done and runs[metric.column].isna().all())


def _head(cell: PublishedCell) -> Place:
    return (cell.dataset, cell.model, cell.budget, cell.method)


def _match(cell: PublishedCell, found: Collection[Place], named: Container[Place]) -> Place | None:
    """Return the place of a published cell among those of a panel, if there is one for sure."""
    head = _head(cell)
    own = (*head, cell.variant or cell.method)
    if own in found:
        return own
    places = [place for place in found if place[:4] == head]
    sure = len(places) == 1 and places[0] not in named and not cell.variant
    return places[0] if sure else None


def to_csv(compared: Iterable[Comparison], watermark: str = "") -> str:
    """Return one line per pair, every number in the metric's own unit.

    Published cells that no panel has are there once, without a panel; so is what was run here
    without a published number. A watermark is a column of its own.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    mark = (watermark,) if watermark else ()
    writer.writerow([*COLUMNS, *("warning" for _ in mark)])
    every = list(compared)
    rows = [_line(pair) for one in every for pair in (*one.pairs, *one.extra)]
    placed = {pair.published for one in every for pair in one.pairs}
    left = (pair for one in every for pair in one.elsewhere if pair.published not in placed)
    writer.writerows((*line, *mark) for line in [*rows, *dict.fromkeys(map(_line, left))])
    return stream.getvalue()


def _line(pair: Pair) -> tuple[Any, ...]:
    theirs, ours = pair.published, pair.ours
    printed = (theirs.value, theirs.deviation, theirs.n) if theirs else (None, None, None)
    one = ours.sample if ours else None
    counts = (one.n, one.planned) if one else (None, None)
    return (
        *(pair.panel, *pair.place, pair.metric.column),
        *(_blank(value) for value in printed),
        *(_number(value) for value in ((one.mean, one.deviation) if one else (math.nan,) * 2)),
        *(_blank(value) for value in (*counts, ours.claim if ours else None)),
        *(_number(value) for value in (pair.difference, pair.standard_error)),
        *((theirs.source, theirs.note) if theirs else ("", "")),
    )


def _blank(value: Any) -> str:
    return "" if value is None else str(value)


def _number(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


def comparison_data(one: Comparison) -> dict[str, Any]:
    """Return a comparison as plain data for the PDF template, which lays it out."""
    metrics = dict.fromkeys(pair.metric.heading for pair in one.pairs)
    several = len(metrics) > 1
    rows = [([pair.metric.heading] if several else []) + _row(pair) for pair in one.pairs]
    return {
        "kind": "rows",
        "title": one.item.title or one.item.panel,
        "caption": one.item.caption,
        "heads": (["metric"] if several else []) + HEADS,
        "numbers": 4,
        "rows": rows,
        "notes": _notes(one, list(metrics)),
    }


def _row(pair: Pair) -> list[str]:
    dataset, model, text, _, label = pair.place
    ours = pair.ours
    return [
        *(dataset, model, budget(text), label, _printed(pair)),
        DASH if ours is None else ours.text + ours.mark,
        DASH if ours is None else f"{ours.sample.n}/{ours.sample.planned}",
        _difference(pair),
    ]


def _printed(pair: Pair) -> str:
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


def _difference(pair: Pair) -> str:
    if math.isnan(pair.difference):
        return DASH
    sign = "+" if pair.difference >= 0 else ""
    error = pair.standard_error
    spread = "" if math.isnan(error) else f" ± {pair.metric.show(error)}"
    return sign + pair.metric.show(pair.difference) + spread


def _notes(one: Comparison, metrics: Sequence[str]) -> list[str]:
    """Return how to read a comparison, and everything that it has no pair for."""
    cells = [pair.ours for pair in one.pairs if pair.ours is not None]
    lost = len(one.pairs) - len(cells)
    verb = "is" if lost == 1 else "are"
    more = len({pair.place for pair in one.extra})
    remarks = dict.fromkeys(pair.published.note for pair in one.pairs if pair.published)
    named = ", ".join(metrics) if len(metrics) <= FEW else "Every number"
    notes = [
        f"{named}: mean ± standard deviation. Difference: ours minus published; its ± "
        "is the standard error, known where both sides say their deviation and number of runs."
        if metrics
        else "No published number is at a dataset and model of this panel.",
        f"Published numbers: {one.table.as_posix().rpartition('published/')[2]}. Their ε is what "
        "the paper says; nothing here vouches for it.",
        f"{count(lost, 'published cell')} {verb} not among the runs of this panel." if lost else "",
        f"{count(len(one.elsewhere), 'more published cell')}: of datasets or models that this "
        "panel does not have."
        if one.elsewhere
        else "",
        f"{count(more, 'configuration')} of this panel without a published number." if more else "",
        *(f"The paper: {remark}" for remark in remarks if remark),
    ]
    return [note for note in [*notes, *mark_notes(cells)] if note]
