"""Variants of a method: an ablation, sweeps over one hyper-parameter, and sweeps over filters.

An ablation and a filter sweep have a row per variant, with its mean ± standard deviation and its
seeds; a sweep has a line per budget. A filter sweep adds each filter's noise gain and its frequency
response; a momentum sweep, by how much per-sample momentum reduces sampling noise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from scipy import linalg

from clipnoise.errors import UserError, unknown
from clipnoise.report.figures import canvas
from clipnoise.report.figures.styles import style
from clipnoise.report.formats import Metric, budget, shown, significant
from clipnoise.report.statistics import sample

ABREAST = 3  # subplots of an ablation
COLUMNS = 2  # subplots of a sweep
WIDE = 50  # values that span more than this factor stand on a logarithmic axis
SYMBOLS = {"beta": "β", "history": "k"}
FLOOR = -60.0  # dB: what lies below, such as the zeros of a filter, is not drawn

Coefficients = Sequence[float]
Taps = tuple[list[float], list[float]]
Beside = Callable[[Axes, pd.DataFrame, str], None]


def draw_ablation(data: canvas.FigureData) -> Figure:
    """Draw one subplot per dataset, model and budget, the variants down the left side."""
    every, titled = canvas.series(data.runs), canvas.by_budget(data.runs)
    figure, subplots = canvas.grid(titled, ABREAST, height=0.9 + 0.3 * len(every), sharey=True)
    for ax, runs in subplots:
        _dots(ax, runs, every, data.metric)
    return figure


def _dots(ax: Axes, runs: pd.DataFrame, every: Sequence[canvas.Series], metric: Metric) -> None:
    """Draw the mean ± standard deviation of each series on a row of its own, seeds below it."""
    for height, series in enumerate(every):
        _dot(ax, series.of(runs), series, height, metric)
    canvas.label_rows(ax, every)
    ax.set_xlabel(metric.heading)
    ax.spines["left"].set_visible(False)
    ax.margins(x=0.08)
    if canvas.completed(runs, metric).empty:
        ax.set_xticks([])
        canvas.say(ax, "no completed run")


def _dot(ax: Axes, runs: pd.DataFrame, series: canvas.Series, height: int, metric: Metric) -> None:
    values = sample(runs, metric)
    if values.runs:
        canvas.beside(ax, height, f"{values.runs} runs", color=canvas.PALE)
    if not values.n:
        return
    seeds = [value * metric.factor for value in values.values.values()]
    mean, deviation = values.mean * metric.factor, values.deviation * metric.factor
    ax.plot(seeds, [height + 0.25] * len(seeds), "|", color=canvas.PALE, markersize=4, zorder=2)
    ax.errorbar(
        [mean],
        [height],
        xerr=[deviation],
        color=series.style.colour,
        marker=series.style.marker,
        markersize=6,
        elinewidth=1.2,
        capsize=3,
        zorder=3,
    )


# ---- Sweeps over a hyper-parameter


def draw_sweep(data: canvas.FigureData, beside: Beside | None = None) -> Figure:
    """Draw one subplot per dataset, model and method, a line per budget.

    Args:
        data: `over` names the hyper-parameter of the horizontal axis.
        beside: draws one more subplot, from the rows whose method has the hyper-parameter.

    Raises:
        UserError: no method of the panel has the hyper-parameter.
    """
    over = data.over
    values = [json.loads(text) if text else {} for text in data.runs["hyperparameters"]]
    known = {name for options in values for name in options}
    if over not in known:
        raise unknown("hyper-parameter", over, known, key="report.over")
    texts = [json.dumps(options[over]) if over in options else "" for options in values]
    swept = data.runs.assign(value=texts)
    swept = swept[swept["value"] != ""]
    titled = canvas.groups(swept, "dataset", "model", "method")
    if beside is not None:
        titled.append(("", swept))
    figure, subplots = canvas.grid(titled, COLUMNS, height=2.4)
    every = _series(swept)
    if beside is not None:
        beside(*subplots.pop(), over)
    for ax, runs in subplots:
        _line_per_budget(ax, runs, every, data.metric)
        ax.set(xlabel=over, ylabel=data.metric.heading)
    canvas.legend(figure, every)
    return figure


def _series(runs: pd.DataFrame) -> list[canvas.Series]:
    """Return one series per budget; their looks differ as those of variants of a method do."""
    budgets = runs["budget"].drop_duplicates()
    return [
        canvas.Series(str(text), budget(str(text)), True, style(str(runs["method"].iloc[0]), rank))
        for rank, text in enumerate(budgets)
    ]


def _line_per_budget(
    ax: Axes, runs: pd.DataFrame, every: Sequence[canvas.Series], metric: Metric
) -> None:
    at_places = places(ax, list(dict.fromkeys(runs["value"])))
    for series in every:
        line = runs[runs["budget"] == series.method]
        points = [(x, sample(line[line["value"] == text], metric)) for text, x in at_places.items()]
        canvas.line_with_deviations(ax, points, series.style, metric)
    ax.grid(visible=False, axis="x")
    canvas.say_what_lacks(ax, runs, canvas.series(runs), metric)


def places(ax: Axes, texts: list[str]) -> dict[str, float]:
    """Set the horizontal axis and return the place of each value, from left to right.

    Numbers are placed by value; anything else is evenly spaced in the order of the study.
    """
    values = [json.loads(text) for text in texts]
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values):
        at = {text: float(number) for number, text in enumerate(texts)}
    else:
        at = dict(sorted(zip(texts, numbers, strict=True), key=lambda pair: pair[1]))
        if min(numbers) > 0 and max(numbers) > WIDE * min(numbers):
            ax.set_xscale("log")
    ax.set_xticks(list(at.values()), [_tick(json.loads(text)) for text in at])
    ax.xaxis.set_minor_locator(NullLocator())
    return at


def _tick(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_tick, value))
    return significant(float(value)) if isinstance(value, int | float) else shown(value)


def momentum_reduction(beta: float, history: int) -> float:
    """Return ρ, by which normalised per-sample momentum divides the deviation of sampling noise.

    ρ² = (1+β)(1−β^k) / ((1−β)(1+β^k)) = (Σ_j β^j)² / Σ_j β^{2j} for k independent gradients. It is
    computed as the ratio of sums, which also holds at β = 1, where it is k.

    Args:
        beta: β in [0, 1].
        history: k, at least 1.

    Source: DP-PMLF, Lemma 3.
    """
    powers = beta ** np.arange(history, dtype=float)
    return float(powers.sum() / np.sqrt(np.square(powers).sum()))


def draw_momentum(ax: Axes, runs: pd.DataFrame, over: str) -> None:
    """Draw ρ over β or k, a line per value of the other.

    Args:
        ax: the axes to draw into.
        runs: with their value of the hyper-parameter.
        over: `beta` or `history`.

    Raises:
        UserError: the sweep is over something else, or none of its methods has both.
    """
    if over not in SYMBOLS:
        allowed = ", ".join(SYMBOLS)
        raise UserError(f"report.over: {over!r} in a momentum-sweep. Allowed: {allowed}.")
    (other,) = SYMBOLS.keys() - {over}
    lines: dict[float, dict[str, float]] = {}
    for value, text in zip(runs["value"], runs["hyperparameters"], strict=True):
        options = json.loads(text)
        if SYMBOLS.keys() <= options.keys():
            rho = momentum_reduction(options["beta"], options["history"])
            lines.setdefault(options[other], {})[value] = rho
    if not lines:
        raise UserError(
            "report: a momentum-sweep of a panel without a method with beta and history."
        )
    at = places(ax, list(dict.fromkeys(runs["value"])))
    for rank, (fixed, reductions) in enumerate(sorted(lines.items())):
        points = sorted((at[value], reduction) for value, reduction in reductions.items())
        look = style(str(runs["method"].iloc[0]), rank)
        x, y = zip(*points, strict=True)
        ax.plot(x, y, **look.options)
        ax.annotate(
            f"{SYMBOLS[other]} = {fixed:g}",
            points[-1],
            xytext=(-4, 6),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
    ax.grid(visible=False, axis="x")
    highest = max(max(reductions.values()) for reductions in lines.values())
    ax.set_ylim(1, 1 + 1.25 * max(highest - 1, 0.1))  # 1 is no momentum
    ax.set(title="Sampling noise is divided by ρ", xlabel=over, ylabel="ρ")


# ---- Filter sweep


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


def draw_filters(data: canvas.FigureData) -> Figure:
    """Draw one row per dataset, model and budget; methods without a filter have a gain of 1."""
    every = canvas.series(data.runs)
    taps = [_taps(series.of(data.runs)) for series in every]
    subplots = canvas.by_budget(data.runs)
    figure, axes = canvas.sheet(
        len(subplots), 3, height=max(2.3, 1.0 + 0.26 * len(every)), width_ratios=(1.25, 0.9, 1.25)
    )
    for number, (title, runs) in enumerate(subplots):
        accuracy, gain, response = axes[number]
        _dots(accuracy, runs, every, data.metric)
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
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: significant(value)))
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
