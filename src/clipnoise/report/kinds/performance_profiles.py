"""Which share of runs reaches each score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from clipnoise.lazy import np
from clipnoise.report import baseline, records, statistics
from clipnoise.report.figures import canvas, tasks
from clipnoise.report.formats import Metric
from clipnoise.report.items import FigureItem, ItemData

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from clipnoise.report.figures.canvas import Series
    from clipnoise.report.statistics import Scores

THRESHOLDS = 101
MANY, LEADERS = 10, 3  # of more lines than these, only the best of each subplot are named
TAIL = 0.05  # of the scores that lie to the left of a profile: one bad method would squeeze it


@dataclass(frozen=True, kw_only=True)
class PerformanceProfiles(FigureItem):
    """Over datasets: the share of runs that reach each score τ."""

    kind: Literal["performance-profiles"] = "performance-profiles"

    def draw(self, data: ItemData) -> Figure:
        """Draw the share of runs, over all tasks, that reach each score τ, with its interval.

        A remark names the methods without runs on some of the tasks.
        """
        every, titled = tasks.subplots(data.runs)
        metric = data.metric
        figure, subplots = canvas.grid(titled, tasks.COLUMNS, height=2.6, sharey=True)
        levels = [_level(runs, metric) for _, runs in subplots]
        found = [
            {one: scores for one in every if (scores := tasks.scores(one.of(runs), metric, base))}
            for (_, runs), base in zip(subplots, levels, strict=True)
        ]
        at = [_thresholds(lines, base) for lines, base in zip(found, levels, strict=True)]
        areas = [
            {
                one: float(statistics.profile(places)(np.concatenate(scores)).mean())
                for one, scores in lines.items()
            }
            for lines, places in zip(found, at, strict=True)
        ]
        named = _named(every, areas)
        for (ax, runs), base, lines, places in zip(subplots, levels, found, at, strict=True):
            if not len(places):
                ax.set_title("")
                canvas.say(ax, "no completed run")
                continue
            for series, scores in lines.items():
                _profile(ax, series, scores, places, metric, behind=series not in named)
            unit = ("points" if metric.unit else metric.inline) if base else metric.unit
            ax.set_xlabel(
                f"τ ({unit} over {baseline.BASELINE})" if base else f"τ ({unit})" if unit else "τ"
            )
            ax.set_ylim(-0.02, 1.02)
            less = {one.label: tasks.partial(scores, runs) for one, scores in lines.items()}
            canvas.remark(ax, "\n".join(f"{name}: {some}" for name, some in less.items() if some))
        sign = "≥" if metric.higher_is_better else "≤"
        subplots[0][0].set_ylabel(f"Share of runs: {metric.inline} {sign} τ")
        behind = len(every) - len(named)
        best = f"the {LEADERS} with the largest area under their profiles"
        title = f"Named: {baseline.BASELINE}, and in each subplot {best}" if behind else ""
        canvas.legend(figure, named, title, behind)
        return figure


def _named(every: list[Series], areas: Sequence[Mapping[Series, float]]) -> list[Series]:
    """Return the series to draw in colour: all, or the baseline and the best of many."""
    if len(every) <= MANY:
        return every
    base = baseline.baseline_of(one.key for one in every)
    best = [
        sorted(values, key=lambda one: np.nan_to_num(-values[one], nan=np.inf))[:LEADERS]
        for values in areas
    ]
    chosen = {one for ones in best for one in ones}
    return [one for one in every if one in chosen or one.key == base]


def _thresholds(found: Mapping[Series, Scores], levels: Mapping[Any, float]) -> NDArray[np.float64]:
    """Return where to evaluate the profiles of a subplot; nowhere if no run completed."""
    values = np.concatenate([np.empty(0), *(task for scores in found.values() for task in scores)])
    finite: NDArray[np.float64] = values[np.isfinite(values)]
    if not len(finite):
        return finite
    lowest = float(np.quantile(finite, TAIL)) if levels else finite.min()
    return np.linspace(lowest, finite.max(), THRESHOLDS)


def _profile(
    ax: Axes,
    series: Series,
    scores: Scores,
    at: NDArray[np.float64],
    metric: Metric,
    behind: bool,
) -> None:
    share = statistics.profile(at)
    x = at * metric.factor * metric.sign
    y = share(np.concatenate(scores))
    if behind:
        ax.plot(x, y, zorder=1, **canvas.THIN)
        return
    low, high = statistics.bootstrap(scores, share, resamples=500)
    ax.fill_between(x, low, high, color=series.style.colour, alpha=0.10, linewidth=0)
    ax.plot(x, y, markevery=20, markersize=4, **series.style.options)


def _level(runs: pd.DataFrame, metric: Metric) -> dict[Any, float]:
    """Return the mean score of DP-SGD on each of several tasks; none if it has none on one.

    Levels differ more between tasks than between methods: a profile of accuracies would show steps,
    one for each task, and nothing else.
    """
    base = baseline.baseline_of(zip(runs["method"], runs["label"], strict=True))
    if base is None:
        return {}
    found = {}
    for task, rows in records.split(runs, *tasks.TASK):
        values = list(baseline.scored(records.where(rows, label=base[1]), metric).values())
        found[task] = float(np.mean(values)) if values else float("nan")
    return found if len(found) > 1 and np.isfinite(list(found.values())).all() else {}
