"""The table model: methods down, datasets × models × budgets across, one verdict per column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from clipnoise.errors import UserError
from clipnoise.report.costs import Costs
from clipnoise.report.formats import ACCURACY, DASH, LOSS, Metric, budget
from clipnoise.report.records import ADJACENCY, NON_PRIVATE, is_private
from clipnoise.report.statistics import Sample, Verdict, judge, sample

NOMINAL, REPLACE, ORACLE = "†", "‡", "§"

Place = tuple[str, str, str]  # dataset, model, budget
Key = tuple[str, str]  # method, label


@dataclass(frozen=True)
class Cell:
    """One configuration in one column.

    Attributes:
        sample: its runs.
        metric: what is shown.
        claim: what its runs say about privacy; empty while none has finished.
        adjacency: the relation of datasets its ε holds for; empty as above.
        oracle: whether it adds the noise of a budget without protecting anything.
        leads: whether it is the best or not significantly worse.
        p_value: Holm-adjusted, against the best; NaN where no test was made.
    """

    sample: Sample
    metric: Metric
    claim: str = ""
    adjacency: str = ""
    oracle: bool = False
    leads: bool = False
    p_value: float = float("nan")

    @property
    def text(self) -> str:
        """Mean ± sample standard deviation; the mean alone for one run; a dash for none."""
        if not self.sample.n:
            return DASH
        mean = self.metric.show(self.sample.mean)
        if self.sample.n == 1:
            return mean
        return f"{mean} ± {self.metric.show(self.sample.deviation)}"

    @property
    def mark(self) -> str:
        """The sign of a footnote about the privacy claim, or nothing."""
        if self.oracle:
            return ORACLE
        nominal = NOMINAL if self.claim == "nominal" else ""
        return nominal + (REPLACE if self.adjacency not in ("", ADJACENCY) else "")

    @property
    def competes(self) -> bool:
        """Whether its ε is a guarantee of the same kind as that of the others."""
        return not self.mark


@dataclass(frozen=True)
class Group:
    """The columns of one dataset and model: its budgets."""

    dataset: str
    model: str
    budgets: tuple[str, ...]

    @property
    def title(self) -> str:
        """What stands above the columns."""
        return f"{self.dataset}, {self.model}"

    def headings(self) -> list[str]:
        """Return the column headings."""
        return [budget(text) for text in self.budgets]


@dataclass(frozen=True)
class Row:
    """One method under one label."""

    method: str
    label: str
    private: bool
    cells: Mapping[Place, Cell]

    def across(self, group: Group) -> Iterator[tuple[Cell | None, int]]:
        """Yield the cells below a group with the number of columns each spans.

        A non-private reference has no ε: its one cell spans the columns of all budgets.
        """
        if not self.private:
            cell = self.cells.get((group.dataset, group.model, NON_PRIVATE))
            yield cell, len(group.budgets)
            return
        for text in group.budgets:
            yield self.cells.get((group.dataset, group.model, text)), 1


@dataclass(frozen=True)
class Table:
    """Everything a rendering needs.

    Attributes:
        panel: the panel of the study.
        title: heading.
        caption: what the reader should see; may be empty.
        metric: what the cells show.
        groups: the columns.
        rows: the competing methods: the private ones, or all where none is private.
        references: non-private methods beside private ones; they never compete.
        verdicts: who leads, by column.
        watermark: what stands on everything that shows the results; empty for none.
        costs: what the methods cost, as a further panel; None where it is not asked for.
    """

    panel: str
    title: str
    caption: str
    metric: Metric
    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    references: tuple[Row, ...]
    verdicts: Mapping[Place, Verdict[Key]] = field(default_factory=dict)
    watermark: str = ""
    costs: Costs | None = None

    def cells(self) -> Iterator[tuple[Row, Place, Cell]]:
        """Yield every cell with its row and place, row by row."""
        for row in (*self.rows, *self.references):
            for place, cell in row.cells.items():
                yield row, place, cell

    def panels(self, columns: int = 6) -> list[list[Group]]:
        """Distribute the columns over panels of bounded width, whole groups where they fit."""
        panels: list[list[Group]] = []
        for group in self.groups:
            for start in range(0, len(group.budgets), columns):
                piece = replace(group, budgets=group.budgets[start : start + columns])
                used = sum(len(one.budgets) for one in panels[-1]) if panels else columns
                if used + len(piece.budgets) > columns:
                    panels.append([])
                panels[-1].append(piece)
        return panels


def choose_metric(runs: pd.DataFrame) -> Metric:
    """Return test accuracy, or test loss where finished runs have no accuracy at all."""
    done = runs[runs["status"] == "completed"]
    has_accuracy = np.isfinite(done[ACCURACY.column]).any()
    has_loss = np.isfinite(done[LOSS.column]).any()
    return LOSS if has_loss and not has_accuracy else ACCURACY


def build_table(runs: pd.DataFrame, panel: str, *, title: str = "", caption: str = "") -> Table:
    """Build the table of one panel of a study.

    Args:
        runs: runs.csv, all panels or this one.
        panel: the panel to show; one without runs gives a table without rows.
        title: heading; empty takes the panel's name.
        caption: what the reader should see.

    Raises:
        UserError: two configurations share a row, so that their runs cannot be told apart.
    """
    own = runs[runs["panel"] == panel]
    metric = choose_metric(own)
    rows = _rows(own, metric, panel)
    private = tuple(row for row in rows if row.private)
    public = tuple(row for row in rows if not row.private)
    table = Table(
        panel=panel,
        title=title or panel,
        caption=caption,
        metric=metric,
        groups=_groups(own),
        rows=private or public,
        references=public if private else (),
    )
    return _judged(table)


def _groups(runs: pd.DataFrame) -> tuple[Group, ...]:
    groups = []
    for (dataset, model), own in runs.groupby(["dataset", "model"], sort=False):
        private = own[is_private(own)]
        budgets = (private if len(private) else own)["budget"].drop_duplicates()
        groups.append(Group(str(dataset), str(model), tuple(budgets)))
    return tuple(groups)


def _rows(runs: pd.DataFrame, metric: Metric, panel: str) -> list[Row]:
    rows = []
    for (method, label), own in runs.groupby(["method", "label"], sort=False):
        cells = {}
        for key, cell_runs in own.groupby(["dataset", "model", "budget"], sort=False):
            dataset, model, text = map(str, key)
            if cell_runs["seed"].duplicated().any():
                raise UserError(
                    f"panel {panel!r}: two configurations of {method!r} share the label {label!r}. "
                    "Give each a label of its own in the study file."
                )
            cells[dataset, model, text] = cell_of(cell_runs, metric)
        rows.append(Row(str(method), str(label), bool(is_private(own).any()), cells))
    return rows


def cell_of(runs: pd.DataFrame, metric: Metric) -> Cell:
    """Return the cell of one configuration in one column.

    Args:
        runs: its rows of runs.csv, one per seed.
        metric: what the cell shows.
    """
    claims = set(runs["claim"]) - {""}
    adjacencies = sorted(set(runs["adjacency"]) - {"", ADJACENCY})
    private = bool(is_private(runs).all())
    claim = "nominal" if "nominal" in claims else "".join(sorted(claims)[:1])
    return Cell(
        sample=sample(runs, metric),
        metric=metric,
        claim=claim if private else NON_PRIVATE,
        oracle=private and claim == NON_PRIVATE,
        adjacency=adjacencies[0] if adjacencies else "",
    )


def _judged(table: Table) -> Table:
    """Return the table with the leaders of every column marked."""
    places = dict.fromkeys(
        (group.dataset, group.model, text) for group in table.groups for text in group.budgets
    )
    verdicts = {}
    for place in places:
        samples = {
            (row.method, row.label): row.cells[place].sample
            for row in table.rows
            if place in row.cells and row.cells[place].competes
        }
        if samples:
            verdicts[place] = judge(samples, higher_is_better=table.metric.higher_is_better)
    rows = tuple(replace(row, cells=_marked(row, verdicts)) for row in table.rows)
    return replace(table, rows=rows, verdicts=verdicts)


def _marked(row: Row, verdicts: Mapping[Place, Verdict[Key]]) -> dict[Place, Cell]:
    key = (row.method, row.label)
    cells = {}
    for place, cell in row.cells.items():
        verdict = verdicts.get(place, Verdict())
        p_value = verdict.p_values.get(key, float("nan"))
        cells[place] = replace(cell, leads=key in verdict.leaders, p_value=p_value)
    return cells
