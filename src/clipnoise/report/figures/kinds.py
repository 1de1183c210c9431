"""The kinds of figures, and the drawing of one that a report asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from clipnoise.errors import unknown
from clipnoise.report.figures import (
    across_tasks,
    canvas,
    curves,
    moments,
    sweep,
    variants,
)
from clipnoise.report.formats import METRICS
from clipnoise.report.records import of_panels
from clipnoise.report.tables import choose_metric
from clipnoise.studies.file import ReportItem

KINDS: Mapping[str, Callable[[canvas.FigureData], Figure]] = {
    "accuracy-vs-epsilon": curves.draw_final,
    "accuracy-along-epsilon": partial(curves.draw, along="epsilon_spent"),
    "curves": curves.draw,
    "ablation": variants.draw_ablation,
    "filter-sweep": variants.draw_filters,
    "moments": moments.draw,
    "estimates": moments.draw_estimates,
    "corrections": moments.draw_corrections,
    "noise-bias": moments.draw_noise_bias,
    "sweep": sweep.draw,
    "momentum-sweep": partial(sweep.draw, beside=sweep.draw_momentum),
    "interquartile-means": across_tasks.draw_means,
    "performance-profiles": across_tasks.draw_profiles,
    "critical-differences": across_tasks.draw_differences,
    "closed-gap": across_tasks.draw_gaps,
    "best-of": across_tasks.draw_best_of,
    "changes": across_tasks.draw_changes,
}


def draw_figure(
    item: ReportItem, runs: pd.DataFrame, points: pd.DataFrame, watermark: str = ""
) -> bytes:
    """Draw one figure of a study.

    Args:
        item: what to draw, and of which panel.
        runs: runs.csv.
        points: curves.csv.
        watermark: printed across it; empty for none.

    Returns:
        SVG; the same bytes for the same tables. Without a completed run it says so.

    Raises:
        UserError: there is no such kind of figure.
    """
    if item.kind not in KINDS:
        raise unknown("figure kind", item.kind, KINDS)
    selected = of_panels(runs, item)
    data = canvas.FigureData(
        runs=selected,
        curves=of_panels(points, item),
        reference=runs[runs["panel"].isin(item.against)],
        metric=choose_metric(selected),
        over=item.over,
        shown=tuple(METRICS[name] for name in item.metrics),
    )
    with canvas.look():
        if canvas.completed(selected, data.metric).empty:
            figure = canvas.blank(f"{item.panel}: no completed run (0/{len(selected)})")
        elif item.kind == "curves" and (item.beside or len(data.shown) > 1):
            figure = curves.draw_panels(
                [_of_panel(data, runs, points, panel) for panel in item.panels],
                item.titles or item.panels,
            )
        else:
            figure = KINDS[item.kind](data)
        return canvas.to_svg(figure, watermark)


def _of_panel(
    data: canvas.FigureData, runs: pd.DataFrame, points: pd.DataFrame, panel: str
) -> canvas.FigureData:
    """Return what one of several panels is drawn from."""
    selected = runs[runs["panel"] == panel]
    own = choose_metric(selected)
    return replace(data, runs=selected, curves=points[points["panel"] == panel], metric=own)
