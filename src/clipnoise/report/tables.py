"""The table of results: methods down, datasets × models × budgets across, and its footnotes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from clipnoise.errors import UserError
from clipnoise.report.baseline import (
    BASELINE,
    CONTENDED,
    baseline_of,
    contended,
    cost_ratio,
    device_seconds,
)
from clipnoise.report.blocks import Grid, HeadGroup, PrintedCell, PrintedRow, TableBlock
from clipnoise.report.formats import (
    ACCURACY,
    LOSS,
    Metric,
    budget,
    count,
    decimal,
    listing,
    metric_of,
    significant,
)
from clipnoise.report.records import (
    NON_PRIVATE,
    Key,
    Place,
    by_key,
    chance,
    is_private,
    private_or_all,
    split,
    where,
)
from clipnoise.report.statistics import (
    ALPHA,
    SEEDS_NEEDED,
    Sample,
    Verdict,
    exceeds_chance,
    judge,
    sample,
)
from clipnoise.studies.audits import TOGETHER
from clipnoise.tracking.view import ADJACENCY

NOT_AUDITED = "not audited"
NOMINAL, REPLACE, ORACLE, HELD_UP = "†", "‡", "§", "¶"
TEST = f"multiple comparisons with the best by sign flips over seeds, α = {ALPHA}"
WIDEST = 6  # columns of a block
COSTS = ("device s", f"÷ {BASELINE}", "peak MB", "passes")
COST_NOTE = (
    "Device s: time of the processor, or of the GPU where one trained, in all steps of a run; "
    f"medians over completed runs. ÷ {BASELINE}: the median ratio over seeds on the same kind of "
    "machine. Peak MB: of memory. Passes: gradients of a drawn example per step; those of public "
    "examples are not counted. Audit: the ε that attacks on what the method releases showed at "
    f"95% confidence, beside the ε claimed there. {TOGETHER.format('study')} Attacks can refute a "
    "claim but never prove one. “snakemake --cores all reports/STUDY/audit.pdf” audits the methods "
    "of a study."
)
HELD_UP_NOTE = (
    f"{HELD_UP} most of these runs were held up by other work: their wall clock is at least "
    f"{CONTENDED} times their processor time, so the latter is rough, too."
)

Group = tuple[Place, ...]  # neighbouring columns of one dataset and model


@dataclass(frozen=True)
class Cell:
    """One configuration in one column.

    Attributes:
        sample: the results of its runs.
        metric: what is shown.
        runs: its runs, one per seed.
        claim: the privacy claim of its runs; empty while none has finished.
        adjacency: the adjacency its ε holds under, where it is not add-remove; else empty.
        oracle: whether it adds the noise of a budget without protecting the examples.
        published: what a paper prints there; empty where nothing is compared.
        difference: from what it prints.
    """

    sample: Sample
    metric: Metric
    runs: pd.DataFrame = field(default_factory=pd.DataFrame, compare=False)
    claim: str = ""
    adjacency: str = ""
    oracle: bool = False
    published: str = ""
    difference: str = ""

    @property
    def text(self) -> str:
        """Mean ± sample standard deviation; the mean alone for one run; a dash for none."""
        return self.sample.show(self.metric)

    @property
    def counted(self) -> str:
        """The text, with n/N where not every planned run completed."""
        return self.sample.counted(self.metric)

    @property
    def learned_nothing(self) -> bool:
        """Whether its mean is no better than that of the best constant prediction."""
        if not self.sample.complete:
            return False
        _, level = chance(self.runs, self.metric.column)
        if math.isnan(level):
            return False
        examples = float(self.runs["test_examples"].iloc[0])
        return not exceeds_chance(self.sample.mean, level, self.metric, examples)

    @property
    def mark(self) -> str:
        """The sign of a footnote about the privacy claim.

        It is empty for a guarantee that can be compared with the others.
        """
        if self.oracle:
            return ORACLE
        nominal = NOMINAL if self.claim == "nominal" else ""
        return nominal + (REPLACE if self.adjacency not in ("", ADJACENCY) else "")


@dataclass(frozen=True)
class Row:
    """One method under one label."""

    method: str
    label: str
    private: bool
    cells: dict[Place, Cell]

    @property
    def key(self) -> Key:
        """Method and label."""
        return self.method, self.label


@dataclass(frozen=True)
class Table:
    """Everything a rendering needs.

    Attributes:
        panel: the panel of the study.
        title: heading.
        caption: what the reader should see; may be empty.
        metric: what the cells show.
        groups: the columns of each dataset and model.
        rows: the competing methods: the private ones, or all where none is private.
        references: non-private methods beside private ones; they never compete.
        verdicts: who leads, by column.
        costs: what the methods cost; empty where it is not asked for.
    """

    panel: str
    title: str
    caption: str
    metric: Metric
    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    references: tuple[Row, ...]
    verdicts: Mapping[Place, Verdict[Key]] = field(default_factory=dict)
    costs: tuple[Grid, ...] = ()

    def cells(self) -> Iterator[tuple[Row, Place, Cell]]:
        """Yield every cell with its row and place, row by row."""
        for row in (*self.rows, *self.references):
            for place, cell in row.cells.items():
                yield row, place, cell

    @property
    def notes(self) -> list[str]:
        """The notes below the table, one sentence or two each."""
        cells = [cell for _, _, cell in self.cells()]
        rows = [row for grid in self.costs for row in grid.rows]
        held_up = any(cell.mark == HELD_UP for row in rows for cell in row.cells)
        costs = [*([COST_NOTE] if rows else []), *([HELD_UP_NOTE] if held_up else [])]
        if not cells:
            return ["No run is planned for this panel.", *costs]
        planned = sorted({cell.sample.planned for cell in cells})
        seeds = str(planned[0]) if len(planned) == 1 else f"{planned[0]} to {planned[-1]}"
        over = f"mean ± sample standard deviation over {seeds} seeds."
        one = "one seed, so there is no standard deviation."
        notes = [
            f"{self.metric.heading}: {one if planned == [1] else over}",
            _bold_note(self),
            _lower_bold_note(self),
            _unfinished_note(cells),
            "Non-private references have no ε and do not compete." if self.references else "",
            *self._remarks(),
            *mark_notes(cells),
            *costs,
        ]
        return [note for note in notes if note]

    def _remarks(self) -> Iterator[str]:
        """Say which methods learned nothing, and which references are no upper bound."""
        name = next((name for group in self.groups if (name := self.chance(group)[0])), "")
        if name:
            yield (
                f"{name.capitalize()}: the best constant prediction on the test split, which no "
                "training needs."
            )
        idle = [
            f"{row.label} ({', '.join(filter(None, map(budget, place)))})"
            for row, place, cell in self.cells()
            if cell.learned_nothing
        ]
        if idle:
            yield (
                "Not shown to have learned anything, as their means do not exceed it by more than "
                f"chance (of accuracies 1.96 standard errors of the test set): {listing(idle)}."
            )
        for row in self.references:
            for dataset, model, text in row.cells:
                level = row.cells[dataset, model, text].sample.mean
                rivals = [
                    other.cells[place].sample.mean
                    for other in self.rows
                    for place in other.cells
                    if place[:2] == (dataset, model) and not other.cells[place].oracle
                ]
                if any(self.metric.sign * (rival - level) > 0 for rival in rivals):
                    yield (
                        f"{row.label} is worse than a private method on {dataset}, {model}: it is "
                        "no upper bound there."
                    )

    def chance(self, group: Group) -> tuple[str, float]:
        """Return the best constant prediction on a dataset, as `records.chance` does."""
        cells = [cell for _, place, cell in self.cells() if place[:2] == group[0][:2]]
        found = (chance(cell.runs, self.metric.column) for cell in cells)
        return next((one for one in found if one[0]), ("", math.nan))

    def column(self, place: Place) -> dict[Key, Cell]:
        """Return the cells of the rows that compete in a column, by method and label."""
        return {row.key: row.cells[place] for row in self.rows if place in row.cells}

    def competing(self, place: Place) -> dict[Key, Sample]:
        """Return the samples of a column whose ε are guarantees under one adjacency.

        It is add-remove, or that of all guarantees there where none is under add-remove.
        """
        cells = self.column(place)
        able = {key: cell.sample for key, cell in cells.items() if not cell.mark}
        others = {key: cell for key, cell in cells.items() if cell.mark == REPLACE}
        if able or len({cell.adjacency for cell in others.values()}) != 1:
            return able
        return {key: cell.sample for key, cell in others.items()}

    def leads(self, row: Row, place: Place) -> bool:
        """Return whether a row can be the best of a column."""
        if place not in self.verdicts or row.key not in self.verdicts[place].leaders:
            return False
        return not row.cells[place].learned_nothing

    def p_value(self, row: Row, place: Place) -> float:
        """Return the p-value of being the best; NaN where no test was made."""
        tested = self.verdicts[place].p_values if place in self.verdicts else {}
        return tested.get(row.key, float("nan"))

    def shown(self, row: Row, place: Place, span: int = 1) -> PrintedCell:
        """Return a cell as it is printed, bold where it leads."""
        cell = row.cells.get(place)
        if cell is None:
            return PrintedCell(span=span)
        return PrintedCell(
            text=cell.text,
            mark=cell.mark,
            runs=cell.sample.runs,
            bold=self.leads(row, place),
            span=span,
            published=cell.published,
            difference=cell.difference,
        )

    def across(self, row: Row, group: Group) -> list[PrintedCell]:
        """Return the cells of a row below a group of columns.

        A non-private reference has no ε: its one cell spans the columns of all budgets.
        """
        if row.private:
            return [self.shown(row, place) for place in group]
        return [self.shown(row, (*group[0][:2], NON_PRIVATE), span=len(group))]

    def laid_out(self, rows: Sequence[Row], groups: Sequence[Group]) -> list[PrintedRow]:
        """Return rows below groups of columns."""
        return [
            PrintedRow(row.label, [cell for group in groups for cell in self.across(row, group)])
            for row in rows
        ]

    def _constant(self, groups: Sequence[Group]) -> list[PrintedRow]:
        """Return the row of the best constant prediction below groups of columns, where known."""
        found = [(self.chance(group), len(group)) for group in groups]
        names = dict.fromkeys(name for (name, _), _ in found if name)
        cells = [PrintedCell(text=self.metric.show(level), span=span) for (_, level), span in found]
        return [PrintedRow(" or ".join(names), cells)] if names else []

    @property
    def block(self) -> TableBlock:
        """The table as it is printed."""
        return TableBlock(
            title=self.title,
            caption=self.caption,
            grids=self.grids(),
            costs=self.costs,
            notes=self.notes,
        )

    def grids(self) -> list[Grid]:
        """Distribute the columns over grids of bounded width, whole groups where they fit."""
        pieces: list[list[Group]] = []
        for group in self.groups:
            for start in range(0, len(group), WIDEST):
                piece = group[start : start + WIDEST]
                used = sum(map(len, pieces[-1])) if pieces else WIDEST
                if used + len(piece) > WIDEST:
                    pieces.append([])
                pieces[-1].append(piece)
        return [
            Grid(
                [HeadGroup(title_of(one), [budget(text) for *_, text in one]) for one in groups],
                self.laid_out(self.rows, groups),
                [*self.laid_out(self.references, groups), *self._constant(groups)],
            )
            for groups in pieces
        ]


def title_of(group: Group) -> str:
    """Return the heading above the columns of a dataset and model."""
    dataset, model, _ = group[0]
    return f"{dataset}, {model}"


def choose_metric(runs: pd.DataFrame) -> Metric:
    """Return what runs are ranked by.

    It is what their study names; without a name, test accuracy, or test loss where finished runs
    have no accuracy at all.
    """
    named = [name for name in runs.get("rank_by", default=pd.Series()).drop_duplicates() if name]
    if named:
        return metric_of(str(named[0]))
    done = runs[runs["status"] == "completed"]
    has_accuracy = np.isfinite(done[ACCURACY.column]).any()
    has_loss = np.isfinite(done[LOSS.column]).any()
    return LOSS if has_loss and not has_accuracy else ACCURACY


def build_table(
    runs: pd.DataFrame,
    panel: str,
    *,
    metric: Metric | None = None,
    title: str = "",
    caption: str = "",
    costs: bool = False,
) -> Table:
    """Build the table of one panel of a study.

    Args:
        runs: of all panels or this one.
        panel: the panel to show; one without runs gives a table without rows.
        metric: what the cells show; None takes test accuracy, or test loss.
        title: heading; empty takes the panel's name.
        caption: what the reader should see.
        costs: whether to show what the methods cost and what their audits found.

    Raises:
        UserError: two configurations share a row, so that their runs cannot be told apart.
    """
    selected = runs[runs["panel"] == panel]
    metric = metric or choose_metric(selected)
    rows, references = apart(_rows(selected, metric, panel))
    table = Table(
        panel=panel,
        title=title or panel,
        caption=caption,
        metric=metric,
        groups=_groups(selected),
        rows=rows,
        references=references,
        costs=(cost_grid(selected),) if costs else (),
    )
    return replace(table, verdicts=_verdicts(table))


def apart(rows: Iterable[Row]) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Return the rows that compete, and the non-private references beside private ones."""
    every = tuple(rows)
    private = tuple(row for row in every if row.private)
    return (private, tuple(row for row in every if not row.private)) if private else (every, ())


