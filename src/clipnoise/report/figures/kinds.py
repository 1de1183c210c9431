"""The kinds of figures, and the drawing of one that a report asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from clipnoise.errors import unknown
from clipnoise.report.figures import across_tasks, canvas, curves, moments, variants
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
    "estimates": partial(moments.draw, names=("first", "root")),  # as in DP-AdamBC, Figure 1
    "corrections": moments.draw_corrections,
    "noise-bias": moments.draw_noise_bias,
    "sweep": variants.draw_sweep,
    "momentum-sweep": partial(variants.draw_sweep, beside=variants.draw_momentum),
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
        runs, points: runs and curves of all panels.
        watermark: printed across it.

    Returns:
        SVG; the same bytes for the same tables. Without a completed run it says so.

    Raises:
        UserError: there is no such kind of figure.
    """
    if item.kind not in KINDS:
        raise unknown("figure kind", item.kind, KINDS)
    data = _data(item, runs, points)
    with canvas.look():
        if canvas.completed(data.runs, data.metric).empty:
            figure = canvas.blank(f"{item.panel}: no completed run (0/{len(data.runs)})")
        elif item.kind == "curves" and (item.beside or len(data.shown) > 1):
            alone = [replace(item, panel=panel, beside=()) for panel in item.panels]
            panels = [_data(one, runs, points) for one in alone]
            figure = curves.draw_panels(panels, item.titles or item.panels)
        else:
            figure = KINDS[item.kind](data)
        return canvas.to_svg(figure, watermark)


def _data(item: ReportItem, runs: pd.DataFrame, points: pd.DataFrame) -> canvas.FigureData:
    selected = of_panels(runs, item)
    return canvas.FigureData(
        runs=selected,
        curves=of_panels(points, item),
        reference=runs[runs["panel"].isin(item.against)],
        metric=choose_metric(selected),
        over=item.over,
        shown=tuple(METRICS[name] for name in item.metrics),
    )
