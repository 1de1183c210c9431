"""A horizontal axis of the values of a hyper-parameter."""

from __future__ import annotations

import json
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from clipnoise.report.formats import shown, significant

WIDE = 50  # values that span more than this factor stand on a logarithmic axis


def places(ax: Axes, texts: list[str]) -> dict[str, float]:
    """Set the horizontal axis and return the place of each value, from left to right.

    Numbers are placed by value; anything else is evenly spaced in the order of the study.
    """
    numbers = _numbers(texts)
    if numbers is None:
        at = {text: float(number) for number, text in enumerate(texts)}
    else:
        at = {text: numbers[text] for text in in_order(texts)}
        if min(numbers.values()) > 0 and max(numbers.values()) > WIDE * min(numbers.values()):
            ax.set_xscale("log")
    ax.set_xticks(list(at.values()), [tick(text) for text in at])
    ax.xaxis.set_minor_locator(NullLocator())
    return at


def in_order(texts: list[str]) -> list[str]:
    """Return values, as JSON, by size if all are numbers, else in the order of the study."""
    numbers = _numbers(texts)
    return texts if numbers is None else sorted(texts, key=lambda text: numbers[text])


def _numbers(texts: list[str]) -> dict[str, float] | None:
    values = {text: json.loads(text) for text in texts}
    able = all(isinstance(value, int | float) for value in values.values())
    return {text: float(value) for text, value in values.items()} if able else None


def tick(text: str) -> str:
    """Return what stands beside a value, which is JSON."""
    return _tick(json.loads(text))


def _tick(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_tick, value))
    return significant(float(value)) if isinstance(value, int | float) else shown(value)
