"""Moments: histograms of Adam's moments with and without noise, and the bias that noise adds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from clipnoise.report.diagnostics import Diagnosed, diagnosed, share_below
from clipnoise.report.figures import canvas
from clipnoise.report.figures.styles import BLUE, GREEN, ORANGE, style

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


def draw(data: canvas.FigureData, names: Sequence[str] = ("first", "second", "update")) -> Figure:
    """Draw one row per configuration: first moments, second moments with Φ, updates.

    Of each configuration the first seed with diagnostics is drawn. `names` are keys of `PANELS`.
    """
    configurations = diagnosed(data.runs)
    if not configurations:
        return canvas.blank(NOTHING)
    figure, axes = canvas.sheet(len(configurations), len(names), height=2.3)
    for row, configuration in zip(axes, configurations, strict=True):
        for ax, name in zip(row, names, strict=True):
            _subplot(ax, configuration, name)
        step = f"step {configuration.values['step']:,}, seed {configuration.seed}"
        row[0].set_ylabel(f"{configuration.title}\n{step}\n\nCoordinates (%)")
    _legend(figure)
    return figure


def draw_corrections(data: canvas.FigureData) -> Figure:
    """Draw the roots of second moments of each configuration, then the last one's updates.

    Source: DP-AdamBC, Figure 4, whose updates are rescaled to [−1, 1].
    """
    configurations = diagnosed(data.runs)
    if not configurations:
        return canvas.blank(NOTHING)
    shown = [*((one, "root") for one in configurations), (configurations[-1], "rescaled")]
    figure, axes = canvas.sheet(1, len(shown), height=2.6)
    for ax, (configuration, name) in zip(axes[0], shown, strict=True):
        _subplot(ax, configuration, name)
        ax.set_title(f"{PANELS[name][0]},\n{configuration.title}")
    axes[0, 0].set_ylabel("Coordinates (%)")
    _legend(figure)
    return figure


def _legend(figure: Figure) -> None:
    handles: list[Line2D] = [
        Line2D([], [], color=colour, linestyle=cast("Any", line), label=name)
        for name, colour, line in LINES.values()
    ]
    handles.append(Line2D([], [], color=canvas.INK, linestyle=":", label="Φ, √Φ"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def _subplot(ax: Axes, configuration: Diagnosed, name: str) -> None:
    values = configuration.values
    _histogram(ax, values["histograms"][name])
    ax.set(title=PANELS[name][0], xlabel=PANELS[name][1])
    if values["phi"] > 0 and name in BIASED:
        ax.axvline(BIASED[name](values["phi"]), color=canvas.INK, linewidth=1.0, linestyle=":")


def _histogram(ax: Axes, histogram: Mapping[str, Any]) -> None:
    for name, counts in histogram["counts"].items():
        _, colour, line = LINES[name.partition("_")[2]]
        edges = np.linspace(histogram["low"], histogram["high"], len(counts) + 1)
        edges = 10**edges if histogram["log10"] else edges
        share = 100 * np.asarray(counts) / max(1, sum(counts))
        ax.stairs(share, edges, color=colour, fill=True, alpha=0.15, linewidth=0)
        ax.stairs(share, edges, color=colour, linestyle=line, linewidth=1.1)
    ax.set_ylim(bottom=0)
    if histogram["log10"]:
        ax.set_xscale("log")
        canvas.powers(ax.xaxis)
    else:
        ax.locator_params(axis="x", nbins=4)
        ax.ticklabel_format(axis="x", scilimits=(-2, 3))


def draw_noise_bias(data: canvas.FigureData) -> Figure:
    """Draw three subplots, a line per configuration.

    Left: the share of coordinates whose second moment is below Φ, so that a correction would be
    negative. Middle: the norm of the mean clipped gradient, in units of C. Right: the second
    moments without noise in ascending order, and Φ. A method without noise appears only on
    the right.
    """
    configurations = diagnosed(data.runs)
    if not configurations:
        return canvas.blank(NOTHING)
    figure, axes = canvas.sheet(1, 3, height=2.7)
    negative, norm, ranked = axes[0]
    biases = [one.values["phi"] for one in configurations if one.values["phi"] > 0]
    variants: dict[str, int] = {}
    for configuration in configurations:
        variant = variants[configuration.method] = variants.get(configuration.method, -1) + 1
        style_of = style(configuration.method, variant)
        look = {"color": style_of.colour, "linestyle": style_of.line}
        _lines(negative, norm, configuration, look)
        _ranked(ranked, configuration, look)
        if configuration.values["phi"] == 0:
            below = [f"{share_below(configuration, phi):.0%} below Φ" for phi in biases]
            canvas.remark(ranked, "\n".join(below))
    negative.set(title="Second moment below Φ", xlabel="Step", ylabel="Coordinates (%)")
    norm.set(title="Mean clipped gradient", xlabel="Step", ylabel="Norm / C")
    norm.set_ylim(bottom=0)
    ranked.set(title="Second moments, sorted", xlabel="Coordinates (%)", ylabel="v̂", yscale="log")
    canvas.powers(ranked.yaxis)
    figure.legend(loc="outside lower center", ncols=min(3, len(configurations)))
    return figure


def _lines(negative: Axes, norm: Axes, configuration: Diagnosed, look: dict[str, Any]) -> None:
    series = configuration.values["series"]
    if configuration.values["phi"] > 0:
        negative.plot(series["step"], 100 * np.asarray(series["negative_fraction"]), **look)
    lengths = np.asarray(series["clipped_gradient_norm"], dtype=float)
    if np.isfinite(lengths).any():
        norm.plot(series["step"], lengths, **look)


def _ranked(ax: Axes, configuration: Diagnosed, look: dict[str, Any]) -> None:
    heights = np.asarray(configuration.values["sorted"]["v_clipped"], dtype=float)
    ax.plot(np.linspace(0, 100, len(heights)), heights, label=configuration.title, **look)
    phi = configuration.values["phi"]
    if phi > 0:
        ax.axhline(phi, color=look["color"], linewidth=0.9, linestyle=":")
        ax.annotate("Φ", (0, phi), xytext=(2, 2), textcoords="offset points", color=look["color"])
