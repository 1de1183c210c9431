"""Final accuracy against ε, and how much better than DP-SGD each method is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.report import baseline, statistics
from clipnoise.report.figures import canvas
from clipnoise.report.formats import Metric, significant
from clipnoise.report.items import FigureItem, ItemData

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clipnoise.report.figures.canvas import Series

DODGE = 0.03  # decades between the error bars of neighbouring methods at the same ε
TITLE = 26  # characters beside the vertical axis
PAIRED = "seed by seed, 95% intervals"


@dataclass(frozen=True, kw_only=True)
class AccuracyVsEpsilon(FigureItem):
    """Final accuracy against ε, and the gain over dp-sgd, seed by seed, with 95% intervals."""

    kind: Literal["accuracy-vs-epsilon"] = "accuracy-vs-epsilon"
    deviation: ClassVar = "± {}"
    heading: ClassVar = "Results against ε"

    def draw(self, data: ItemData) -> Figure:
        """Draw one subplot per dataset and model; non-private references are lines.

        Beside each stands how much better than DP-SGD the other private methods are, if it is
        there.
        """
        every, tasks = canvas.series(data.runs), canvas.groups(data.runs, "dataset", "model")
        base = _baseline(every)
        titled = [
            part for title, runs in tasks for part in ((title, runs), (f"{title}: {PAIRED}", runs))
        ]
        figure, subplots = canvas.grid(titled if base else tasks, 2, height=2.4)
        for number, (ax, runs) in enumerate(subplots):
            placed = runs.assign(at=runs["epsilon"].fillna(runs["epsilon_achieved"]))
            _epsilons(ax, placed)
            if base and number % 2:
                _differences(ax, placed, every, base, data.metric)
            else:
                _at_the_end(ax, placed, every, data.metric)
        canvas.legend(figure, every)
        return figure


def _baseline(every: Sequence[Series]) -> Series | None:
    """Return the private series that stands for DP-SGD, if others can be compared with it."""
    private = {series.key: series for series in every if series.private}
    key = baseline.baseline_of(private)
    return None if key is None or len(private) < 2 else private[key]


def _epsilons(ax: Axes, runs: pd.DataFrame) -> None:
    """Make the horizontal axis that of the budgets of some runs."""
    from matplotlib import ticker

    ax.set(xscale="log", xlabel="Privacy budget ε")
    ticks = sorted(runs["at"].dropna().unique())
    ax.xaxis.set_major_locator(ticker.FixedLocator(ticks))
    ax.xaxis.set_minor_locator(ticker.NullLocator())
    ax.set_xticks(ticks, [significant(tick) for tick in ticks])
    ax.grid(visible=False, axis="x")
    if ticks:
        ax.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)


def _side_by_side(series: Sequence[Series]) -> Iterator[tuple[Series, float]]:
    """Yield some series, each with the factor that sets its marks beside those of the others."""
    for rank, one in enumerate(series):
        yield one, 10 ** (DODGE * (rank - (len(series) - 1) / 2))


def _differences(
    ax: Axes,
    runs: pd.DataFrame,
    every: Sequence[Series],
    base: Series,
    metric: Metric,
) -> None:
    """Draw how much better than DP-SGD each method is, seed by seed, with 95% intervals."""
    theirs = {at: statistics.sample(rows, metric) for at, rows in base.of(runs).groupby("at")}
    for series, shift in _side_by_side([one for one in every if one.private and one != base]):
        for at, rows in series.of(runs).groupby("at"):
            ours, other = statistics.sample(rows, metric), theirs.get(at, statistics.Sample())
            if not (ours.complete and other.complete):
                continue
            found = statistics.advantage(ours.values, other.values, metric)
            x, span = float(str(at)) * shift, [metric.factor * y for y in (found.low, found.high)]
            canvas.dot(ax, x, metric.factor * found.mean, series.style)
            ax.plot([x, x], span, color=series.style.colour, linewidth=1)
    ax.axhline(0, color=base.style.colour, linestyle=base.style.line)
    unit = "points" if metric.unit else metric.inline
    # A label may be long; a title that is longer than its axis would be cut off.
    ax.set_ylabel(textwrap.fill(f"Better than {base.label} by ({unit})", TITLE))


def _at_the_end(ax: Axes, runs: pd.DataFrame, every: Sequence[Series], metric: Metric) -> None:
    ax.set_ylabel(metric.heading)
    for series, shift in _side_by_side([one for one in every if one.private]):
        points = [
            (float(str(at)) * shift, statistics.sample(subset, metric))
            for at, subset in series.of(runs).groupby("at")
        ]
        canvas.line_with_deviations(ax, points, series.style, metric)
    for series in every:
        if not series.private:
            _reference(ax, series.of(runs), series, metric)
    canvas.chance_line(ax, runs, metric)
    canvas.say_what_lacks(ax, runs, every, metric)


def _reference(ax: Axes, runs: pd.DataFrame, series: Series, metric: Metric) -> None:
    values = statistics.sample(runs, metric)
    if not values.n:
        return
    mean, deviation = values.mean * metric.factor, values.deviation * metric.factor
    ax.axhline(mean, color=series.style.colour, linestyle=series.style.line, zorder=1)
    if values.n > 1:
        band = (mean - deviation, mean + deviation)
        ax.axhspan(*band, color=series.style.colour, alpha=0.12, linewidth=0, zorder=0)
