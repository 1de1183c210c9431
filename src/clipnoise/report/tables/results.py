"""The table of results: methods down, datasets × models × budgets across, and its footnotes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from clipnoise.errors import UserError
from clipnoise.report.formats import ACCURACY, DASH, LOSS, Metric, budget, count, listing
from clipnoise.report.records import ADJACENCY, NON_PRIVATE, is_private
from clipnoise.report.statistics import Sample, sample
from clipnoise.report.tables.bold import Verdict, bold_note, judge
from clipnoise.report.tables.costs import CostTable

NOMINAL, REPLACE, ORACLE = "†", "‡", "§"

Place = tuple[str, str, str]  # dataset, model, budget
Key = tuple[str, str]  # method, label


@dataclass(frozen=True)
class Cell:
    """One configuration in one column.

    Attributes:
        sample: its runs.
        metric: what is shown.
        claim: the privacy claim of its runs; empty while none has finished.
        adjacency: the adjacency its ε holds under, where it is not add-remove; else empty.
        oracle: whether it adds the noise of a budget without protecting the examples.
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
        """The sign of a footnote about the privacy claim; empty for a guarantee like the others."""
        if self.oracle:
            return ORACLE
        nominal = NOMINAL if self.claim == "nominal" else ""
        return nominal + (REPLACE if self.adjacency not in ("", ADJACENCY) else "")

    @property
    def competes(self) -> bool:
        """Whether its ε is a guarantee that can be compared with the others."""
        return not self.mark


@dataclass(frozen=True)
class Group:
    """The columns of one dataset and model: its budgets."""

    dataset: str
    model: str
    budgets: tuple[str, ...]

    @property
    def title(self) -> str:
        """The heading above the columns."""
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
        watermark: printed on everything that shows the results; empty for none.
        costs: what the methods cost; None where it is not asked for.
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
    costs: CostTable | None = None

    def cells(self) -> Iterator[tuple[Row, Place, Cell]]:
        """Yield every cell with its row and place, row by row."""
        for row in (*self.rows, *self.references):
            for place, cell in row.cells.items():
                yield row, place, cell

    def blocks(self, columns: int = 6) -> list[list[Group]]:
        """Distribute the columns over blocks of bounded width, whole groups where they fit."""
        blocks: list[list[Group]] = []
        for group in self.groups:
            for start in range(0, len(group.budgets), columns):
                piece = replace(group, budgets=group.budgets[start : start + columns])
                used = sum(len(placed.budgets) for placed in blocks[-1]) if blocks else columns
                if used + len(piece.budgets) > columns:
                    blocks.append([])
                blocks[-1].append(piece)
        return blocks


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
    selected = runs[runs["panel"] == panel]
    metric = choose_metric(selected)
    rows = _rows(selected, metric, panel)
    private = tuple(row for row in rows if row.private)
    public = tuple(row for row in rows if not row.private)
    table = Table(
        panel=panel,
        title=title or panel,
        caption=caption,
        metric=metric,
        groups=_groups(selected),
        rows=private or public,
        references=public if private else (),
    )
    return _judged(table)


def _groups(runs: pd.DataFrame) -> tuple[Group, ...]:
    groups = []
    for (dataset, model), subset in runs.groupby(["dataset", "model"], sort=False):
        private = subset[is_private(subset)]
        budgets = (private if len(private) else subset)["budget"].drop_duplicates()
        groups.append(Group(str(dataset), str(model), tuple(budgets)))
    return tuple(groups)


def _rows(runs: pd.DataFrame, metric: Metric, panel: str) -> list[Row]:
    rows = []
    for (method, label), subset in runs.groupby(["method", "label"], sort=False):
        cells = {}
        for key, cell_runs in subset.groupby(["dataset", "model", "budget"], sort=False):
            dataset, model, text = map(str, key)
            if cell_runs["seed"].duplicated().any():
                raise UserError(
                    f"panel {panel!r}: two configurations of {method!r} share the label {label!r}. "
                    "Give each its own label in the study file."
                )
            cells[dataset, model, text] = cell_of(cell_runs, metric)
        rows.append(Row(str(method), str(label), bool(is_private(subset).any()), cells))
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


def table_notes(table: Table) -> list[str]:
    """Return the notes under a table, one sentence or two each."""
    cells = [cell for _, _, cell in table.cells()]
    if not cells:
        return ["No run is planned for this panel."]
    notes = [
        _cell_note(table, cells),
        bold_note(table.verdicts.values()),
        _unfinished_note(cells),
        "Non-private references have no ε and do not compete." if table.references else "",
        *mark_notes(cells),
    ]
    return [note for note in notes if note]


def _cell_note(table: Table, cells: list[Cell]) -> str:
    planned = sorted({cell.sample.planned for cell in cells})
    name = table.metric.heading
    if planned == [1]:
        return f"{name}: one seed, so there is no standard deviation."
    seeds = str(planned[0]) if len(planned) == 1 else f"{planned[0]} to {planned[-1]}"
    return f"{name}: mean ± sample standard deviation over {seeds} seeds."


def _unfinished_note(cells: list[Cell]) -> str:
    diverged, missing, corrupt = (
        sum(getattr(cell.sample, outcome) for cell in cells)
        for outcome in ("diverged", "missing", "corrupt")
    )
    reasons = [
        f"{count(diverged, 'run')} diverged" if diverged else "",
        f"{count(missing, 'run')} {'is' if missing == 1 else 'are'} missing" if missing else "",
        f"{count(corrupt, 'result')} {'is' if corrupt == 1 else 'are'} damaged" if corrupt else "",
    ]
    if not any(reasons):
        return ""
    return (
        f"n/N: n of N planned runs completed ({listing(list(filter(None, reasons)))}). "
        "The mean is over those n only, so it is never bold."
    )


def mark_notes(cells: list[Cell]) -> list[str]:
    """Return the footnotes that explain the marks beside cells."""
    signs = "".join(cell.mark for cell in cells)
    adjacencies = {cell.adjacency for cell in cells if REPLACE in cell.mark}
    notes = []
    if NOMINAL in signs:
        notes.append(
            f"{NOMINAL} nominal ε: the accountant's analysis does not cover how batches were drawn "
            "under this adjacency, or how much one example can change, so ε is no guarantee; not "
            "compared with the others."
        )
    if ORACLE in signs:
        notes.append(
            f"{ORACLE} non-private: it adds the noise of its column but also reads unprotected "
            "values, so it has no ε; not compared with the others."
        )
    if REPLACE in signs:
        notes.append(
            f"{REPLACE} ε under {listing(sorted(adjacencies))} adjacency: not comparable with "
            "ε under add-remove adjacency."
        )
    return notes
