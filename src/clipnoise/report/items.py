"""Tables and figures of a report: what a kind gets, and what it has to say.

A kind is one file of `clipnoise.report.kinds`. It imports nothing heavy at its top, because a study
file is read with it: modules of `clipnoise.report` and its `figures` are taken as a whole, and
libraries within functions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from clipnoise.report import export, records, tables
from clipnoise.report.blocks import Block, FigureBlock, ListBlock, TableBlock
from clipnoise.report.figures import canvas
from clipnoise.report.formats import Metric
from clipnoise.studies.items import ReportItem
from clipnoise.studies.placement import compared, titles_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from clipnoise.studies.study import Study


@dataclass(frozen=True, kw_only=True)
class ItemData:
    """What a table or figure is made from.

    Attributes:
        item: the item, with the options of its kind and the panels that it shows.
        titles: what tells these panels apart.
        every_run, every_curve: those of the whole study, as from `records`.
        others: the runs of the panels that it compares its own with, by option.
        other_titles: what these panels are called, by option.
        published: the published table that it stands beside; None without one.
        image: the file of its figure; None if it was not drawn.
        watermark: printed across it.
    """

    item: FigureItem | TableItem
    titles: tuple[str, ...]
    every_run: pd.DataFrame
    every_curve: pd.DataFrame
    others: Mapping[str, pd.DataFrame]
    other_titles: Mapping[str, str] = field(default_factory=dict)
    published: Path | None = None
    image: str | None = None
    watermark: str = ""

    @property
    def title(self) -> str:
        """Its heading, or that of its kind and the panel's name."""
        heading = self.item.heading or self.item.kind.capitalize()
        return self.item.title or f"{heading}: {self.item.panel}"

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The runs that it shows, once each, under the name of its first panel."""
        return records.of_panels(self.every_run, self.item.named)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Their evaluations."""
        return records.of_panels(self.every_curve, self.item.named)

    @cached_property
    def metric(self) -> Metric:
        """What its runs are compared by."""
        return tables.choose_metric(self.runs)

    @property
    def each(self) -> list[ItemData]:
        """The same for each of its panels alone."""
        pairs = zip(self.item.named, self.titles, strict=True)
        return [
            replace(self, item=replace(self.item, panels=name), titles=(title,))
            for name, title in pairs
        ]


def study_items(
    study: Study,
    runs: pd.DataFrame,
    curves: pd.DataFrame,
    *,
    published: Mapping[int, Path] | None = None,
    images: Collection[str] = (),
) -> list[ItemData]:
    """Return what the tables and figures of a study's report are made from, in order.

    Args:
        study: with these items.
        runs, curves: of the whole study, as from `records`.
        published: the published tables that items stand beside, by the number of the item.
        images: the drawn figures that there are, each `<number>.svg`.
    """
    named = {grid.name: grid.titles for grid in study.grids}
    made = []
    for number, item in enumerate(study.report):
        others = compared(item, study.grids, study.path)
        data = ItemData(
            item=cast("FigureItem | TableItem", item),
            titles=titles_of(item, study.grids),
            every_run=runs,
            every_curve=curves,
            others={option: runs[runs["panel"].isin(panels)] for option, panels in others.items()},
            other_titles={
                option: _called(item.compared[option], named[panels[0]])
                for option, panels in others.items()
            },
            published=(published or {}).get(number),
            image=image if (image := f"{number}.svg") in images else None,
            watermark=study.scale.watermark,
        )
        made.append(data)
    return made


def _called(labels: Mapping[str, str], titles: Mapping[str, str]) -> str:
    """Return what a panel is called by the labels of its axes, or by their titles.

    A label without a title of its own has the name of its axis before it.
    """
    return ", ".join(
        f"{axis} {label}" if titles[axis] == label else titles[axis]
        for axis, label in labels.items()
    )


@dataclass(frozen=True, kw_only=True)
class FigureItem(ReportItem):
    """Base of all figures.

    Class attributes:
        deviation: how it shows a standard deviation over seeds, `{}` in a caption; empty for not.
    """

    needs: ClassVar = ("draw",)
    deviation: ClassVar[str] = ""

    @abstractmethod
    def draw(self, data: ItemData) -> Figure:
        """Draw it from runs of which some have completed, with `clipnoise.report.figures`."""

    def svg(self, data: ItemData) -> bytes:
        """Return the figure as SVG, the same bytes for the same tables.

        Without a completed run it says so.
        """
        with canvas.look():
            if canvas.completed(data.runs, data.metric).empty:
                figure = canvas.blank(f"{data.item.panel}: no completed run (0/{len(data.runs)})")
            else:
                figure = self.draw(data)
            return canvas.to_svg(figure, data.watermark)

    def blocks(self, data: ItemData) -> Iterator[Block]:
        """Yield the drawn figure with its title and caption."""
        caption = " ".join(filter(None, [self.caption, self.spread(data)]))
        yield FigureBlock(title=data.title, caption=caption, image=data.image)

    def spread(self, data: ItemData) -> str:
        """Return what bars, bands and ticks are, in a sentence; nothing where there are none."""
        place = ["dataset", "model", "method", "label", "budget"]
        numbers = set(data.runs.groupby(place)["seed"].nunique()) if self.deviation else set()
        if numbers <= {1}:
            return ""
        seeds = f"{numbers.pop()} seeds" if len(numbers) == 1 else "seeds"
        return f"Mean {self.deviation}.".format(f"sample standard deviation over {seeds}")

    def charts(self, data: ItemData) -> list[Any]:
        """Return the interactive charts of it that a web page has."""
        return []


@dataclass(frozen=True, kw_only=True)
class TableItem(ReportItem):
    """Base of all tables."""

    needs: ClassVar = ("block",)

    @abstractmethod
    def block(self, data: ItemData) -> TableBlock | ListBlock:
        """Return it as it is printed."""

    def blocks(self, data: ItemData) -> Iterator[Block]:
        """Yield the table."""
        yield self.block(data)

    @property
    def file(self) -> str:
        """The file of the table, without its ending."""
        return f"{self.panel}.{self.kind}"

    def csv(self, data: ItemData) -> str:
        """Return the table as CSV."""
        return export.to_csv(self.block(data), data.watermark)

    def files(self, data: ItemData) -> Mapping[str, str]:
        """Return the table as the texts of files, by ending: CSV, Markdown and LaTeX."""
        block = self.block(data)
        return {
            ".csv": self.csv(data),
            ".md": export.to_markdown(block, data.watermark),
            ".tex": export.to_latex(block, data.watermark),
        }
