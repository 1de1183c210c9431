"""All private methods over all tasks in one table: gains over DP-SGD, changes, and time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from clipnoise.report.baseline import (
    BASELINE,
    baseline_of,
    changes,
    contended,
    cost_ratio,
    device_seconds,
)
from clipnoise.report.formats import DASH, Metric, budget, count, decimal
from clipnoise.report.records import Place, Task, by_key, is_private, of_panels, split, where
from clipnoise.report.tables import (
    HELD_UP,
    HELD_UP_NOTE,
    Block,
    Cell,
    cell_of,
    choose_metric,
    mark_notes,
    plain,
)
from clipnoise.studies.file import ReportItem

GAIN, CHANGE, TIME = f"over {BASELINE}", "change", ""  # groups of columns
Column = tuple[str, str]  # group and heading


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
        return contended(where(self.cell.runs, status="completed"))


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
    watermark: str = ""

    def blocks(self) -> list[Block]:
        """Return the table as plain data, in one block."""
        columns = list(self.lines[0].entries) if self.lines else []
        groups = dict.fromkeys(group for group, _ in columns)
        rows = [
            {
                "label": f"{line.label} {line.cell.mark}".strip(),
                "cells": [self._shown(line, *at) for at in line.entries.items()],
            }
            for line in self.lines
        ]
        headed = [
            {"title": one, "headings": [name for group, name in columns if group == one]}
            for one in groups
        ]
        return [{"groups": headed, "rows": rows, "references": []}]

    def _shown(self, line: Line, column: Column, entry: OverTasks | None) -> dict[str, Any]:
        if entry is None:
            return plain(None, DASH)
        if column[0] == TIME:
            mark, text = HELD_UP if line.held_up else "", decimal(entry.value, 2)
        elif entry.diverged and not math.isfinite(entry.value):
            return plain(None, f"diverged {entry.diverged}/{self.tasks}")
        else:
            mark, text = "", self._signed(entry.value)
        covered = "" if entry.tasks == self.tasks else f" ({entry.tasks}/{self.tasks})"
        return plain(None, text + covered, mark)

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
        named = f"{self.metric.name}{', in points' if self.metric.unit else ''}; + is better."
        notes = [
            f"{named} Over {BASELINE}: mean over {count(self.tasks, 'task')}, each with the same "
            f"weight, of the mean difference to {BASELINE} over seeds; worst and best: of a task "
            "at a budget. None of these differences is tested; the table of each task does that.",
            "Change: the same mean, from the runs to the left to those that a heading names."
            if compared
            else "",
            f"Time: device time as a multiple of that of {BASELINE}, the median over tasks."
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
            *mark_notes([line.cell for line in self.lines]),
            HELD_UP_NOTE if any(line.held_up for line in self.lines) else "",
        ]
        return [note for note in notes if note]


def build_overview(item: ReportItem, runs: pd.DataFrame, watermark: str = "") -> Overview:
    """Compare the private methods of some panels with DP-SGD, and with their own other runs.

    Args:
        item: an item of the kind `overview`.
        runs: of all panels.
        watermark: of the study.
    """
    shown = of_panels(runs, item)
    shown = shown[is_private(shown)]
    metric = choose_metric(shown)
    methods = dict(by_key(shown))
    base = baseline_of(methods)
    level = shown[:0] if base is None else methods[base]
    others = {
        heading: changes(runs[runs["panel"].isin(panels)], shown, metric)
        for heading, panels in item.changes
    }
    timed = device_seconds(shown).notna().any() or not (shown["status"] == "completed").any()
    lines = []
    for (method, label), rows in methods.items():
        gains = changes(rows, level.assign(method=method, label=label), metric)[method, label]
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
        lines.append(Line(method, label, cell_of(rows, metric), columns))
    tasks = len(shown[["dataset", "model"]].drop_duplicates())
    return Overview(item.title or "Overview", item.caption, metric, tasks, tuple(lines), watermark)


def _time(rows: pd.DataFrame, level: pd.DataFrame) -> OverTasks:
    """Return the median over tasks of how long a run takes, as a multiple of the baseline's."""
    baseline = dict(split(level, "dataset", "model"))
    tasks = split(rows, "dataset", "model")
    ratios = [cost_ratio(own, baseline.get(task, level[:0])) for task, own in tasks]
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
