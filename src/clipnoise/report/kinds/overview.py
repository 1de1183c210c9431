"""All private methods over all tasks in one table: gains over DP-SGD, changes, and time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from clipnoise.lazy import np
from clipnoise.report import baseline, records, tables
from clipnoise.report.blocks import Grid, HeadGroup, PrintedCell, PrintedRow, TableBlock
from clipnoise.report.formats import DASH, Metric, budget, count, decimal, exact, safe_csv
from clipnoise.report.items import ItemData, TableItem

if TYPE_CHECKING:
    import pandas as pd

    from clipnoise.report.records import Place, Task
    from clipnoise.report.tables import Cell

COLUMNS = ("method", "label", "claim", "metric", "group", "column", "value", "tasks", "diverged")

GAIN, CHANGE, TIME = "over dp-sgd", "change", ""  # groups of columns
Column = tuple[str, str]  # group and heading


@dataclass(frozen=True, kw_only=True)
class OverviewTable(TableItem):
    """By private method: mean, worst and best gain over dp-sgd at each ε, and relative time.

    Attributes:
        changes: further columns, by heading: the option to compare with, by axis, such as `{"by
            RDP": {accountant: rdp}}`.
    """

    kind: Literal["overview"] = "overview"
    changes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def compared(self) -> Mapping[str, Mapping[str, str]]:
        """The panels that further columns compare with these."""
        return {f"changes.{heading}": options for heading, options in self.changes.items()}

    def block(self, data: ItemData) -> TableBlock:
        """Return the overview as it is printed."""
        return build_overview(data).block

    def csv(self, data: ItemData) -> str:
        """Return the overview with all digits, a line for each cell."""
        return to_csv(build_overview(data), data.watermark)


@dataclass(frozen=True)
class OverTasks:
    """What a method has in one column.

    Attributes:
        value: a mean over tasks, or the least or the most; not finite where a run diverged, NaN
            where nothing is known.
        tasks: how many tasks it covers: those on which all planned runs have ended.
        diverged: on how many of them a run diverged, or one that it is compared with.
    """

    value: float
    tasks: int
    diverged: int = 0


@dataclass(frozen=True)
class Line:
    """What a method has in each column.

    Attributes:
        method: its id.
        label: what tells it apart from others with the same id.
        cell: all its runs, for what they claim.
        entries: by column; None where nothing is planned.
    """

    method: str
    label: str
    cell: Cell
    entries: Mapping[Column, OverTasks | None]

    @property
    def held_up(self) -> bool:
        """Whether other work held up most of its runs."""
        return baseline.contended(records.where(self.cell.runs, status="completed"))


@dataclass(frozen=True)
class Overview:
    """The private methods of some tasks beside DP-SGD.

    Attributes:
        title: heading.
        caption: what the reader should see; may be empty.
        metric: what is compared.
        tasks: how many there are.
        lines: the methods in the order of the study.
    """

    title: str
    caption: str
    metric: Metric
    tasks: int
    lines: tuple[Line, ...]

    @property
    def block(self) -> TableBlock:
        """The table as it is printed, in one grid."""
        columns = list(self.lines[0].entries) if self.lines else []
        groups = dict.fromkeys(group for group, _ in columns)
        rows = [
            PrintedRow(
                f"{line.label} {line.cell.mark}".strip(),
                [self._shown(line, *at) for at in line.entries.items()],
            )
            for line in self.lines
        ]
        headed = [
            HeadGroup(one, [name for group, name in columns if group == one]) for one in groups
        ]
        return TableBlock(
            title=self.title, caption=self.caption, grids=[Grid(headed, rows)], notes=self.notes
        )

    def _shown(self, line: Line, column: Column, entry: OverTasks | None) -> PrintedCell:
        if entry is None:
            return PrintedCell(text=DASH)
        if column[0] == TIME:
            mark, text = tables.HELD_UP if line.held_up else "", decimal(entry.value, 2)
        elif entry.diverged and not math.isfinite(entry.value):
            return PrintedCell(text=f"diverged {entry.diverged}/{self.tasks}")
        else:
            mark, text = "", self._signed(entry.value)
        covered = "" if entry.tasks == self.tasks else f" ({entry.tasks}/{self.tasks})"
        return PrintedCell(text=text + covered, mark=mark)

    def _signed(self, value: float) -> str:
        scaled, digits = self.metric.factor * value, 1 if self.metric.unit else 3
        text = decimal(scaled, digits)
        if text == DASH or not text.strip("−0."):
            return text.removeprefix("−")
        return text if text.startswith("−") else f"+{text}"

    @property
    def notes(self) -> list[str]:
        """The notes below the table, one sentence or two each."""
        if not self.lines:
            return ["No private run is planned for these panels."]
        every = [entry for line in self.lines for entry in line.entries.values()]
        compared = any(group == CHANGE for group, _ in self.lines[0].entries)
        base = baseline.BASELINE
        named = f"{self.metric.name}{', in points' if self.metric.unit else ''}; + is better."
        notes = [
            f"{named} Over {base}: mean over {count(self.tasks, 'task')}, each with the same "
            f"weight, of the mean difference to {base} over seeds; worst and best: of a task "
            "at a budget. None of these differences is tested; the table of each task does that.",
            "Change: the same mean, from the runs to the left to those that a heading names."
            if compared
            else "",
            f"Time: device time as a multiple of that of {base}, the median over tasks."
            if (TIME, "time") in self.lines[0].entries
            else "",
            "(n/N): over n of N tasks. On the others runs are missing, or none is planned."
            if any(entry and entry.tasks < self.tasks for entry in every)
            else "",
            "Diverged n/N: a run diverged on n of N tasks, or one that it is compared with, so "
            "there is no mean."
            if any(entry and entry.diverged for entry in every)
            else "",
            f"{DASH}: no such run is planned." if None in every else "",
            *tables.mark_notes([line.cell for line in self.lines]),
            tables.HELD_UP_NOTE if any(line.held_up for line in self.lines) else "",
        ]
        return [note for note in notes if note]


def build_overview(data: ItemData) -> Overview:
    """Compare the private methods of some panels with DP-SGD, and with their own other runs."""
    shown = data.runs[records.is_private(data.runs)]
    metric = tables.choose_metric(shown)
    methods = dict(records.by_key(shown))
    base = baseline.baseline_of(methods)
    level = shown[:0] if base is None else methods[base]
    others = {
        option.removeprefix("changes."): baseline.changes(runs, shown, metric)
        for option, runs in data.others.items()
    }
    timed = (
        baseline.device_seconds(shown).notna().any() or not (shown["status"] == "completed").any()
    )
    lines = []
    for (method, label), rows in methods.items():
        gains = baseline.changes(rows, level.assign(method=method, label=label), metric)[
            method, label
        ]
        columns = {
            (GAIN, budget(text)): _entry({at: gains[at] for at in gains if at[2] == text}, _mean)
            for text in shown["budget"].drop_duplicates()
        }
        columns |= {(GAIN, "worst"): _entry(gains, min), (GAIN, "best"): _entry(gains, max)}
        columns |= {
            (CHANGE, heading): _entry(found.get((method, label), {}), _mean)
            for heading, found in others.items()
        }
        if timed:
            columns[TIME, "time"] = _time(rows, level)
        lines.append(Line(method, label, tables.claimed(rows, metric), columns))
    tasks = len(shown[["dataset", "model"]].drop_duplicates())
    return Overview(data.title, data.item.caption, metric, tasks, tuple(lines))


def _time(rows: pd.DataFrame, level: pd.DataFrame) -> OverTasks:
    """Return the median over tasks of how long a run takes, as a multiple of the baseline's."""
    of_baseline = dict(records.split(level, "dataset", "model"))
    tasks = records.split(rows, "dataset", "model")
    ratios = [baseline.cost_ratio(own, of_baseline.get(task, level[:0])) for task, own in tasks]
    known = [ratio for ratio in ratios if not math.isnan(ratio)]
    return OverTasks(float(np.median(known)) if known else math.nan, len(known))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _entry(
    found: Mapping[Place, float], combined: Callable[[list[float]], float]
) -> OverTasks | None:
    """Combine what `changes` returned over the budgets of each task, then over tasks."""
    by_task: dict[Task, list[float]] = {}
    for (dataset, model, _), value in found.items():
        by_task.setdefault((dataset, model), []).append(value)
    ended = [values for values in by_task.values() if not any(map(math.isnan, values))]
    if not ended:
        return OverTasks(math.nan, 0) if by_task else None
    value = combined([combined(values) for values in ended])
    return OverTasks(value, len(ended), sum(any(map(math.isinf, values)) for values in ended))


def to_csv(overview: Overview, watermark: str = "") -> str:
    """Return one line per method and column, with all digits.

    A value is empty where a run diverged or nothing is known.
    """
    lines = [
        {
            "method": line.method,
            "label": line.label,
            "claim": line.cell.claim,
            "metric": overview.metric.column,
            "group": group,
            "column": heading,
            "value": exact(entry.value) if math.isfinite(entry.value) else "",
            "tasks": entry.tasks,
            "diverged": entry.diverged,
        }
        for line in overview.lines
        for (group, heading), entry in line.entries.items()
        if entry
    ]
    return safe_csv(COLUMNS, lines, watermark)
