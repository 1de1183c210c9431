"""Average ranks over datasets, and which differences are significant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clipnoise.lazy import np
from clipnoise.report.blocks import Block
from clipnoise.report.formats import Metric, count
from clipnoise.report.items import FigureItem, ItemData
from clipnoise.report.lazy import canvas, records, statistics, tasks
from clipnoise.studies.items import SeveralPanels

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clipnoise.report.figures.styles import Style
    from clipnoise.report.statistics import Ranking


@dataclass(frozen=True, kw_only=True)
class CriticalDifferences(SeveralPanels, FigureItem):
    """Over several datasets: average ranks, with bars where no difference was found."""

    kind: Literal["critical-differences"] = "critical-differences"

    def blocks(self, data: ItemData) -> Iterator[Block]:
        """Yield the figure; nothing for one dataset, over which ranks show nothing."""
        if data.runs["dataset"].nunique() > 1:
            yield from super().blocks(data)

    def draw(self, data: ItemData) -> Figure:
        """Draw the critical-difference diagram: average ranks over datasets, bars over cliques.

        Budgets and models of one dataset are not independent, so a method has one score per
        dataset: its mean over them and over seeds.
        """
        private = data.runs[records.is_private(data.runs)]
        every = canvas.series(records.private_or_all(data.runs))
        datasets = list(private["dataset"].drop_duplicates())
        scores = {
            series.title: [_level(series.of(private), dataset, data.metric) for dataset in datasets]
            for series in every
        }
        whole = {title: levels for title, levels in scores.items() if not np.isnan(levels).any()}
        if len(whole) < 2:
            return canvas.blank("fewer than two methods have runs on every dataset")
        figure, axes = canvas.sheet(1, 1, height=1.1 + 0.2 * len(whole))
        _diagram(
            axes[0, 0], statistics.ranking(whole), {series.title: series.style for series in every}
        )
        return figure


def _diagram(ax: Axes, result: Ranking, styles: dict[str, Style]) -> None:
    last = len(result.ranks)
    for height, (name, rank) in enumerate(result.ranks.items()):
        look = styles[name]
        ax.plot([rank, last + 0.4], [height, height], color="#DDDDDD", linewidth=0.6, zorder=1)
        canvas.dot(ax, rank, height, look, zorder=3)
        ax.text(last + 0.5, height, name, va="center", fontsize=8)
    heights = {name: height for height, name in enumerate(result.ranks)}
    for members in result.cliques:
        x = min(result.ranks[name] for name in members) - 0.25
        span = [heights[members[0]] - 0.3, heights[members[-1]] + 0.3]
        ax.plot([x, x], span, color=canvas.INK, linewidth=2.5, solid_capstyle="butt")
    ax.set(xlim=(0.4, last + 0.4), ylim=(last - 0.4, -0.8), xlabel="Average rank (1 is best)")
    title = f"{count(result.datasets, 'dataset')}, {last} methods"
    if result.datasets < result.needed:
        title += f": no difference can be significant below {result.needed} datasets"
    ax.set_title(title, loc="left")
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)


def _level(runs: pd.DataFrame, dataset: str, metric: Metric) -> float:
    """Return the mean score on a dataset over models, budgets and seeds; NaN if any has no run."""
    parts = records.split(records.where(runs, dataset=dataset), "model", "budget")
    scores_by_task = [tasks.scores(rows, metric) for _, rows in parts]
    if not scores_by_task or not all(scores_by_task):
        return float("nan")
    return float(np.mean([np.concatenate(scores).mean() for scores in scores_by_task]))
