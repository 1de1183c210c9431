"""Interactive charts of a web page: a row for each method, in the colours of the figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from clipnoise.report.figures.styles import style

Point = Mapping[str, Any]  # the columns of what is drawn; `_method` is the id of its method
HEIGHT = 18  # pixels per method


def with_intervals(points: Sequence[Point], title: str) -> Any:
    """Draw a value with its interval for each method, below each other.

    Args:
        points: what is drawn, and what is shown when the pointer is above it.
        title: of the axis.
    """
    base = chart(points)
    best = alt.EncodingSortField("value", op="max", order="descending")
    y = alt.Y("method:N", sort=best, title=None)
    numbers = ("value", "low", "high")
    names = [name for name in points[0] if not name.startswith("_")]
    tooltip = [alt.Tooltip(f"{name}:{'Q' if name in numbers else 'N'}") for name in names]
    zero = base.mark_rule(strokeDash=[3, 3]).encode(x=alt.datum(0))
    lines = base.mark_rule(strokeWidth=2.5).encode(
        x=alt.X("low:Q", title=title),
        x2="high:Q",
        y=y,
        color=colours(points),
        tooltip=tooltip,
    )
    marks = base.mark_point(filled=True, size=60, opacity=1).encode(
        x=alt.X("value:Q"), y=y, color=colours(points), tooltip=tooltip
    )
    layers = alt.layer(zero, lines, marks)
    return layers.properties(width="container", height=alt.Step(HEIGHT))


def chart(points: Sequence[Point]) -> Any:
    """Return a chart of these points, which a page holds as CSV: that takes a third of JSON."""
    rows = pd.DataFrame(points).drop(columns="_method")
    numbers = {str(name): "number" for name in rows.select_dtypes("number")}  # not sorted as text
    csv = alt.CsvDataFormat(type="csv", parse=numbers)
    return alt.Chart(alt.InlineData(values=rows.to_csv(index=False), format=csv))


def colours(points: Iterable[Point]) -> alt.Color:
    """Return the colours that the methods have in every figure."""
    looks = {str(point["method"]): style(str(point["_method"])).colour for point in points}
    scale = alt.Scale(domain=list(looks), range=list(looks.values()))
    return alt.Color("method:N", scale=scale, legend=None)
