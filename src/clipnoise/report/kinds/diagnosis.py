"""What of privacy costs a method its accuracy: one run, with one thing changed at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.report import records, statistics, tables
from clipnoise.report.blocks import Block, FigureBlock, ListBlock
from clipnoise.report.figures import canvas, rows
from clipnoise.report.formats import DASH, budget
from clipnoise.report.items import FigureItem, ItemData
from clipnoise.studies.diagnosis import ASKED, CHANGES

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from matplotlib.figure import Figure

    from clipnoise.report.statistics import Interval, Sample

OPTIONAL = {CHANGES["neither"], CHANGES["unclipped"]}
NOTE = (
    "Gain: over the private run, seed by seed, with the 95% t-interval over seeds; positive is "
    "better. All settings but the one named are those of the private run, also where others would "
    "suit the changed run better. A tenth of the noise is that of ten times as many examples in "
    "each step, at the same σ, q, T and ε; what more examples teach is not in it."
)


@dataclass(frozen=True, kw_only=True)
class Diagnosis(FigureItem):
    """What of privacy costs accuracy, in a study that `clipnoise diagnose` writes."""

    kind: Literal["diagnosis"] = "diagnosis"
    heading: ClassVar = "What costs the accuracy"

    def draw(self, data: ItemData) -> Figure:
        """Draw a row for each change, a line where the private run is."""
        titled = list(_places(data))
        height = 0.9 + 0.3 * max((len(canvas.series(one)) for _, one in titled), default=1)
        figure, subplots = canvas.grid(titled, 1, height=height)
        for ax, runs in subplots:
            rows.dots(ax, runs, canvas.series(runs), data.metric)
            private = statistics.sample(records.where(runs, label=ASKED), data.metric)
            if private.n:
                ax.axvline(private.mean * data.metric.factor, zorder=0, **canvas.THIN)
        return figure

    def blocks(self, data: ItemData) -> Iterator[Block]:
        """Yield the figure below what it says in three sentences, and its numbers."""
        places = list(_places(data))
        alone = len(places) == 1
        said = [
            f"{'' if alone else f'{title}: '}{_sentences(runs, data)}" for title, runs in places
        ]
        caption = " ".join(filter(None, [self.caption, *said]))
        yield FigureBlock(title=data.title, caption=caption, image=data.image)
        heads = ("run", "changed", "claim", data.metric.heading, "gain")
        table = [(title, *row) for title, runs in places for row in _rows(runs, data)]
        yield ListBlock(
            title=f"{data.title}, in numbers",
            heads=heads[alone:],
            align="lllrr"[alone:],
            rows=[row[alone:] for row in table],
            notes=[NOTE],
        )


def _places(data: ItemData) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each method at each budget with its runs, whose labels say what was changed."""
    titles = dict(zip(data.item.named, data.titles, strict=True))
    runs = data.every_run[data.every_run["panel"].isin(titles)]
    asked = runs["budget"].str.partition(",")[0]
    changed = runs.assign(label=runs["panel"].map(titles), called=runs["label"], asked=asked)
    for (dataset, model, label, text), part in records.split(
        changed, "dataset", "model", "called", "asked"
    ):
        yield f"{label} at {budget(text)}: {dataset}, {model}", part


def _samples(runs: pd.DataFrame, data: ItemData) -> Mapping[str, Sample]:
    return {
        label: statistics.sample(part, data.metric) for (_, label), part in records.by_key(runs)
    }


def _better(found: Mapping[str, Sample], label: str, other: str, data: ItemData) -> Interval:
    """Return how much better one run is than another, over the seeds of both."""
    return statistics.advantage(found[label].values, found[other].values, data.metric)


def _rows(runs: pd.DataFrame, data: ItemData) -> Iterator[tuple[str, ...]]:
    found = _samples(runs, data)
    for (_, label), part in records.by_key(runs):
        cell, gain = tables.cell_of(part, data.metric), DASH
        if label != ASKED and ASKED in found and found[label].complete and found[ASKED].complete:
            gain = _better(found, label, ASKED, data).show(data.metric)
        yield label, cell.claim or DASH, cell.counted, gain


def _sentences(runs: pd.DataFrame, data: ItemData) -> str:
    """Return in three sentences what costs the private run its accuracy."""
    found = _samples(runs, data)
    lacking = {*CHANGES.values()} - {*found} - OPTIONAL
    if lacking:
        return f"Nothing is said without the panels {', '.join(map(repr, sorted(lacking)))}."
    if not all(one.complete for one in found.values()):
        return "Not every run has completed."
    unit = " points" if data.metric.unit else ""

    def gain(name: str) -> str:
        return _better(found, CHANGES[name], ASKED, data).show(data.metric) + unit

    if {*found} >= OPTIONAL:
        name, words = "neither", "With neither clipping nor noise"
    else:
        name, words = "noiseless", "Without noise"
    shown = _better(found, CHANGES[name], ASKED, data).low > 0
    so = "what privacy costs it" if shown else "no cost of privacy is shown"
    return (
        f"{words}, the same run would be better by {gain(name)}: {so}. "
        f"{_blame(found, data, gain)} Ten times the data would bring {gain('more-data')} by less "
        f"noise alone, and twice the steps at the same ε {gain('more-steps')}."
    )


def _blame(found: Mapping[str, Sample], data: ItemData, gain: Callable[[str], str]) -> str:
    """Return which of noise and clipping costs more, where the seeds tell."""
    if not {*found} >= OPTIONAL:
        return (
            "Its clipping cannot be left out, because its clip norm follows from what is clipped."
        )
    noiseless, unclipped = CHANGES["noiseless"], CHANGES["unclipped"]
    shown = f"leaving out the noise gains {gain('noiseless')}, the clipping {gain('unclipped')}"
    for part, one, other in (("noise", noiseless, unclipped), ("clipping", unclipped, noiseless)):
        pairs = (_better(found, one, against, data) for against in (other, ASKED))
        if all(pair.low > 0 for pair in pairs):
            return f"The {part} costs more: {shown}."
    return f"These seeds do not tell whether noise or clipping costs more: {shown}."