def _groups(runs: pd.DataFrame) -> tuple[Group, ...]:
    return tuple(
        tuple((*task, text) for text in private_or_all(rows)["budget"].drop_duplicates())
        for task, rows in split(runs, "dataset", "model")
    )


def _rows(runs: pd.DataFrame, metric: Metric, panel: str) -> list[Row]:
    rows = []
    for (method, label), subset in by_key(runs):
        cells = dict(split(subset, "dataset", "model", "budget"))
        if any(one["seed"].duplicated().any() for one in cells.values()):
            raise UserError(
                f"panel {panel!r}: two configurations of {method!r} share the label {label!r}. "
                "Give each its own label in the study file."
            )
        private = bool(is_private(subset).any())
        rows.append(Row(method, label, private, {k: cell_of(v, metric) for k, v in cells.items()}))
    return rows


def cell_of(runs: pd.DataFrame, metric: Metric) -> Cell:
    """Return the cell of one configuration in one column, from its runs."""
    return replace(claimed(runs, metric), sample=sample(runs, metric))


def claimed(runs: pd.DataFrame, metric: Metric) -> Cell:
    """Return a cell without results, which says what the runs of some columns claim together."""
    claims = set(runs["claim"]) - {""}
    adjacencies = sorted(set(runs["adjacency"]) - {"", ADJACENCY})
    private = bool(is_private(runs).all())
    claim = "nominal" if "nominal" in claims else "".join(sorted(claims)[:1])
    return Cell(
        sample=Sample(),
        metric=metric,
        runs=runs,
        claim=claim if private else NON_PRIVATE,
        oracle=private and claim == NON_PRIVATE,
        adjacency=adjacencies[0] if adjacencies else "",
    )


