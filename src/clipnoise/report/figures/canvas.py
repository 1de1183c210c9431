"""What all figures share: fonts and lines, axes, legends, remarks on missing runs, SVG output."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, Protocol, cast

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from clipnoise.report.figures.styles import FONTS, Style, style
from clipnoise.report.formats import SUPERSCRIPTS, Metric, budget, count
from clipnoise.report.records import (
    NON_PRIVATE,
    Key,
    by_key,
    chance,
    is_private,
    split,
    where,
)
from clipnoise.report.statistics import Sample, sample
from clipnoise.tracking.view import ADJACENCY

BESIDE, AROUND = 0.5, 0.95  # inches beside a subplot, and above and below it, for words
WIDTH = 6.5  # inches: the text width of the report, so that type keeps its size
INK, PALE, WARNING = "#222222", "#777777", "#C00000"
THIN: Mapping[str, Any] = {"color": "#BBBBBB", "linewidth": 0.6}  # lines that stay unnamed
GREYS = LinearSegmentedColormap.from_list("greys", ["#FFFFFF", "#303030"])
MARK = '<text id="watermark"'

LOOK: Mapping[str, object] = {
    "font.family": list(FONTS),
    "text.parse_math": False,  # a dollar sign in a label is a dollar sign
    "font.size": 9,
    **dict.fromkeys(("axes.titlesize", "axes.labelsize"), 9),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 8),
    **dict.fromkeys(("legend.fontsize", "legend.title_fontsize"), 8.5),
    "axes.linewidth": 0.6,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("text.color", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 3),
    "lines.linewidth": 1.3,
    "lines.markersize": 5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "figure.constrained_layout.h_pad": 0.06,
    "svg.fonttype": "path",
    "svg.hashsalt": "clipnoise",
    "path.simplify": False,
}

HANDLE, LETTER, ROW = 0.62, 0.058, 0.19  # inches that an entry of a legend takes
LONG = 22  # letters of an entry that leaves no room for another beside it
ROWS_WITHIN = 2  # rows of a legend that a figure's height already leaves room for

REMARKS = 3  # more lines than this would cover the curves


@contextmanager
def look() -> Iterator[None]:
    """Apply the suite's look inside this context, and leave other users of matplotlib alone."""
    with sns.axes_style("ticks"), mpl.rc_context(cast("Any", LOOK)):
        yield


