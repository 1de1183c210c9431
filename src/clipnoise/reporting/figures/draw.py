"""One figure of a report, by its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd
from matplotlib.figure import Figure

from clipnoise.errors import unknown
from clipnoise.reporting.figures import ablation, against_epsilon, canvas, curves, filter_sweep
from clipnoise.reporting.formats import Metric
from clipnoise.reporting.tables import choose_metric

Draw = Callable[[pd.DataFrame, pd.DataFrame, Metric], Figure]

KINDS: Mapping[str, Draw] = {
    "accuracy-vs-epsilon": against_epsilon.draw,
    "curves": curves.draw,
    "ablation": ablation.draw,
    "filter-sweep": filter_sweep.draw,
}


def draw_figure(
    kind: str, part: str, runs: pd.DataFrame, points: pd.DataFrame, watermark: str = ""
) -> bytes:
    """Draw one figure of a study.

    Args:
        kind: a figure kind of a report item.
        part: the part of the study it shows.
        runs: runs.csv.
        points: curves.csv.
        watermark: what stands across it; empty for none.

    Returns:
        SVG; the same bytes for the same tables. Without a completed run it says so.

    Raises:
        UserError: there is no such kind of figure.
    """
    if kind not in KINDS:
        raise unknown("figure kind", kind, KINDS)
    own = runs[runs["part"] == part]
    metric = choose_metric(own)
    with canvas.look():
        done = len(canvas.completed(own, metric))
        if not done:
            empty = canvas.blank(f"{part}: no completed run (0/{len(own)})")
            return canvas.to_svg(empty, watermark)
        return canvas.to_svg(KINDS[kind](own, points[points["part"] == part], metric), watermark)
