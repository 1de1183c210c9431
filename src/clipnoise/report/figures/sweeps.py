"""Final accuracy against a hyper-parameter: one subplot per method, a line per budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clipnoise.errors import unknown
from clipnoise.report import statistics
from clipnoise.report.figures import canvas, places, styles
from clipnoise.report.figures.styles import Style
from clipnoise.report.formats import Metric, budget, named

COLUMNS = 2  # subplots


def swept(runs: pd.DataFrame, over: str) -> pd.DataFrame:
    """Return the runs whose method has a hyper-parameter, with its `value` as JSON.

    Raises:
        UserError: no method has it.
    """
    values = [json.loads(text) if text else {} for text in runs["hyperparameters"]]
    known = {name for options in values for name in options}
    if over not in known:
        raise unknown("hyper-parameter", over, known, key="report.over")
    texts = [json.dumps(options[over]) if over in options else "" for options in values]
    valued = runs.assign(value=texts)
    return valued[valued["value"] != ""]


def draw(
    runs: pd.DataFrame,
    over: str,
    metric: Metric,
    beside: Callable[[Axes], None] | None = None,
) -> Figure:
    """Draw one subplot per dataset, model and method, a line per budget and other setting.

    Args:
        runs: as from `swept`.
        over: the hyper-parameter.
        metric: what is drawn.
        beside: draws one more subplot.
    """
    titled = canvas.groups(runs, "dataset", "model", "method")
    every = titled if beside is None else [*titled, ("", runs)]
    figure, subplots = canvas.grid(every, COLUMNS, height=2.4)
    if beside is not None:
        beside(subplots.pop()[0])
    lines = line_names(runs)
    looks = {
        text: styles.style(str(runs["method"].iloc[0]), rank)  # as variants of a method
        for rank, text in enumerate(lines.drop_duplicates())
    }
    for ax, rows in subplots:
        _draw_lines(ax, rows.assign(line=lines), looks, metric)
        ax.set(xlabel=over, ylabel=metric.heading)
    canvas.legend(figure, [canvas.LegendEntry(text, look) for text, look in looks.items()])
    return figure


def line_names(runs: pd.DataFrame) -> pd.Series:
    """Return what the line of each run is called: its budget, and other settings that are swept.

    Another hyper-parameter is swept if it differs between runs of one seed at one value. One that
    merely follows from the value or the budget is not.
    """
    options = [json.loads(text) for text in runs["hyperparameters"]]
    by_run = dict(zip(runs.index, options, strict=True))
    place = ["dataset", "model", "method", "budget", "value", "seed"]
    other: dict[str, None] = {}
    for rows in runs.groupby(place, sort=False).groups.values():
        found = [by_run[row] for row in rows]
        names = dict.fromkeys(name for one in found for name in one)
        other |= {n: None for n in names if any(one.get(n) != found[0].get(n) for one in found)}
    return runs["budget"].map(budget) + pd.Series(
        ["".join(f", {named({n: one[n]})}" for n in other if n in one) for one in by_run.values()],
        index=runs.index,
        dtype=object,
    )


def _draw_lines(ax: Axes, runs: pd.DataFrame, looks: Mapping[str, Style], metric: Metric) -> None:
    at = places.places(ax, list(dict.fromkeys(runs["value"])))
    for text, look in looks.items():
        line = runs[runs["line"] == text]
        points = [
            (x, statistics.sample(line[line["value"] == value], metric)) for value, x in at.items()
        ]
        canvas.line_with_deviations(ax, points, look, metric)
    ax.grid(visible=False, axis="x")
    canvas.chance_line(ax, runs, metric)
    canvas.say_what_lacks(ax, runs, canvas.series(runs), metric)