def sheet(rows: int, columns: int, *, height: float, **options: Any) -> tuple[Figure, Any]:
    """Return a figure of text width and its axes as a 2-D array.

    Args:
        rows, columns: of axes.
        height: of one row, inches; more where subplots would be flatter than 2:1.
        options: for `Figure.subplots`.
    """
    height = max(height, (WIDTH / columns - BESIDE) / 2 + AROUND)
    figure = Figure(figsize=(WIDTH, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        sns.despine(ax=ax)
    return figure, axes


def grid(
    subplots: Sequence[tuple[str, pd.DataFrame]],
    columns: int,
    *,
    height: float,
    **options: Any,
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """Return a figure and, row by row, its subplots with the data that each shows.

    Args:
        subplots: the title and the data of each.
        columns: at most; the rest of the last row stays empty.
        height, options: as in `sheet`.
    """
    columns = min(columns, len(subplots))
    figure, axes = sheet(-(-len(subplots) // columns), columns, height=height, **options)
    for ax in axes.flat[len(subplots) :]:
        ax.set_axis_off()
    filled = []
    for ax, (title, rows) in zip(axes.flat, subplots, strict=False):
        ax.set_title(title)
        filled.append((ax, rows))
    return figure, filled


def to_svg(figure: Figure, watermark: str = "") -> bytes:
    """Return a figure as SVG: the same bytes for the same figure.

    A watermark is printed across it, and put into its title for programs to read.
    """
    metadata = {"Date": None, **({"Title": watermark} if watermark else {})}
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", metadata=metadata)
    end = b"</svg>"
    return stream.getvalue().replace(end, _mark(figure, watermark) + end if watermark else end)


def to_png(figure: Figure, alt: str) -> bytes:
    """Return a figure as PNG, with words for those who cannot see it as its description."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=160, metadata={"Description": alt})
    return stream.getvalue()


def _mark(figure: Figure, text: str) -> bytes:
    """Return a watermark across a figure, over everything, as wide as the figure allows."""
    width, height = 72 * figure.get_size_inches()
    angle = math.degrees(math.atan2(0.6 * height, width))
    size = min(40.0, 1.4 * math.hypot(width, 0.6 * height) / len(text))
    middle = f"{width / 2:.1f} {height / 2:.1f}"
    return (
        f'{MARK} transform="translate({middle}) rotate({-angle:.1f})" text-anchor="middle" '
        f'font-family="serif" font-size="{size:.1f}" fill="{WARNING}" fill-opacity="0.28">'
        f"{escape(text)}</text>\n"
    ).encode()


def without_mark(svg: bytes) -> bytes:
    """Return a figure without its watermark, for a page that has one of its own."""
    before, mark, after = svg.partition(MARK.encode())
    return before + after.partition(b"</text>\n")[2] if mark else svg


def blank(message: str) -> Figure:
    """Return a figure that says why there is nothing to see."""
    figure = Figure(figsize=(WIDTH, 1.2), layout="constrained")
    ax = figure.subplots()
    ax.set_axis_off()
    say(ax, message)
    return figure


def dot(ax: Axes, x: float, y: float, look: Style, **options: Any) -> None:
    """Draw the marker of a series."""
    size = 7 if look.marker == "*" else 5  # so that an open star can be told from a filled one
    ax.plot([x], [y], look.marker, color=look.colour, markersize=size, **options)


def beside(ax: Axes, height: int, words: str, **options: Any) -> None:
    """Write a few small words to the right of a row."""
    place = ax.get_yaxis_transform()
    ax.text(1.01, height, words, transform=place, va="center", fontsize=7, **options)


def say(ax: Axes, message: str) -> None:
    """Write a message in the middle of empty axes."""
    ax.text(0.5, 0.5, message, transform=ax.transAxes, ha="center", va="center", color=PALE)


class Named(Protocol):
    """What has an entry in a legend."""

    @property
    def title(self) -> str: ...
    @property
    def style(self) -> Style: ...
    @property
    def private(self) -> bool: ...


@dataclass(frozen=True)
class LegendEntry:
    """An entry of a legend for anything but a method."""

    title: str
    style: Style
    private: bool = True


@dataclass(frozen=True)
class Series:
    """One method under one label, and how it is drawn.

    The remark says what a reader must know about its ε.
    """

    method: str
    label: str
    private: bool
    style: Style
    remark: str = ""

    @property
    def key(self) -> Key:
        """Method and label."""
        return self.method, self.label

    @property
    def title(self) -> str:
        """The label, with the remark in brackets."""
        return f"{self.label} ({self.remark})" if self.remark else self.label

    def of(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a study table that belong to this series."""
        return where(frame, method=self.method, label=self.label)


def series(runs: pd.DataFrame) -> list[Series]:
    """Return the methods and labels of a panel in the order of the study, each with its look."""
    every: list[Series] = []
    for (method, label), subset in by_key(runs):
        variant = sum(previous.method == method for previous in every)
        private = bool(is_private(subset).any())
        look, remark = style(method, variant), _remark(subset, private)
        every.append(Series(method, label, private, look, remark))
    return every


def _remark(runs: pd.DataFrame, private: bool) -> str:
    if not private or NON_PRIVATE in set(runs["claim"]):
        return NON_PRIVATE
    nominal = ["nominal ε"] if (runs["claim"] == "nominal").any() else []
    others = sorted(set(runs["adjacency"]) - {"", ADJACENCY})
    return ", ".join([*nominal, *(f"{name} adjacency" for name in others)])


def groups(runs: pd.DataFrame, *columns: str) -> list[tuple[str, pd.DataFrame]]:
    """Split a study table by some columns, in the order of the study; each with its title."""
    return [(", ".join(map(budget, key)), subset) for key, subset in split(runs, *columns)]


def by_budget(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split a study table by dataset, model and budget, the budgets of one pair together."""
    place = ("dataset", "model")
    return [part for _, task in groups(runs, *place) for part in groups(task, *place, "budget")]


def completed(runs: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return the completed runs that have a value."""
    return runs[(runs["status"] == "completed") & runs[metric.column].notna()]


def incomplete(runs: pd.DataFrame, every: Sequence[Series], metric: Metric) -> str:
    """Return `label: n/N runs` for each series and budget that lacks runs, a line each."""
    lines = []
    for line in every:
        for (text,), subset in split(line.of(runs), "budget"):
            values = sample(subset, metric)
            if not values.complete:
                place = f" at {budget(text)}" if line.private else ""
                lines.append(f"{line.label}{place}: {values.n}/{values.planned} runs")
    if len(lines) > REMARKS:
        return f"{len(lines)} settings are incomplete: see the table"
    return "\n".join(lines)


def say_what_lacks(ax: Axes, runs: pd.DataFrame, every: Sequence[Series], metric: Metric) -> None:
    """Say in axes that show runs whether none completed, or which did not."""
    if completed(runs, metric).empty:
        say(ax, "no completed run")
    remark(ax, incomplete(runs, every, metric))


def label_rows(ax: Axes, every: Sequence[Named], *, labels: bool = True) -> None:
    """Give each series a row of its own, from top to bottom, labelled on the left."""
    ax.set_ylim(len(every) - 0.4, -0.6)
    ax.set_yticks(range(len(every)), [one.title if labels else "" for one in every])
    ax.tick_params(axis="y", length=0)


def line_with_deviations(
    ax: Axes, points: Iterable[tuple[float, Sample]], look: Style, metric: Metric
) -> None:
    """Draw a line through means with their standard deviations; nothing where nothing completed.

    `points` are places on the horizontal axis and the runs there.
    """
    shown = [(x, values) for x, values in points if values.n]
    if not shown:
        return
    ax.errorbar(
        [x for x, _ in shown],
        [values.mean * metric.factor for _, values in shown],
        yerr=[values.deviation * metric.factor for _, values in shown],
        elinewidth=0.8,
        capsize=2,
        capthick=0.8,
        **look.options,
    )


def chance_line(
    ax: Axes, runs: pd.DataFrame, metric: Metric, axis: Literal["x", "y"] = "y"
) -> None:
    """Show the level of the best constant prediction, where it is known, with its name.

    Far from everything else it is a number alone: a line would leave the methods no room.

    Args:
        ax: the axes, with all data drawn.
        runs: what they show.
        metric: what they show of them.
        axis: the one that shows the metric.
    """
    name, level = chance(runs, metric.column)
    if not name:
        return
    words, level = f"{name}: {metric.show(level)}", level * metric.factor
    low, high = getattr(ax, f"get_{axis}lim")()
    if _within_reach(level, low, high):
        margin = 0.05 * (high - low)
        (ax.axhline if axis == "y" else ax.axvline)(level, zorder=0, **THIN)
        limits = min(low, level - margin), max(high, level + margin)
        getattr(ax, f"set_{axis}lim")(limits)
    _where_free(ax, words)


def _where_free(ax: Axes, words: str) -> None:
    """Write a few small words where they cover the least of what is drawn."""
    look: Any = {"frameon": True, "facecolor": "white", "edgecolor": "none", "framealpha": 0.8}
    tight: Any = {"handlelength": 0, "handletextpad": 0, "borderpad": 0.2, "borderaxespad": 0.3}
    handles = [Line2D([], [], linestyle="none")]
    written = Legend(ax, handles, [words], loc="best", fontsize=7, labelcolor=PALE, **look, **tight)
    written.set_zorder(5)  # above the data
    ax.add_artist(written)


def _within_reach(level: float, low: float, high: float) -> bool:
    return low - (high - low) <= level <= high + (high - low)


def cells(
    ax: Axes, values: NDArray[np.float64], words: NDArray[np.str_], low: float, high: float
) -> None:
    """Draw a matrix as cells in shades of grey, dark for high values.

    Args:
        ax: the axes.
        values: shape (rows, columns); nan leaves a cell white.
        words: what is written into each cell, of the same shape; may be empty.
        low, high: what is white, and what is the darkest grey.
    """
    ax.imshow(values, cmap=GREYS, vmin=low, vmax=high, aspect="auto")
    ax.grid(visible=False)
    ax.tick_params(length=0)
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if value - low > 0.55 * (high - low) else INK
        said = str(words[row, column])
        ax.text(column, row, said, ha="center", va="center", fontsize=7, color=colour)


def powers(axis: Axis) -> None:
    """Label a logarithmic axis with plain text, at whole powers of ten."""
    axis.set_major_locator(LogLocator(numticks=6))
    axis.set_minor_formatter(NullFormatter())

    def power(value: float, _: int | None) -> str:
        return f"10{str(round(math.log10(value))).translate(SUPERSCRIPTS)}"

    axis.set_major_formatter(FuncFormatter(power))


def remark(ax: Axes, text: str) -> None:
    """Write a small remark into the lower right corner of axes."""
    if text:
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
        written = ax.text(0.985, 0.03, text, transform=ax.transAxes, ha="right", va="bottom")
        written.set(fontsize=7, color=PALE, linespacing=1.2, bbox=box)


def _handles(every: Sequence[Named]) -> list[Line2D]:
    """Return the entries of a legend, references last."""
    return [
        Line2D(
            [],
            [],
            color=line.style.colour,
            linestyle=cast("Any", line.style.line),
            marker=line.style.marker if line.private else "",
            label=line.title,
        )
        for line in sorted(every, key=lambda line: not line.private)
    ]


def legend_below(ax: Axes, every: Sequence[Named]) -> None:
    """Put a legend below one subplot, in small type."""
    place: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.25), "borderaxespad": 0}
    longest = max((len(line.title) for line in every), default=0)
    columns = 1 if longest > LONG else 2
    ax.legend(handles=_handles(every), ncols=columns, fontsize=7, handlelength=2.4, **place)


def legend(figure: Figure, every: Sequence[Named], title: str = "", behind: int = 0) -> None:
    """Put one legend below a figure, references last; a long legend makes the figure taller.

    Args:
        figure: what was drawn.
        every: the series with an entry of their own.
        title: what they have in common; may be empty.
        behind: how many others are drawn as `THIN` lines.
    """
    handles = _handles(every)
    if behind:
        handles.append(Line2D([], [], label=count(behind, "other"), **THIN))
    if not handles:
        return
    widest = HANDLE + LETTER * max(len(line.title) for line in every)
    columns = max(1, min(4, len(handles), int(WIDTH / widest)))
    rows = math.ceil(len(handles) / columns) + bool(title)
    figure.set_figheight(figure.get_figheight() + ROW * max(0, rows - ROWS_WITHIN))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, title=title or None)