def _verdicts(table: Table) -> dict[Place, Verdict[Key]]:
    """Judge every column in which something competes."""
    columns = {place: table.competing(place) for group in table.groups for place in group}
    up = table.metric.higher_is_better
    found = {place: judge(one, higher_is_better=up) for place, one in columns.items() if one}
    for place, verdict in found.items():
        cells = table.column(place)
        if verdict.leaders and all(cells[key].learned_nothing for key in verdict.leaders):
            found[place] = Verdict(withheld="chance")
    return found


def cost_grid(runs: pd.DataFrame) -> Grid:
    """Return what the methods of a panel cost, by method and label, and what audits found."""
    tasks = [task for task, _ in split(runs, "dataset", "model")]
    methods = dict(by_key(runs))
    base = baseline_of(methods)
    base_runs = runs[:0] if base is None else methods[base]
    rows = []
    for (_, label), subset in methods.items():
        cells = []
        for dataset, model in tasks:
            here = where(subset, dataset=dataset, model=model)
            done = where(here, status="completed")
            seconds = significant(device_seconds(done).median(), 3)
            cells += [
                PrintedCell(text=seconds, mark=HELD_UP if contended(done) else ""),
                PrintedCell(text=decimal(cost_ratio(here, base_runs), 2)),
                PrintedCell(text=significant(done["peak_memory_mb"].median(), 3)),
                PrintedCell(text=significant(here["passes_per_step"].median())),
            ]
        claims = bool(is_private(subset).any())
        audit = subset["audit"].max() or (NOT_AUDITED if claims else "no claim")
        rows.append(PrintedRow(label, [*cells, PrintedCell(text=audit)]))
    groups = [HeadGroup(", ".join(task), COSTS) for task in tasks]
    return Grid([*groups, HeadGroup("", ["audit"])], rows)


