"""Noise bias: how large noise is beside what it hides, along training and over coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clipnoise.report.figures import canvas
from clipnoise.report.formats import Metric
from clipnoise.report.moments import Seen, seen
from clipnoise.report.styles import style


def draw(runs: pd.DataFrame, curves: pd.DataFrame, metric: Metric) -> Figure:
    """Draw three panels, a line per configuration.

    Left: the share of coordinates whose second moment is below Φ, so that a correction would be
    negative. Middle: the norm of the mean clipped gradient, in units of C. Right: the second
    moments without noise in ascending order, and Φ. A method without noise has the last alone.

    Args:
        runs: the panel's rows of runs.csv; of each configuration the first seed with diagnostics.
        curves: not used.
        metric: not used.
    """
    found = seen(runs)
    if not found:
        return canvas.blank("no completed run with diagnostics")
    figure, axes = canvas.sheet(1, 3, height=2.7)
    negative, norm, ranked = axes[0]
    for look, one in zip(_looks(found), found, strict=True):
        _lines(negative, norm, one, look)
        _ranked(ranked, one, look)
    negative.set(title="Second moment below Φ", xlabel="Step", ylabel="Coordinates (%)")
    norm.set(title="Mean clipped gradient", xlabel="Step", ylabel="Norm / C")
    norm.set_ylim(bottom=0)
    ranked.set(title="Second moments, sorted", xlabel="Coordinates (%)", ylabel="v̂", yscale="log")
    canvas.powers(ranked.yaxis)
    figure.legend(loc="outside lower center", ncols=min(3, len(found)))
    return figure


def _looks(found: list[Seen]) -> list[dict[str, Any]]:
    """Return colour and line of each configuration: those of its method in every figure."""
    ranks: dict[str, int] = {}
    looks = []
    for one in found:
        rank = ranks[one.method] = ranks.get(one.method, -1) + 1
        look = style(one.method, rank)
        looks.append({"color": look.colour, "linestyle": look.line})
    return looks


def _lines(negative: Axes, norm: Axes, one: Seen, look: dict[str, Any]) -> None:
    series, phi = one.values["series"], one.values["phi"]
    if phi > 0:
        negative.plot(series["step"], 100 * np.asarray(series["negative_fraction"]), **look)
    lengths = np.asarray(series["clipped_gradient_norm"], dtype=float)
    if np.isfinite(lengths).any():
        norm.plot(series["step"], lengths, **look)


def _ranked(ax: Axes, one: Seen, look: dict[str, Any]) -> None:
    heights = np.asarray(one.values["sorted"]["v_clipped"], dtype=float)
    ax.plot(np.linspace(0, 100, len(heights)), heights, label=one.title, **look)
    phi = one.values["phi"]
    if phi > 0:
        ax.axhline(phi, color=look["color"], linewidth=0.9, linestyle=":")
        ax.annotate("Φ", (0, phi), xytext=(2, 2), textcoords="offset points", color=look["color"])
