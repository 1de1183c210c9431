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
    values = [json.loads(text) for text in texts]
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values):
        at = {text: float(number) for number, text in enumerate(texts)}
    else:
        at = dict(sorted(zip(texts, numbers, strict=True), key=lambda pair: pair[1]))
        if min(numbers) > 0 and max(numbers) > WIDE * min(numbers):
            ax.set_xscale("log")
    ax.set_xticks(list(at.values()), [_tick(json.loads(text)) for text in at])
    ax.xaxis.set_minor_locator(NullLocator())
    return at


def _tick(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_tick, value))
    return significant(float(value)) if isinstance(value, int | float) else shown(value)
