"""One figure of a report, by its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from clipnoise.errors import unknown
from clipnoise.report.figures import (
    ablation,
    across_tasks,
    against_epsilon,
    canvas,
    curves,
    filter_sweep,
    moments,
    momentum,
    noise_bias,
    sweep,
)
from clipnoise.report.formats import METRICS
from clipnoise.report.tables import choose_metric
from clipnoise.studies.study import ReportItem

Draw = Callable[..., Figure]  # of the rows of runs.csv and curves.csv, and the metric

KINDS: Mapping[str, Draw] = {
    "accuracy-vs-epsilon": against_epsilon.draw,
    "accuracy-along-epsilon": partial(curves.draw, along="epsilon_spent"),
    "curves": curves.draw,
    "ablation": ablation.draw,
    "filter-sweep": filter_sweep.draw,
    "moments": moments.draw,
    "noise-bias": noise_bias.draw,
    "sweep": sweep.draw,
    "momentum-sweep": partial(sweep.draw, beside=momentum.draw_beside),
    "interquartile-means": across_tasks.draw_means,
    "performance-profiles": across_tasks.draw_profiles,
    "critical-differences": across_tasks.draw_differences,
}


def draw_figure(
    item: ReportItem, runs: pd.DataFrame, points: pd.DataFrame, watermark: str = ""
) -> bytes:
    """Draw one figure of a study.

    Args:
        item: what to draw, and of which panel.
        runs: runs.csv.
        points: curves.csv.
        watermark: what stands across it; empty for none.

    Returns:
        SVG; the same bytes for the same tables. Without a completed run it says so.

    Raises:
        UserError: there is no such kind of figure.
    """
    if item.kind not in KINDS:
        raise unknown("figure kind", item.kind, KINDS)
    own = runs[runs["panel"] == item.panel]
    metric = choose_metric(own)
    with canvas.look():
        done = len(canvas.completed(own, metric))
        if not done:
            empty = canvas.blank(f"{item.panel}: no completed run (0/{len(own)})")
            return canvas.to_svg(empty, watermark)
        draw = partial(KINDS[item.kind], over=item.over) if item.over else KINDS[item.kind]
        draw = partial(draw, shown=METRICS[item.metric]) if item.metric else draw
        return canvas.to_svg(draw(own, points[points["panel"] == item.panel], metric), watermark)
