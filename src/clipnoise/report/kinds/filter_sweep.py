"""Filters: what they do to accuracy and to the variance of noise, and their frequency response."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.lazy import np
from clipnoise.report.figures import canvas, rows
from clipnoise.report.formats import significant
from clipnoise.report.items import FigureItem, ItemData

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLOOR = -60.0  # dB: what lies below, such as the zeros of a filter, is not drawn

Coefficients = Sequence[float]
Taps = tuple[list[float], list[float]]


@dataclass(frozen=True, kw_only=True)
class FilterSweep(FigureItem):
    """Filters: accuracy, noise gain and frequency response."""

    kind: Literal["filter-sweep"] = "filter-sweep"
    deviation: ClassVar = "± {}; ticks: seeds"

    def draw(self, data: ItemData) -> Figure:
        """Draw one row per dataset, model and budget; methods without a filter have a gain of 1."""
        every = canvas.series(data.runs)
        taps = [_taps(series.of(data.runs)) for series in every]
        subplots = canvas.by_budget(data.runs)
        figure, axes = canvas.sheet(
            len(subplots),
            3,
            height=max(2.3, 1.0 + 0.26 * len(every)),
            width_ratios=(1.25, 0.9, 1.25),
        )
        for number, (title, runs) in enumerate(subplots):
            accuracy, gain, response = axes[number]
            rows.dots(accuracy, runs, every, data.metric)
            accuracy.set_title(title)
            if number:
                gain.set_axis_off()
                response.set_axis_off()
            else:
                _gain(gain, every, taps)
                _response(response, every, taps)
        return figure


def noise_gain(a: Coefficients, b: Coefficients) -> float:
    """Return Σ κ̂_t², the factor by which a normalised filter multiplies the variance of noise.

    κ is the impulse response of m_t = −Σ_{r≥1} a_r m_{t−r} + Σ_{r≥0} b_r g_{t−r}, and
    κ̂ = κ/Σκ: the filter passes a constant unchanged. The sum is exact: the variance of the filter's
    state solves a discrete Lyapunov equation.

    Args:
        a: a_1 … a_{n_a}.
        b: b_0 … b_{n_b}.

    Returns:
        The gain at steady state, for white noise; infinity where the filter is unstable or blocks
        constants.

    Source: DP-PMLF, the noise term of the convergence bound.
    """
    from scipy import linalg

    constant = sum(b) / (1 + sum(a)) if 1 + sum(a) else math.inf
    if constant == 0 or (a and max(abs(np.roots([1.0, *a]))) >= 1):
        return math.inf
    if not a:
        return float(np.sum(np.square(b))) / constant**2
    # Direct form II: the state holds the last n values of w_t = g_t − Σ a_r w_{t−r}, and
    # m_t = Σ b_r w_{t−r}, so the gain is b'Rb with R the autocovariance of w.
    order = max(len(a), len(b))
    transition = np.eye(order, k=-1)
    transition[0, : len(a)] = -np.asarray(a)
    drive = np.zeros((order, order))
    drive[0, 0] = 1.0
    covariance = linalg.solve_discrete_lyapunov(transition, drive)
    weights = np.zeros(order)
    weights[: len(b)] = b
    return float(weights @ covariance @ weights) / constant**2


def frequency_response(
    a: Coefficients, b: Coefficients, frequencies: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return |H(f)|/|H(0)| with H(f) = Σ b_r e^{−2πifr} / (1 + Σ a_r e^{−2πifr}).

    Args:
        a: a_1 … a_{n_a}.
        b: b_0 … b_{n_b}.
        frequencies: in cycles per step, from 0 to 0.5.

    Returns:
        The amplitude of each frequency after the normalised filter, relative to before; 1 at
        f = 0.
    """
    z = np.exp(-2j * np.pi * np.asarray(frequencies))
    response = np.polyval(b[::-1], z) / np.polyval([*a[::-1], 1.0], z)
    constant = sum(b) / (1 + sum(a))
    normalised: np.ndarray[tuple[int], np.dtype[np.float64]] = np.abs(response / constant)
    return normalised


def _taps(runs: pd.DataFrame) -> Taps:
    """Return a series' filter; the identity for a method without one."""
    options = json.loads(runs["hyperparameters"].iloc[0])
    return options.get("filter_a", []), options.get("filter_b", [1.0])


def _gain(ax: Axes, every: list[canvas.Series], taps: list[Taps]) -> None:
    from matplotlib import ticker

    gains = [noise_gain(a, b) for a, b in taps]
    ax.set(xscale="log", title="Noise gain", xlabel="Variance factor Σκ̂²")
    for height, (series, gain) in enumerate(zip(every, gains, strict=True)):
        if math.isinf(gain):
            ax.text(1.0, height, "unstable", ha="right", va="center", fontsize=8)
            continue
        ax.plot([gain], [height], series.style.marker, color=series.style.colour, markersize=6)
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
    ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: significant(value)))
    canvas.label_rows(ax, every, labels=False)
    ax.spines["left"].set_visible(False)


def _response(ax: Axes, every: list[canvas.Series], taps: list[Taps]) -> None:
    frequencies = np.linspace(0.0, 0.5, 501)
    for series, (a, b) in zip(every, taps, strict=True):
        if math.isinf(noise_gain(a, b)):
            continue
        amplitude = np.maximum(frequency_response(a, b, frequencies), 10 ** (FLOOR / 20))
        decibels = 20 * np.log10(amplitude)
        ax.plot(frequencies, decibels, markevery=(50, 100), **series.style.options)
    ax.set(xlim=(0, 0.5), title="Frequency response")
    ax.set(xlabel="Frequency (cycles per step)", ylabel="Amplitude (dB)")
