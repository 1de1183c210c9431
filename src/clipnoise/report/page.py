"""A study's results as one web page that needs no network: a table to search, and charts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import vl_convert
from itables import JavascriptFunction
from itables import options as itables_options
from itables.javascript import generate_init_offline_itables_html, to_html_datatable
from jinja2 import Environment

from clipnoise.report.baseline import baseline_of, changes, cost_ratio, gaps
from clipnoise.report.figures.canvas import series
from clipnoise.report.figures.styles import style
from clipnoise.report.formats import Metric, budget, named
from clipnoise.report.overview import build_overview
from clipnoise.report.records import is_private, of_panels, split
from clipnoise.report.statistics import (
    interquartile_interval,
    paired_differences,
    paired_interval,
)
from clipnoise.report.tables import NOT_AUDITED, Cell, build_table, choose_metric
from clipnoise.studies.file import OVERVIEW, ReportItem
from clipnoise.studies.status import span
from clipnoise.studies.study import Study

HEIGHT = 18  # pixels per method
DIGITS = {"σ": 3, "δ": None}  # of a number in the table, where not two


def build_page(study: Study, runs: pd.DataFrame, template: Path, links: Mapping[str, str]) -> str:
    """Return the page as HTML, everything that it needs included.

    Args:
        study, runs: what to show.
        template: of the page, for Jinja.
        links: file name → what it is, of the files beside the page.

    Returns:
        The same text for the same runs.
    """
    rows = settings(study, runs)
    table = rows.drop(columns="_method", errors="ignore").dropna(axis=1, how="all")
    charts = [
        {"title": title, "caption": caption, "specs": [one.to_dict() for one in drawn]}
        for title, caption, drawn in _charts(study, runs, rows)
    ]
    page = Environment(autoescape=True).from_string(template.read_text(encoding="utf-8"))
    return page.render(
        title=study.title,
        watermark=study.scale.watermark,
        description=[block for block in study.description.split("\n\n") if block.strip()],
        charts=charts,
        overviews=[
            {
                "title": one.title,
                "caption": one.caption,
                "block": one.blocks()[0],
                "notes": one.notes,
            }
            for one in (build_overview(i, runs) for i in study.report if i.kind == OVERVIEW)
        ],
        columns=list(table),
        table=_table(table),
        table_code=generate_init_offline_itables_html(itables_options.dt_bundle),
        chart_code=vl_convert.javascript_bundle(),  # type: ignore[call-arg]  # a default is left out
        links=links,
        origin=_origin(runs),
    )


# The table


def settings(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per setting: a method in a panel at a budget, over its seeds.

    Its columns are those of the page's table; numbers stay numbers, rounded.
    """
    rows: list[dict[str, Any]] = []
    for (panel,), here in split(runs, "panel"):
        table = build_table(here, panel)
        metric = table.metric
        for row, place, cell in table.cells():
            column = table.column(place)
            base = baseline_of(column)
            found, same = cell.sample, cell.runs
            given = json.loads(same["hyperparameters"].iloc[0] or "{}")
            rows.append(
                {
                    "Task": study.titles.get(panel, panel),
                    "Method": row.label,
                    "ε": budget(place[2]).removeprefix("ε = ") if row.private else "none",
                    metric.heading: _rounded(metric.factor * found.mean, 2),
                    "±": _rounded(metric.factor * found.deviation, 2),
                    "Runs": f"{found.n}/{found.planned}",
                    "Diverged": found.diverged,
                    **_compared(cell, column[base] if base else None, metric),
                    "Best": "yes" if table.leads(row, place) else "",
                    "Claim": "oracle" if cell.oracle else cell.claim,
                    "Adjacency": str(same["adjacency"].max()),
                    "δ": _rounded(same["delta"].max(), 12),
                    "σ": _rounded(same["noise_multiplier"].max(), 3),
                    "ε with tuning": _rounded(same["epsilon_with_tuning"].max(), 2),
                    "Audit": same["audit"].max() or (NOT_AUDITED if row.private else ""),
                    "Hyper-parameters": named(
                        {k: v for k, v in given.items() if k != "id" and v is not None}
                    ),
                    "_method": row.method,
                }
            )
    return pd.DataFrame(rows)


