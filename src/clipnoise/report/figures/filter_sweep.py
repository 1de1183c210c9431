"""Filter sweep: accuracy per filter, its noise gain beside it, and its frequency response."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from clipnoise.report.figures import canvas
from clipnoise.report.figures.ablation import dots
from clipnoise.report.filters import frequency_response, noise_gain
from clipnoise.report.formats import Metric, budget, significant

Taps = tuple[list[float], list[float]]
FLOOR = -60.0  # dB: what lies below, such as the zeros of a filter, is not drawn


def draw(runs: pd.DataFrame, curves: pd.DataFrame, metric: Metric) -> Figure:
    """Draw one row per dataset, model and budget.

    Args:
        runs: the panel's rows of runs.csv; methods without a filter have a gain of 1.
        curves: not used.
        metric: what the left panel shows.
    """
    every = canvas.series(runs)
    taps = [_taps(one.of(runs)) for one in every]
    panels = [
        (f"{dataset}, {model}, {budget(str(text))}", own)
        for (dataset, model), pair in canvas.groups(runs)
        for text, own in pair.groupby("budget", sort=False)
    ]
    figure, axes = canvas.sheet(
        len(panels), 3, height=max(2.3, 1.0 + 0.26 * len(every)), width_ratios=(1.25, 0.9, 1.25)
    )
    for number, (title, own) in enumerate(panels):
        accuracy, gain, response = axes[number]
        dots(accuracy, own, every, metric)
        accuracy.set_title(title)
        if number:
            gain.set_axis_off()
            response.set_axis_off()
        else:
            _gain(gain, every, taps)
            _response(response, every, taps)
    return figure


def _taps(runs: pd.DataFrame) -> Taps:
    """Return a series' filter; the identity for a method without one."""
    row = runs.iloc[0]
    a = json.loads(row["filter_a"]) if row["filter_a"] else []
    b = json.loads(row["filter_b"]) if row["filter_b"] else [1.0]
    return a, b


def _gain(ax: Axes, every: list[canvas.Series], taps: list[Taps]) -> None:
    gains = [noise_gain(*one) for one in taps]
    ax.set(xscale="log", ylim=(len(every) - 0.4, -0.6), title="Noise gain")
    ax.set_xlabel("Variance factor Σκ̂²")
    for height, (one, gain) in enumerate(zip(every, gains, strict=True)):
        if math.isinf(gain):
            ax.text(1.0, height, "unstable", ha="right", va="center", fontsize=8)
            continue
        ax.plot([gain], [height], one.style.marker, color=one.style.colour, markersize=6)
        ax.annotate(
            significant(gain, 3),
            (gain, height),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
        )
    finite = [gain for gain in gains if math.isfinite(gain) and gain > 0] or [1.0]
    ax.set_xlim(min(finite) / 2.5, max(1.0, *finite) * 12)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: significant(value)))
    ax.set_yticks(range(len(every)), [])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def _response(ax: Axes, every: list[canvas.Series], taps: list[Taps]) -> None:
    frequencies = np.linspace(0.0, 0.5, 501)
    for one, (a, b) in zip(every, taps, strict=True):
        if math.isinf(noise_gain(a, b)):
            continue
        amplitude = np.maximum(frequency_response(a, b, frequencies), 10 ** (FLOOR / 20))
        ax.plot(
            frequencies,
            20 * np.log10(amplitude),
            color=one.style.colour,
            linestyle=one.style.line,
            marker=one.style.marker,
            markevery=(50, 100),
        )
    ax.set(xlim=(0, 0.5), title="Frequency response")
    ax.set(xlabel="Frequency (cycles per step)", ylabel="Amplitude (dB)")
