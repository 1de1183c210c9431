"""Histograms of Adam's moments with and without noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from clipnoise.report.diagnostics import Diagnosed
from clipnoise.report.figures import canvas
from clipnoise.report.figures.styles import BLUE, GREEN, ORANGE
from clipnoise.run.outcome import Histogram

NOTHING = "no completed run with diagnostics"
LINES = {  # name in the legend, colour and line
    "clipped": ("without noise", GREEN, "-"),
    "private": ("with noise", BLUE, "--"),
    "corrected": ("corrected", ORANGE, "-."),
}
BIASED: dict[str, Callable[[float], float]] = {"second": float, "root": math.sqrt}
PANELS = {
    "first": ("First moment", "m̂"),
    "second": ("Second moment", "v̂"),
    "update": ("Update", "m̂ / √v̂"),
    "root": ("Root of the second moment", "√v̂"),
    "rescaled": ("Update, rescaled", "m̂ / √v̂, as a share of the largest"),
}


def draw(configurations: Sequence[Diagnosed], names: Sequence[str]) -> Figure:
    """Draw one row per configuration, as in DP-AdamBC, Figure 1; `names` are keys of `PANELS`."""
    if not configurations:
        return canvas.blank(NOTHING)
    figure, axes = canvas.sheet(len(configurations), len(names), height=2.3)
    for row, configuration in zip(axes, configurations, strict=True):
        for ax, name in zip(row, names, strict=True):
            subplot(ax, configuration, name)
        step = f"step {configuration.values.step:,}, seed {configuration.seed}"
        row[0].set_ylabel(f"{configuration.title}\n{step}\n\nCoordinates (%)")
    legend(figure)
    return figure


def corrections(configurations: Sequence[Diagnosed]) -> Figure:
    """Draw the roots of second moments of each configuration, then the last one's updates.

    Source: DP-AdamBC, Figure 4, whose updates are rescaled to [−1, 1].
    """
    if not configurations:
        return canvas.blank(NOTHING)
    shown = [*((one, "root") for one in configurations), (configurations[-1], "rescaled")]
    figure, axes = canvas.sheet(1, len(shown), height=2.6)
    for ax, (configuration, name) in zip(axes[0], shown, strict=True):
        subplot(ax, configuration, name)
        ax.set_title(f"{PANELS[name][0]},\n{configuration.title}")
    axes[0, 0].set_ylabel("Coordinates (%)")
    legend(figure)
    return figure


def legend(figure: Figure) -> None:
    """Put the legend of all histograms below a figure."""
    handles: list[Line2D] = [
        Line2D([], [], color=colour, linestyle=cast("Any", line), label=name)
        for name, colour, line in LINES.values()
    ]
    handles.append(Line2D([], [], color=canvas.INK, linestyle=":", label="Φ, √Φ"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def subplot(ax: Axes, configuration: Diagnosed, name: str) -> None:
    """Draw the histogram of a configuration that a key of `PANELS` names."""
    values = configuration.values
    _histogram(ax, values.histograms[name])
    ax.set(title=PANELS[name][0], xlabel=PANELS[name][1])
    if values.phi > 0 and name in BIASED:
        ax.axvline(BIASED[name](values.phi), color=canvas.INK, linewidth=1.0, linestyle=":")


def _histogram(ax: Axes, histogram: Histogram) -> None:
    for name, counts in histogram.counts.items():
        _, colour, line = LINES[name.partition("_")[2]]
        edges = np.linspace(histogram.low, histogram.high, len(counts) + 1)
        edges = 10**edges if histogram.log10 else edges
        share = 100 * np.asarray(counts) / max(1, sum(counts))
        ax.stairs(share, edges, color=colour, fill=True, alpha=0.15, linewidth=0)
        ax.stairs(share, edges, color=colour, linestyle=line, linewidth=1.1)
    ax.set_ylim(bottom=0)
    if histogram.log10:
        ax.set_xscale("log")
        canvas.powers(ax.xaxis)
    else:
        ax.locator_params(axis="x", nbins=4)
        ax.ticklabel_format(axis="x", scilimits=(-2, 3))