def _compared(cell: Cell, base: Cell | None, metric: Metric) -> dict[str, Any]:
    """Return the difference to DP-SGD at the same place, its interval, and the time it takes."""
    differences: dict[int, float] = {}
    if base is not None and base is not cell:
        up = metric.higher_is_better
        own, other = cell.sample.values, base.sample.values
        differences = paired_differences(own, other, higher_is_better=up)
    found = paired_interval(differences)
    ends = (_rounded(metric.factor * end, 2) for end in (found.mean, found.low, found.high))
    time = math.nan if base is None else cost_ratio(cell.runs, base.runs)
    return dict(zip(("Δ DP-SGD", "low", "high", "Time"), (*ends, _rounded(time, 2)), strict=True))


def _rounded(value: float, digits: int) -> float | None:
    return round(float(value), digits) if math.isfinite(value) else None


def _table(rows: pd.DataFrame) -> str:
    """Return the table; of a number it holds the value, which the browser rounds to show it."""
    return to_html_datatable(
        rows,
        connected=False,
        table_id="results",
        display_logo_when_loading=False,
        showIndex=False,
        column_filters="header",
        format_floats_in_python=False,
        columnDefs=[
            {"targets": column, "render": _number(DIGITS.get(str(name), 2))}
            for column, name in enumerate(rows)
            if rows[name].dtype.kind == "f"
        ],
        scrollX=True,
        maxBytes=0,
        lengthMenu=[25, 100, -1],
        layout={"topStart": "pageLength", "topEnd": "search"},
        classes="display compact nowrap",
        style="width:100%",
    )


def _number(digits: int | None) -> JavascriptFunction:
    """Return what shows a number, with this many decimals or with those that it has."""
    text = "String(value)" if digits is None else f"value.toFixed({digits})"
    return JavascriptFunction(
        "function (value, type) { return type === 'sort' || type === 'type' ? value "
        f": Number.isFinite(value) ? {text}.replace('-', '−') : ''; }}"
    )


def _origin(runs: pd.DataFrame) -> str:
    """Return how many runs there are, from which code and machine, and how long they took."""
    done = runs.drop_duplicates("hash")
    done = done[done["status"].isin(["completed", "diverged"])]
    if done.empty:
        return "No run has finished."
    named = {
        name: ", ".join(sorted(set(done[name]) - {""})) for name in ("git_commit", "cpu", "gpu")
    }
    machine = " and ".join(filter(None, (named["cpu"], named["gpu"])))
    day = max(done["finished"])[:10]
    return (
        f"{len(done):,} reported runs took {span(float(done['seconds'].sum()))} on "
        f"{machine or 'an unknown machine'}, without those for tuning. "
        f"Commit {', '.join(filter(None, (named['git_commit'] or 'unknown', day)))}."
    )


# The charts


def _charts(
    study: Study, runs: pd.DataFrame, rows: pd.DataFrame
) -> Iterator[tuple[str, str, list[Any]]]:
    """Yield title, caption and charts: those of the report across tasks, and that of all tasks."""
    kinds = {"closed-gap": closed_gap, "changes": _changes}
    for item in study.report:
        drawn = kinds[item.kind](item, runs) if item.kind in kinds else []
        if drawn:
            yield item.title, item.caption, drawn
    yield (
        "Difference to DP-SGD on each task",
        "Paired over seeds, with 95% intervals. Choose a task and a budget below the chart.",
        _differences(rows),
    )


def closed_gap(item: ReportItem, runs: pd.DataFrame) -> list[Any]:
    """Draw the interquartile mean of the closed share of the privacy gap, for each budget."""
    shown = of_panels(runs, item)
    metric = choose_metric(shown)
    names = {one.key: one.title for one in series(shown)}
    drawn = []
    for text in shown[is_private(shown)]["budget"].drop_duplicates():
        found = gaps(shown, str(text), metric)
        points, lost = [], []
        for key, scores in found.shares.items():
            share = interquartile_interval(scores)
            ends = [round(100 * end, 1) for end in (share.mean, share.low, share.high)]
            if all(map(math.isfinite, ends)):
                interval = dict(zip(("value", "low", "high"), ends, strict=True))
                known = {"method": names[key], "_method": key[0], **interval}
                points.append({**known, "tasks": len(scores)})
            else:
                lost.append(names[key])
        if found.shares:
            counted = f"{found.tasks - len(found.left_out)} of {found.tasks} tasks"
            title = [f"{budget(str(text))}, {counted}"]
            if lost:
                title.append(f"no finite interval, because runs diverged: {', '.join(lost)}")
            chart = _with_intervals(points, "Closed gap (%)", least=-100)
            drawn.append(chart.properties(title=title))
    return drawn


