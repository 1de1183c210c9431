"""Metrics, numbers and lists as text, and tables that say nothing twice.

Digits, units and signs are decided here only.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clipnoise.data.measures import MEASURES, PERCENT, column_of
from clipnoise.files import csv_text, without_formulas
from clipnoise.report.blocks import ListBlock

DASH = "–"
VALUES = "; "  # between those that a cell holds for
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Metric:
    """A column of results and how it is shown.

    Attributes:
        column: its name in the tables of runs and curves.
        name: its name for readers.
        unit: "%" or "".
        factor: converts a value into that unit.
        decimals: digits after the point; None shows four significant digits.
        higher_is_better: which direction is good.
    """

    column: str
    name: str
    unit: str = ""
    factor: float = 1.0
    decimals: int | None = None
    higher_is_better: bool = True

    @property
    def sign(self) -> float:
        """1 if higher is better, else −1."""
        return 1.0 if self.higher_is_better else -1.0

    @property
    def heading(self) -> str:
        """The name with its unit, for an axis or a table."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def inline(self) -> str:
        """The name within a sentence: only its first letter is small, as in `test AUC`."""
        return f"{self.name[0].lower()}{self.name[1:]}"

    @property
    def change(self) -> str:
        """The name with the unit of a difference: that of two percentages is points."""
        return f"{self.inline} (points)" if self.unit else self.inline

    def show(self, value: float) -> str:
        """Return a value in the metric's unit, with its digits."""
        scaled = value * self.factor
        return significant(scaled) if self.decimals is None else decimal(scaled, self.decimals)


ACCURACY = Metric("test_accuracy", "Test accuracy", *PERCENT)
LOSS = Metric("test_loss", "Test loss", "", 1.0, 4, False)
TRAINING_ACCURACY = Metric("train_accuracy", "Training accuracy", *PERCENT)
TRAINING_LOSS = Metric("train_loss", "Training loss", "", 1.0, 4, False)
DROP = Metric("largest_drop", "Largest fall of test accuracy", *PERCENT, False)
ALONG = Metric("mean_test_accuracy", "Mean test accuracy along training", *PERCENT)
MEASURED = tuple(
    Metric(one.column, f"Test {one.name}", one.unit, one.factor, one.decimals, one.higher_is_better)
    for one in MEASURES.values()
)
METRICS = {
    metric.column: metric
    for metric in (ACCURACY, LOSS, TRAINING_ACCURACY, TRAINING_LOSS, DROP, ALONG, *MEASURED)
}


def metric_of(column: str) -> Metric:
    """Return the metric in a column, or a plain one of that name."""
    return METRICS.get(column, Metric(column, column))


def searched_by(name: str) -> Metric:
    """Return the metric on the test split of what a search chose by, e.g. `validation_loss`."""
    return METRICS.get(column_of(name.removeprefix("validation_")), ACCURACY)


def measured_in(columns: Container[str]) -> list[Metric]:
    """Return the metrics that a study asked for, from the columns of its runs."""
    return [metric for metric in MEASURED if metric.column in columns]


def exact(value: float) -> str:
    """Return a number for a CSV file with all its digits; nothing for NaN."""
    return "" if math.isnan(value) else repr(value)


def safe_csv(
    columns: Sequence[str], lines: Iterable[Mapping[str, object]], watermark: str = ""
) -> str:
    """Return lines as CSV in which no program finds a formula; a watermark is a column."""
    mark = {"warning": watermark} if watermark else {}
    marked = (without_formulas({**line, **mark}) for line in lines)
    return csv_text([*columns, *mark], marked)


def decimal(value: float, decimals: int) -> str:
    """Return a number with fixed digits after the point; a dash for NaN."""
    if math.isnan(value):
        return DASH
    return f"{value:.{decimals}f}".replace("-", "−").replace("inf", "∞")


def significant(value: float, digits: int = 4) -> str:
    """Return a number with significant digits, trailing zeros dropped; a dash for NaN.

    Very small and very large ones are powers of ten.
    """
    if math.isnan(value):
        return DASH
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        text = f"{value:.{digits}g}"
        text = f"{float(text):.0f}" if "e" in text else text
        return text.replace("-", "−")
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return power(mantissa.rstrip("0").rstrip("."), exponent)


