"""Accuracy or loss: of the final model against ε, or along training against the step or ε spent.

Mean ± standard deviation over seeds: error bars for final models, a band along training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from clipnoise.report.baseline import baseline_of
from clipnoise.report.figures import canvas
from clipnoise.report.formats import Metric, budget, significant
from clipnoise.report.records import NON_PRIVATE, private_or_all, split, where
from clipnoise.report.statistics import Sample, paired_differences, paired_interval, sample

COLUMNS = 4
DODGE = 0.03  # decades between the error bars of neighbouring methods at the same ε
SETTLED = 0.2  # the first share of training, which does not set the vertical axis
PAIRED = "seed by seed, 95% intervals"
AXES = {"step": "Step", "epsilon_spent": "Privacy spent ε"}


def draw_final(data: canvas.FigureData) -> Figure:
    """Draw one subplot per dataset and model; non-private references are lines.

    Beside each stands how much better than DP-SGD the other private methods are, if it is there.
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


def _baseline(every: Sequence[canvas.Series]) -> canvas.Series | None:
    """Return the private series that stands for DP-SGD, if others can be compared with it."""
    private = {series.key: series for series in every if series.private}
    key = baseline_of(private)
    return None if key is None or len(private) < 2 else private[key]


def _epsilons(ax: Axes, runs: pd.DataFrame) -> None:
    """Make the horizontal axis that of the budgets of some runs."""
    ax.set(xscale="log", xlabel="Privacy budget ε")
    ticks = sorted(runs["at"].dropna().unique())
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(ticks, [significant(tick) for tick in ticks])
    ax.grid(visible=False, axis="x")
    if ticks:
        ax.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)


def _side_by_side(series: Sequence[canvas.Series]) -> Iterator[tuple[canvas.Series, float]]:
    """Yield some series, each with the factor that sets its marks beside those of the others."""
    for rank, one in enumerate(series):
        yield one, 10 ** (DODGE * (rank - (len(series) - 1) / 2))


def _differences(
    ax: Axes,
    runs: pd.DataFrame,
    every: Sequence[canvas.Series],
    base: canvas.Series,
    metric: Metric,
) -> None:
    """Draw how much better than DP-SGD each method is, seed by seed, with 95% intervals."""
    theirs = {at: sample(rows, metric) for at, rows in base.of(runs).groupby("at")}
    for series, shift in _side_by_side([one for one in every if one.private and one != base]):
        for at, rows in series.of(runs).groupby("at"):
            ours, other = sample(rows, metric), theirs.get(at, Sample())
            if not (ours.complete and other.complete):
                continue
            up = metric.higher_is_better
            found = paired_interval(
                paired_differences(ours.values, other.values, higher_is_better=up)
            )
            x, span = float(str(at)) * shift, [metric.factor * y for y in (found.low, found.high)]
            canvas.dot(ax, x, metric.factor * found.mean, series.style)
            ax.plot([x, x], span, color=series.style.colour, linewidth=1)
    ax.axhline(0, color=base.style.colour, linestyle=base.style.line)
    unit = "points" if metric.unit else metric.name.lower()
    ax.set_ylabel(f"Better than {base.label} by ({unit})")


def _at_the_end(
    ax: Axes, runs: pd.DataFrame, every: Sequence[canvas.Series], metric: Metric
) -> None:
    ax.set_ylabel(metric.heading)
    for series, shift in _side_by_side([one for one in every if one.private]):
        points = [
            (float(str(at)) * shift, sample(subset, metric))
            for at, subset in series.of(runs).groupby("at")
        ]
        canvas.line_with_deviations(ax, points, series.style, metric)
    for series in every:
        if not series.private:
            _reference(ax, series.of(runs), series, metric)
    canvas.say_what_lacks(ax, runs, every, metric)


def _reference(ax: Axes, runs: pd.DataFrame, series: canvas.Series, metric: Metric) -> None:
    values = sample(runs, metric)
    if not values.n:
        return
    mean, deviation = values.mean * metric.factor, values.deviation * metric.factor
    ax.axhline(mean, color=series.style.colour, linestyle=series.style.line, zorder=1)
    if values.n > 1:
        band = (mean - deviation, mean + deviation)
        ax.axhspan(*band, color=series.style.colour, alpha=0.12, linewidth=0, zorder=0)


# ---- Along training


def draw(data: canvas.FigureData, along: str = "step") -> Figure:
    """Draw one subplot per dataset, model and budget; those of one dataset and model share axes.

    Args:
        data: runs without a final value of the metric are counted as incomplete.
        along: the column of curves.csv on the horizontal axis, step or epsilon_spent; methods
            that spend no ε are left out of the latter.
    """
    shown = data.shown[0] if data.shown else data.metric
    every = canvas.series(data.runs)
    tasks = split(data.runs, "dataset", "model")
    columns = min(COLUMNS, max(len(_budgets(runs)) for _, runs in tasks))
    lines = [
        (task, runs, _budgets(runs)[start : start + columns])
        for task, runs in tasks
        for start in range(0, len(_budgets(runs)), columns)
    ]
    figure, axes = canvas.sheet(len(lines), columns, height=1.75)
    for number, (row, ((dataset, model), runs, texts)) in enumerate(zip(axes, lines, strict=True)):
        curves = where(_done(data), dataset=dataset, model=model)
        for ax in row[len(texts) :]:
            ax.set_axis_off()
        for ax, text in zip(row, texts, strict=False):
            ax.set_title(f"{dataset}, {model}, {budget(text)}")
            _subplot(ax, _at(runs, text), _at(curves, text), every, data.metric, shown, along)
            ax.set(ylabel=shown.heading if ax is row[0] else "", ylim=_limits(curves, shown))
            ax.set_xlabel(AXES[along] if number == len(lines) - 1 else "")
            ax.tick_params(axis="y", labelleft=ax is row[0])
    canvas.legend(figure, every)
    return figure