def _changes(item: ReportItem, runs: pd.DataFrame) -> list[Any]:
    """Draw the mean change of each method from some panels to others, a tick for each task."""
    shown = of_panels(runs, item)
    metric = choose_metric(shown)
    reference = runs[runs["panel"].isin(item.against)]
    points = [
        {
            "method": label,
            "_method": method,
            "task": f"{dataset}, {model}, {budget(text)}",
            "value": round(metric.factor * value, 2),
        }
        for (method, label), found in changes(shown, reference, metric).items()
        for (dataset, model, text), value in found.items()
        if math.isfinite(value)
    ]
    if not points:
        return []
    base = _chart(points)
    order = list(dict.fromkeys(str(point["method"]) for point in points))
    y = alt.Y("method:N", sort=order, title=None)
    x = alt.X("value:Q", title=f"Change in {metric.change}")
    ticks = base.mark_tick(opacity=0.6).encode(x=x, y=y, tooltip=["method:N", "task:N", "value:Q"])
    means = base.mark_point(filled=True, size=60, opacity=1).encode(
        x=alt.X("mean(value):Q"), y=y, color=_colours(points), tooltip=["method:N", "mean(value):Q"]
    )
    return [(ticks + means).properties(width="container", height=alt.Step(HEIGHT))]


def _differences(rows: pd.DataFrame) -> list[Any]:
    """Draw the difference to DP-SGD of every method on a task and at a budget of choice."""
    known = rows[rows["Δ DP-SGD"].notna() & (rows["ε"] != "none")]
    points = [
        {
            "task": row["Task"],
            "ε": f"ε = {row['ε']}",
            "method": row["Method"],
            "_method": row["_method"],
            "value": row["Δ DP-SGD"],
            "low": row["low"],
            "high": row["high"],
            "claim": row["Claim"],
        }
        for row in known.to_dict("records")
    ]
    if not points:
        return []
    chart = _with_intervals(points, "Difference to DP-SGD (points)")
    for name in ("ε", "task"):  # shown in reverse order
        values = list(dict.fromkeys(point[name] for point in points))
        menu = alt.binding_select(options=values, name=f"{name} ")
        chosen = alt.selection_point(fields=[name], bind=menu, value=values[0])
        chart = chart.add_params(chosen).transform_filter(chosen)
    return [chart]


def _with_intervals(points: list[dict[str, Any]], title: str, least: float = -math.inf) -> Any:
    """Draw a value with its interval for each method, below each other.

    Args:
        points: what is drawn, and what is shown when the pointer is above it.
        title: of the axis.
        least: where the axis starts at the earliest; what is below is drawn at its edge.
    """
    low = max(least, min(0, *(point["low"] for point in points)))
    high = max(0, *(point["high"] for point in points))
    scale = alt.Scale(domain=[low, high], clamp=True) if least > -math.inf else alt.Scale()
    base = _chart(points)
    best = alt.EncodingSortField("value", op="max", order="descending")
    y = alt.Y("method:N", sort=best, title=None)
    numbers = ("value", "low", "high", "tasks")
    names = [name for name in points[0] if not name.startswith("_")]
    tooltip = [alt.Tooltip(f"{name}:{'Q' if name in numbers else 'N'}") for name in names]
    zero = base.mark_rule(strokeDash=[3, 3]).encode(x=alt.datum(0))
    lines = base.mark_rule(strokeWidth=2.5).encode(
        x=alt.X("low:Q", title=title, scale=scale),
        x2="high:Q",
        y=y,
        color=_colours(points),
        tooltip=tooltip,
    )
    marks = base.mark_point(filled=True, size=60, opacity=1).encode(
        x=alt.X("value:Q"), y=y, color=_colours(points), tooltip=tooltip
    )
    layers = alt.layer(zero, lines, marks)
    return layers.properties(width="container", height=alt.Step(HEIGHT))


def _chart(points: list[dict[str, Any]]) -> Any:
    """Return a chart of these points, which a page holds as CSV: that takes a third of JSON."""
    rows = pd.DataFrame(points).drop(columns="_method")
    numbers = {str(name): "number" for name in rows.select_dtypes("number")}  # not sorted as text
    csv = alt.CsvDataFormat(type="csv", parse=numbers)
    return alt.Chart(alt.InlineData(values=rows.to_csv(index=False), format=csv))


def _colours(points: Iterable[Mapping[str, Any]]) -> alt.Color:
    """Return the colours that the methods have in every figure."""
    looks = {str(point["method"]): style(str(point["_method"])).colour for point in points}
    scale = alt.Scale(domain=list(looks), range=list(looks.values()))
    return alt.Color("method:N", scale=scale, legend=None)
