"""What the noise of second moments does to Adam: how often a correction would be negative."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clipnoise.report.diagnostics import Diagnosed, share_below
from clipnoise.report.figures import canvas
from clipnoise.report.figures.histograms import NOTHING
from clipnoise.report.figures.styles import PlotOptions, style


def draw(configurations: Sequence[Diagnosed]) -> Figure:
    """Draw three subplots, a line per configuration.

    Left: the share of coordinates whose second moment is below Φ, so that a correction would be
    negative. Middle: the norm of the mean clipped gradient, in units of C. Right: the second
    moments without noise in ascending order, and Φ. A method without noise appears only on the
    right.
    """
    if not configurations:
        return canvas.blank(NOTHING)
    figure, axes = canvas.sheet(1, 3, height=2.7)
    negative, norm, ranked = axes[0]
    biases = [one.values.phi for one in configurations if one.values.phi > 0]
    variants: dict[str, int] = {}
    for configuration in configurations:
        variant = variants[configuration.method] = variants.get(configuration.method, -1) + 1
        style_of = style(configuration.method, variant)
        look: PlotOptions = {"color": style_of.colour, "linestyle": style_of.line}
        _lines(negative, norm, configuration, look)
        _ranked(ranked, configuration, look)
        if configuration.values.phi == 0:
            below = [f"{share_below(configuration, phi):.0%} below Φ" for phi in biases]
            canvas.remark(ranked, "\n".join(below))
    negative.set(title="Second moment below Φ", xlabel="Step", ylabel="Coordinates (%)")
    norm.set(title="Mean clipped gradient", xlabel="Step", ylabel="Norm / C")
    norm.set_ylim(bottom=0)
    ranked.set(title="Second moments, sorted", xlabel="Coordinates (%)", ylabel="v̂", yscale="log")
    canvas.powers(ranked.yaxis)
    figure.legend(loc="outside lower center", ncols=min(3, len(configurations)))
    return figure


def _lines(negative: Axes, norm: Axes, configuration: Diagnosed, look: PlotOptions) -> None:
    series = configuration.values.series
    steps = np.asarray(series["step"], dtype=float)
    if configuration.values.phi > 0:
        negative.plot(steps, 100 * np.asarray(series["negative_fraction"], dtype=float), **look)
    lengths = np.asarray(series["clipped_gradient_norm"], dtype=float)
    if np.isfinite(lengths).any():
        norm.plot(steps, lengths, **look)


def _ranked(ax: Axes, configuration: Diagnosed, look: PlotOptions) -> None:
    heights = np.asarray(configuration.values.sorted["v_clipped"], dtype=float)
    ax.plot(np.linspace(0, 100, len(heights)), heights, label=configuration.title, **look)
    phi = configuration.values.phi
    if phi > 0:
        ax.axhline(phi, color=look["color"], linewidth=0.9, linestyle=":")
        ax.annotate("Φ", (0, phi), xytext=(2, 2), textcoords="offset points", color=look["color"])
