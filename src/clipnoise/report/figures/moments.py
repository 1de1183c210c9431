"""Moments: histograms of Adam's moments and updates with noise, without, and corrected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from clipnoise.report.figures import canvas
from clipnoise.report.formats import Metric
from clipnoise.report.moments import Seen, seen
from clipnoise.report.styles import BLUE, GREEN, ORANGE

KINDS = {  # colour and line of what a reader compares
    "clipped": ("without noise", GREEN, "-"),
    "private": ("with noise", BLUE, "--"),
    "corrected": ("corrected", ORANGE, "-."),
}
PANELS = {
    "first": ("First moment", "m̂"),
    "second": ("Second moment", "v̂"),
    "update": ("Update", "m̂ / √v̂"),
}


def draw(runs: pd.DataFrame, curves: pd.DataFrame, metric: Metric) -> Figure:
    """Draw one row per configuration: first moments, second moments with Φ, updates.

    Args:
        runs: the panel's rows of runs.csv; of each configuration the first seed with diagnostics.
        curves: not used.
        metric: not used.
    """
    found = seen(runs)
    if not found:
        return canvas.blank("no completed run with diagnostics")
    figure, axes = canvas.sheet(len(found), len(PANELS), height=2.3)
    for row, one in zip(axes, found, strict=True):
        _row(row, one)
    handles = [
        Line2D([], [], color=colour, linestyle=cast("Any", line), label=said)
        for said, colour, line in KINDS.values()
    ]
    handles.append(Line2D([], [], color=canvas.INK, linestyle=":", label="Φ"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _row(row: Any, one: Seen) -> None:
    for ax, (name, (heading, axis)) in zip(row, PANELS.items(), strict=True):
        _histogram(ax, one.values["histograms"][name])
        ax.set(title=heading, xlabel=axis)
    step = f"step {one.values['step']:,}, seed {one.seed}"
    row[0].set_ylabel(f"{one.title}\n{step}\n\nCoordinates (%)")
    if one.values["phi"] > 0:
        row[1].axvline(one.values["phi"], color=canvas.INK, linewidth=1.0, linestyle=":")


def _histogram(ax: Axes, shown: Mapping[str, Any]) -> None:
    for name, counts in shown["counts"].items():
        _, colour, line = KINDS[name.partition("_")[2]]
        edges = np.linspace(shown["low"], shown["high"], len(counts) + 1)
        edges = 10**edges if shown["log10"] else edges
        share = 100 * np.asarray(counts) / max(1, sum(counts))
        ax.stairs(share, edges, color=colour, fill=True, alpha=0.15, linewidth=0)
        ax.stairs(share, edges, color=colour, linestyle=line, linewidth=1.1)
    ax.set_ylim(bottom=0)
    if shown["log10"]:
        ax.set_xscale("log")
        canvas.powers(ax.xaxis)
    else:
        ax.locator_params(axis="x", nbins=5)
