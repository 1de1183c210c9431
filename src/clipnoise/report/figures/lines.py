"""Accuracy or loss along training: a line per method, with a band of one standard deviation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clipnoise.report.figures import canvas
from clipnoise.report.formats import Metric, budget, significant
from clipnoise.report.records import NON_PRIVATE, private_or_all, split, where

COLUMNS = 4
SETTLED = 0.2  # the first share of training, which does not set the vertical axis
AXES = {"step": "Step", "epsilon_spent": "Privacy spent ε"}


def draw(
    runs: pd.DataFrame, curves: pd.DataFrame, metric: Metric, shown: Metric, along: str = "step"
) -> Figure:
    """Draw one subplot per dataset, model and budget; those of one dataset and model share axes.

    Args:
        runs, curves: of a panel.
        metric: runs without a final value of it are counted as incomplete.
        shown: what is drawn.
        along: the column of curves on the horizontal axis, step or epsilon_spent; methods that
            spend no ε are left out of the latter.
    """
    every, done = canvas.series(runs), completed_curves(runs, curves, metric)
    tasks = split(runs, "dataset", "model")
    columns = min(COLUMNS, max(len(budgets(rows)) for _, rows in tasks))
    lines = [
        (task, rows, budgets(rows)[start : start + columns])
        for task, rows in tasks
        for start in range(0, len(budgets(rows)), columns)
    ]
    figure, axes = canvas.sheet(len(lines), columns, height=1.75)
    for number, (row, ((dataset, model), planned, texts)) in enumerate(
        zip(axes, lines, strict=True)
    ):
        found = where(done, dataset=dataset, model=model)
        for ax in row[len(texts) :]:
            ax.set_axis_off()
        for ax, text in zip(row, texts, strict=False):
            ax.set_title(f"{dataset}, {model}, {budget(text)}")
            subplot(ax, at(planned, text), at(found, text), every, metric, shown, along)
            ax.set(ylabel=shown.heading if ax is row[0] else "", ylim=limits(found, shown))
            canvas.chance_line(ax, planned, shown)
            ax.set_xlabel(AXES[along] if number == len(lines) - 1 else "")
            ax.tick_params(axis="y", labelleft=ax is row[0])
    canvas.legend(figure, every)
    return figure


def limits(curves: pd.DataFrame, metric: Metric) -> tuple[float, float] | None:
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


def budgets(runs: pd.DataFrame) -> list[str]:
    """Return the budgets of some runs, or that of those without privacy."""
    return list(private_or_all(runs)["budget"].drop_duplicates())


def completed_curves(runs: pd.DataFrame, curves: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return the curves of the completed runs."""
    return curves[curves["hash"].isin(canvas.completed(runs, metric)["hash"])]


def at(frame: pd.DataFrame, text: str) -> pd.DataFrame:
    """Return the rows of one subplot; non-private references appear at every budget."""
    return frame[frame["budget"].isin([text, NON_PRIVATE])]


def subplot(
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
    canvas.remark(ax, "\n".join(filter(None, [missing, apart, partly_measured(runs)])))


def partly_measured(runs: pd.DataFrame) -> str:
    """Return on how many examples curves are measured before their last points, where not all."""
    counts = sorted(runs["evaluated_examples"].dropna().unique())
    said = " or ".join(f"{count:,.0f}" for count in counts)
    return f"before the last point: at most {said} examples" if said else ""