def power(mantissa: str, exponent: str) -> str:
    """Return a number as a multiple of a power of ten, with the digits given."""
    return f"{mantissa} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}".replace("-", "−")


def shown(value: Any) -> str:
    """Return a hyper-parameter as text: numbers short, lists in brackets, kinds with their options.

    One without a value of its own follows from others.
    """
    if value is None:
        return "as computed"
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        words = named({k: one for k, one in value.items() if k != "kind" and one is not None})
        return " ".join(filter(None, [value.get("kind", ""), words and f"({words})"]))
    if isinstance(value, float | int) and not isinstance(value, bool):
        return significant(float(value), 6)
    return str(value)


def named(values: Mapping[str, object]) -> str:
    """Return hyper-parameters with their names: `learning_rate 0.5, betas [0.9, 0.999]`."""
    return ", ".join(f"{name} {shown(value)}" for name, value in values.items())


def count(number: int, noun: str) -> str:
    """Return a count with its noun: `1 run`, `6 runs`."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def budget(text: str) -> str:
    """Return a budget as a reader writes it: `eps=1` → `ε = 1`."""
    name, _, value = text.partition("=")
    return f"{ {'eps': 'ε', 'sigma': 'σ'}.get(name, name) } = {value}" if value else text


def ranges(numbers: list[int]) -> str:
    """Return whole numbers with consecutive ones joined: `1–3, 5`."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ", ".join(f"{s[0]}–{s[-1]}" if len(s) > 2 else ", ".join(map(str, s)) for s in spans)


def listing(words: list[str]) -> str:
    """Return words as a list in a sentence; semicolons part more than two with commas in them."""
    if len(words) > 2 and any("," in word for word in words):
        return f"{VALUES.join(words[:-1])}; and {words[-1]}"
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


Cells = tuple[tuple[str, ...], ...]  # the values that a row holds for, column by column


def merged(rows: Iterable[Sequence[Sequence[str]]], columns: Iterable[int]) -> list[Cells]:
    """Join rows that are equal but for one column, for each of some columns in turn.

    A joined row holds for every combination of the values in its cells, and for no other.

    Args:
        rows: a cell is one value or several; equal rows are kept once.
        columns: the numbers of the columns to join over, the first one first.
    """
    plain = (
        tuple((cell,) if isinstance(cell, str) else tuple(cell) for cell in row) for row in rows
    )
    found: list[Cells] = list(dict.fromkeys(plain))
    for column in columns:
        joined: dict[Cells, dict[str, None]] = {}
        for row in found:
            rest = (*row[:column], *row[column + 1 :])
            joined.setdefault(rest, {}).update(dict.fromkeys(row[column]))
        found = [(*rest[:column], tuple(one), *rest[column:]) for rest, one in joined.items()]
    return found


def compact(
    heads: Sequence[str],
    rows: Iterable[Sequence[Sequence[str]]],
    merge: Iterable[int] = (),
    numbers: int = 0,
    implied: Mapping[int, int] | None = None,
) -> ListBlock:
    """Return rows as a table that says nothing twice: its caption is what holds for all of them.

    Args:
        heads: of the columns.
        rows: as in `merged`.
        merge: the columns to join rows over, as in `merged`.
        numbers: how many of the last columns hold numbers, which are aligned right.
        implied: columns, by number, that are left out where they follow from another column.
    """
    joined = merged(rows, merge)
    values = [{row[i] for row in joined} for i in range(len(heads))]
    varying = [i for i, found in enumerate(values) if len(joined) < 2 or len(found) > 1]
    for column, source in (implied or {}).items():
        pairs = {(row[source], row[column]) for row in joined}
        if column in varying and len(pairs) == len(values[source]) > 1:
            varying.remove(column)
    same = [i for i, found in enumerate(values) if len(found) == 1 < len(joined)]
    shared = " · ".join(
        f"{heads[i]} {VALUES.join(joined[0][i])}" for i in same if joined[0][i] != (DASH,)
    )
    return ListBlock(
        title="",
        caption=f"In all rows: {shared}." if shared else "",
        heads=[heads[i] for i in varying],
        align="".join("r" if i >= len(heads) - numbers else "l" for i in varying),
        rows=[[VALUES.join(row[i]) for i in varying] for row in joined],
    )
