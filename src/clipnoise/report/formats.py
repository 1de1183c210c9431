"""Metrics and numbers as text: digits, units and signs are decided here only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

DASH = "–"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Metric:
    """A column of results and how it is shown.

    Attributes:
        column: its name in runs.csv and curves.csv.
        name: its name for readers.
        unit: "%" or "".
        factor: converts a value into that unit.
        decimals: digits after the point; None shows four significant digits.
        higher_is_better: which direction is good.
    """

    column: str
    name: str
    unit: str
    factor: float
    decimals: int | None
    higher_is_better: bool

    @property
    def heading(self) -> str:
        """The name with its unit, for an axis or a table."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def change(self) -> str:
        """The name with the unit of a difference: that of two percentages is points."""
        return f"{self.name.lower()} (points)" if self.unit else self.name.lower()

    def show(self, value: float) -> str:
        """Return a value in the metric's unit, with its digits."""
        scaled = value * self.factor
        return significant(scaled) if self.decimals is None else decimal(scaled, self.decimals)


ACCURACY = Metric("test_accuracy", "Test accuracy", "%", 100.0, 2, True)
LOSS = Metric("test_loss", "Test loss", "", 1.0, 4, False)
TRAINING_ACCURACY = Metric("train_accuracy", "Training accuracy", "%", 100.0, 2, True)
TRAINING_LOSS = Metric("train_loss", "Training loss", "", 1.0, 4, False)
METRICS = {metric.column: metric for metric in (ACCURACY, LOSS, TRAINING_ACCURACY, TRAINING_LOSS)}


def exact(value: float) -> str:
    """Return a number for a CSV file with all its digits; nothing for NaN."""
    return "" if math.isnan(value) else repr(value)


def decimal(value: float, decimals: int) -> str:
    """Return a number with fixed digits after the point; a dash for NaN."""
    if math.isnan(value):
        return DASH
    return f"{value:.{decimals}f}".replace("-", "−").replace("inf", "∞")


def significant(value: float, digits: int = 4) -> str:
    """Return a number with significant digits; very small and large ones as powers of ten.

    Args:
        value: any number; NaN gives a dash.
        digits: significant digits; trailing zeros are dropped.
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
        options = {name: one for name, one in value.items() if name != "kind" and one is not None}
        words = ", ".join(f"{name} {shown(one)}" for name, one in options.items())
        return " ".join(filter(None, [value.get("kind", ""), words and f"({words})"]))
    if isinstance(value, float | int) and not isinstance(value, bool):
        return significant(float(value), 6)
    return str(value)


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: `1 run`, `6 runs`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


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
    """Return words as a phrase: `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