# ---- Notes below a table


def _bold_note(table: Table) -> str:
    """Explain a table's bold, or why columns have none."""
    explanations = {
        "": f"Bold: all that can be the best of a column ({TEST}).",
        "unfinished": "Columns with missing runs have no bold yet.",
        "few seeds": f"There is no bold with fewer than {SEEDS_NEEDED} seeds: they cannot tell "
        "which method is best.",
        "failed": "Columns in which no method completed all its runs have no bold.",
        "others failed": "Columns in which one method alone completed all its runs have no bold.",
        "seeds": "Columns whose methods have different seeds have no bold.",
        "chance": "Columns in which the best method is not shown to have learned have no bold.",
    }
    reasons = {verdict.withheld for verdict in table.verdicts.values()}
    return " ".join(text for reason, text in explanations.items() if reason in reasons)


def _lower_bold_note(table: Table) -> str:
    """Explain why the better of two means is not bold, where that occurs."""
    for place, verdict in table.verdicts.items():
        samples = {key: one for key, one in table.competing(place).items() if one.complete}
        level = {key: table.metric.sign * one.mean for key, one in samples.items()}
        leaders = [key for key in samples if key in verdict.leaders]
        for key in (key for key in verdict.p_values if key not in verdict.leaders):
            worse = [other for other in leaders if not level[other] > level[key]]
            if worse:
                return (
                    f"{worse[0][1]} can be bold with no better a mean than {key[1]}, which is not: "
                    "what counts is whether another one is better seed by seed, and the results of "
                    f"{worse[0][1]} vary more."
                )
    return ""


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
    notes = {
        NOMINAL: "nominal ε: the accountant's analysis does not cover how batches were drawn "
        "under this adjacency, or how much one example can change, so ε is no guarantee; not "
        "compared with the others.",
        ORACLE: "non-private: it adds the noise of its column but also reads unprotected "
        "values, so it has no ε; not compared with the others.",
        REPLACE: f"ε under {listing(sorted(adjacencies))} adjacency: not comparable with "
        "ε under add-remove adjacency.",
    }
    return [f"{sign} {note}" for sign, note in notes.items() if sign in signs]
