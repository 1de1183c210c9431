"""A study's results as one web page that needs no network: a table to search, and charts."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import compress
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import vl_convert
from itables import JavascriptFunction
from itables import options as itables_options
from itables.javascript import generate_init_offline_itables_html, to_html_datatable
from jinja2 import Environment

from clipnoise.report.baseline import baseline_of, cost_ratio
from clipnoise.report.charts import with_intervals
from clipnoise.report.formats import Metric, budget, named
from clipnoise.report.hyperparameters import with_tuning
from clipnoise.report.items import FigureItem, ItemData, study_items
from clipnoise.report.kinds.overview import OverviewTable
from clipnoise.report.origin import digests
from clipnoise.report.records import NON_PRIVATE, split
from clipnoise.report.statistics import advantage
from clipnoise.report.tables import NOT_AUDITED, Cell, build_table, choose_metric
from clipnoise.studies.status import span
from clipnoise.studies.study import Study

DIGITS = {"σ": 3, "δ": None}  # of a number in the table, where not two; None shows what it has
COMPARED = ("Δ DP-SGD", "low", "high")


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
    metrics = {choose_metric(here) for _, here in split(runs, "panel")}
    shown = study_items(study, runs, runs[:0])
    table = rows.drop(columns="_method", errors="ignore").dropna(axis=1, how="all")
    charts = [
        {"title": title, "caption": caption, "specs": [one.to_dict() for one in drawn]}
        for title, caption, drawn in _charts(shown, rows, metrics)
    ]
    page = Environment(autoescape=True).from_string(template.read_text(encoding="utf-8"))
    return page.render(
        title=study.title,
        watermark=study.scale.watermark,
        description=[block for block in study.description.split("\n\n") if block.strip()],
        charts=charts,
        overviews=[one.item.block(one) for one in shown if isinstance(one.item, OverviewTable)],
        columns=list(table),
        table=_table(table, metrics),
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
    rows: list[dict[str, object]] = []
    for (panel,), here in split(runs, "panel"):
        table = build_table(here, panel)
        metric = table.metric
        several = [here[name].nunique() > 1 for name in ("dataset", "model")]
        for row, place, cell in table.cells():
            column = table.column(place)
            base = baseline_of(column)
            found, same = cell.sample, cell.runs
            given = [json.loads(text or "{}") for text in dict.fromkeys(same["hyperparameters"])]
            cost, nominal = with_tuning(same)
            charged = math.isfinite(cost)
            rows.append(
                {
                    "Task": ", ".join(
                        [study.titles.get(panel, panel), *compress(place[:2], several)]
                    ),
                    "Method": row.label,
                    "ε": budget(place[2]).removeprefix("ε = ") if row.private else "none",
                    metric.heading: _in_unit(found.mean, metric),
                    "±": _in_unit(found.deviation, metric),
                    "Best": "yes" if table.leads(row, place) else "",
                    "Time": _time(cell, column[base] if base else None),
                    "ε with tuning": math.ceil(100 * cost) / 100 if charged else None,
                    **_compared(cell, column[base] if base else None, metric),
                    "Runs": f"{found.n}/{found.planned}",
                    "Diverged": found.diverged,
                    "Claim": NON_PRIVATE if cell.oracle else cell.claim,
                    "Adjacency": str(same["adjacency"].max()),
                    "δ": _rounded(same["delta"].max(), 12),
                    "σ": _rounded(same["noise_multiplier"].max(), 3),
                    "Claim with tuning": ("nominal" if nominal else cell.claim)
                    if charged
                    else None,
                    "Audit": same["audit"].max() or (NOT_AUDITED if row.private else ""),
                    "Hyper-parameters": " or ".join(
                        named({k: v for k, v in one.items() if k != "id" and v is not None})
                        for one in given
                    ),
                    "_method": row.method,
                }
            )
    return pd.DataFrame(rows)


def _compared(cell: Cell, base: Cell | None, metric: Metric) -> dict[str, float | None]:
    """Return the difference to DP-SGD at the same place, and its interval."""
    other = {} if base is None or base is cell else base.sample.values
    found = advantage(cell.sample.values, other, metric)
    ends = [_in_unit(end, metric) for end in (found.mean, found.low, found.high)]
    return dict(zip(COMPARED, ends, strict=True))


def _time(cell: Cell, base: Cell | None) -> float | None:
    """Return the device time of training relative to DP-SGD at the same place."""
    return None if base is None else _rounded(cost_ratio(cell.runs, base.runs), 2)


def _rounded(value: float, digits: int) -> float | None:
    return round(float(value), digits) if math.isfinite(value) else None


def _in_unit(value: float, metric: Metric) -> float | None:
    """Return a value in the unit of its metric, rounded to the digits that reports show."""
    scaled = metric.factor * value
    if metric.decimals is None and math.isfinite(scaled):
        return float(f"{scaled:.4g}")
    return _rounded(scaled, metric.decimals or 0)


def _table(rows: pd.DataFrame, metrics: Collection[Metric]) -> str:
    """Return the table; of a number it holds the value, which the browser rounds to show it."""
    decimals = {metric.decimals for metric in metrics}
    alike = decimals.pop() if len(decimals) == 1 else None
    digits = {
        **DIGITS,
        **{metric.heading: metric.decimals for metric in metrics},
        **dict.fromkeys(("±", *COMPARED), alike),
    }
    return to_html_datatable(
        rows,
        connected=False,
        table_id="results",
        display_logo_when_loading=False,
        showIndex=False,
        column_filters="header",
        format_floats_in_python=False,
        columnDefs=[
            {"targets": column, "render": _number(digits.get(str(name), 2))}
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
        + "".join(f" {name}: {text}." for name, text in digests(done).items())
    )


# The charts


def _charts(
    shown: Iterable[ItemData], rows: pd.DataFrame, metrics: Collection[Metric]
) -> Iterator[tuple[str, str, list[Any]]]:
    """Yield title, caption and charts: those of the report's items, and that of all tasks."""
    for data in shown:
        if isinstance(data.item, FigureItem) and (drawn := data.item.charts(data)):
            yield data.item.title, data.item.caption, drawn
    yield (
        "Difference to DP-SGD on each task",
        "Paired over seeds, with 95% intervals. Choose a task and a budget below the chart.",
        _differences(rows, metrics),
    )


def _differences(rows: pd.DataFrame, metrics: Collection[Metric]) -> list[Any]:
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
    changes = sorted({metric.change for metric in metrics})
    chart = with_intervals(points, f"Difference to DP-SGD: {' or '.join(changes)}")
    for name in ("ε", "task"):  # shown in reverse order
        values = list(dict.fromkeys(point[name] for point in points))
        menu = alt.binding_select(options=values, name=f"{name} ")
        chosen = alt.selection_point(fields=[name], bind=menu, value=values[0])
        chart = chart.add_params(chosen).transform_filter(chosen)
    return [chart]