def draw_panels(panels: Sequence[canvas.FigureData], titles: Sequence[str]) -> Figure:
    """Draw several panels in one figure: two in a row, or with several metrics a row for each.

    A panel with several budgets shows its last. Panels of the same methods share a legend.

    Args:
        panels: what each is drawn from, all with the same metrics to show.
        titles: of the panels.
    """
    metrics = panels[0].shown or (panels[0].metric,)
    subplots = [
        (data, title, metric)
        for data, title in zip(panels, titles, strict=True)
        for metric in metrics
    ]
    columns = len(metrics) if len(metrics) > 1 else min(2, len(panels))
    named = [[series.title for series in canvas.series(data.runs)] for data in panels]
    alike = all(names == named[0] for names in named)
    figure, axes = canvas.sheet(-(-len(subplots) // columns), columns, height=2.5 if alike else 3)
    for ax in axes.flat[len(subplots) :]:
        ax.set_axis_off()
    for number, (ax, (data, title, metric)) in enumerate(zip(axes.flat, subplots, strict=False)):
        text = _budgets(data.runs)[-1]
        every, curves = canvas.series(data.runs), _at(_done(data), text)
        _subplot(ax, _at(data.runs, text), curves, every, data.metric, metric)
        ax.set(title=title, ylabel=metric.heading, ylim=_limits(curves, metric))
        ax.set_xlabel(AXES["step"] if number + columns >= len(subplots) else "")
        if not alike:
            canvas.legend_below(ax, every)
    if alike:
        canvas.legend(figure, canvas.series(panels[0].runs))
    return figure


def _limits(curves: pd.DataFrame, metric: Metric) -> tuple[float, float] | None:
    """Return one range for all subplots of a dataset and model, the first steps left out."""
    late = curves[curves["step"] >= SETTLED * curves["step"].max()]
    values = late[metric.column].dropna() * metric.factor
    if values.empty:
        return None
    margin = 0.06 * (values.max() - values.min()) or 1.0
    return float(values.min() - margin), float(values.max() + margin)


def squared_difference(curves: pd.DataFrame, every: Sequence[canvas.Series], metric: Metric) -> str:
    """Return by how much the losses of two methods differ, in words; empty for anything else.

    It is the mean, over seeds and evaluations after the start, of the squared difference.
    """
    if len(every) != 2 or not metric.column.endswith("loss"):
        return ""
    first, second = (
        series.of(curves[curves["step"] > 0]).set_index(["seed", "step"])[metric.column]
        for series in every
    )
    value = float(((first - second) ** 2).mean())
    return "" if math.isnan(value) else f"mean squared difference: {significant(value, 2)}"


def _budgets(runs: pd.DataFrame) -> list[str]:
    return list(private_or_all(runs)["budget"].drop_duplicates())


def _done(data: canvas.FigureData) -> pd.DataFrame:
    """Return the curves of the completed runs."""
    return data.curves[data.curves["hash"].isin(canvas.completed(data.runs, data.metric)["hash"])]


def _at(frame: pd.DataFrame, text: str) -> pd.DataFrame:
    """Return the rows of one subplot; non-private references appear at every budget."""
    return frame[frame["budget"].isin([text, NON_PRIVATE])]


def _subplot(
    ax: Axes,
    runs: pd.DataFrame,
    curves: pd.DataFrame,
    every: list[canvas.Series],
    metric: Metric,
    shown: Metric,
    along: str = "step",
) -> None:
    """Draw the curves of completed runs, and remark which runs have no final value of a metric."""
    for rank, series in enumerate(every):
        subset = series.of(curves).dropna(subset=[along])
        if subset.empty:
            continue
        sns.lineplot(
            x=subset[along],
            y=subset[shown.column] * shown.factor,
            ax=ax,
            estimator="mean",
            errorbar="sd",
            color=series.style.colour,
            linestyle=series.style.line,
            marker=series.style.marker if series.private else "",
            markersize=4.5,
            markeredgecolor=series.style.colour,
            markevery=(rank % 2, 2),
            err_kws={"alpha": 0.15, "linewidth": 0},
        )
    if curves.empty:
        canvas.say(ax, "no completed run")
    missing = canvas.incomplete(runs, every, metric)
    apart = squared_difference(curves, every, shown)
    canvas.remark(ax, "\n".join(filter(None, [missing, apart])))
