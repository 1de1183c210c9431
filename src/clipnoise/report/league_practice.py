"""The league's page of practice: what to start with, by the kind and the number of examples."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from clipnoise.data.base import Dataset
from clipnoise.data.features import Features
from clipnoise.report.blocks import Block, ListBlock, TextBlock
from clipnoise.report.export import to_markdown
from clipnoise.report.formats import ACCURACY, DASH, count, decimal, listing, significant
from clipnoise.report.league import LeagueFindings
from clipnoise.report.records import where
from clipnoise.studies.tracks import PRETRAINED

KINDS = ("tables", "texts", "images", "features from a frozen encoder")
LARGE = 10_000  # training examples: as many, and there are many
SIZES = {
    False: f"fewer than {LARGE:,} training examples",
    True: f"{LARGE:,} training examples or more",
}
HEAD = (
    "# What to start with\n\nPrinted by `clipnoise league --page` from the published file of each "
    "task; the kind and the number of examples are those of its dataset. [The page of the league]"
    "(index.md) has the tables behind it, and [the protocol](../../league.md) says how methods "
    "were tuned.\n"
)
READING = (
    "A setting is a task at one ε. Methods that can be the best are those that no test excludes in "
    "any setting of a row, the highest mean first; only methods that were confirmed in all of them "
    "are named, and with what to start only those whose mean is not below that of DP-SGD, with the "
    "mean gain over it in brackets, in points. That they can be the best does not show that they "
    "are as good as the best. Better "
    "and worse than DP-SGD: by 95% intervals that are simultaneous over all published settings of "
    "features, or of the three other kinds. They contain seeds, search and test set, and are "
    "nominal. The tests assume less, so an interval can show that a method beats DP-SGD where no "
    "test excludes DP-SGD.",
    "Largest gain: the largest mean of any method over DP-SGD in a setting, in points, which "
    "chance favours. DP-SGD over searches: the lowest and the highest test accuracy of a search in "
    "%, each the mean over its seeds, and the standard deviation; it contains seeds. Collapsed: "
    "runs of all methods that are not above the best constant prediction by more than chance.",
    "What searches chose: for the methods that can be the best at an ε, the median over searches "
    "and tasks of the learning rate, or its peak where it falls linearly to 0, and of the clip "
    "norm, with their ranges. A narrow range over several tasks says that a value transferred; one "
    "task says nothing of others. At an edge: in how many settings half of the searches or more "
    "chose a learning rate in the same outer fifth of its range, so that a value beyond it may be "
    "better. A dash: the method has no learning rate, or a list of them. References are not "
    "searched for: what is counted are their repetitions with other seeds.",
    "The published files contain what each search chose, but not what its other trials reached. "
    "They therefore show how much the outcome of DP-SGD varies from search to search, but not what "
    "a search gains over untuned values. What holds on these tasks need not hold on other data.",
)
NEAR = 3.0  # the factor within which a value transfers
TRANSFERRED = (
    "The value of a setting is the median of what its searches chose. For each method that every "
    "setting of a track confirms, the table has the median of these values with the lowest and the "
    f"highest, and the number of settings whose value is within a factor of {NEAR:g} of the "
    "median. Learning rates are drawn from ranges that span a factor of 1,000 or more, most clip "
    "norms from ranges that span a factor of 10, so the medians of clip norms are close together "
    "whatever is best."
)
DP_SGD = "DP-SGD with a tuned learning rate"
NOTHING_BEATS = f"{DP_SGD}, which nothing here is shown to beat"
START = (
    *("ε", "settings", "start with", "can be the best in all", "worse than DP-SGD"),
    *("largest gain", "DP-SGD over searches", "collapsed"),
)
CHOICES = ("learning_rate", "clip_norm")
TRANSFER = ("data", "method", "settings", "learning rate", f"within ×{NEAR:g}", "clip norm")
CHOSEN = ("method", "ε", "searches", "learning rate", "linear decay", "at an edge", "clip norm")


def kind_of(data: Dataset) -> str:
    """Return which of `KINDS` the examples of a dataset are."""
    looks = data.signature
    if isinstance(data, Features):
        return KINDS[3]
    if looks.kind == "image":
        return KINDS[2]
    return KINDS[1] if looks.kind == "tokens" or looks.meaning else KINDS[0]


@dataclass(frozen=True)
class PracticeRow:
    """What one kind and size of data says at one ε.

    Attributes:
        found: of its track.
        epsilon: the budget.
        tasks: those that have it.
    """

    found: LeagueFindings
    epsilon: float
    tasks: tuple[str, ...]

    def here(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a table that are of these settings."""
        return table[table["task"].isin(self.tasks) & (table["epsilon"] == self.epsilon)]

    @cached_property
    def confirmed(self) -> pd.DataFrame:
        """The methods that all of the settings confirmed, the highest mean first, and who can."""
        rows = self.here(self.found.best).groupby("method", sort=False)
        every = rows.agg(
            mean=("mean", "mean"), can=("can_be_best", "all"), settings=("mean", "size")
        )
        whole = every[every["settings"] == len(self.tasks)]
        return whole.sort_values("mean", ascending=False, kind="stable")

    @property
    def can(self) -> list[str]:
        """Those of them that can be the best in all."""
        return [str(method) for method in self.confirmed.index[self.confirmed["can"]]]

    def shown(self, *, better: bool) -> dict[str, int]:
        """Return in how many settings each method is shown to be better, or worse, than DP-SGD."""
        gains = self.here(self.found.gains)
        rows = gains[gains["all_low"] > 0] if better else gains[gains["all_high"] < 0]
        return {str(method): int(n) for method, n in rows["method"].value_counts().items()}

    @property
    def start(self) -> str:
        """What to start with, in words."""
        above, below = self.shown(better=True), self.shown(better=False)
        named = {name: f"{name} ({n} of {len(self.tasks)})" for name, n in above.items()}
        taken = [named[name] for name in self.can if name in above and name not in below]
        if taken:
            return f"{listing(taken)}, shown to beat DP-SGD" + self.reservation
        if self.found.track.baseline in self.can:
            beaten = f"intervals show it to be beaten by {listing([*named.values()])}"
            return f"{DP_SGD}, which no test excludes; {beaten}" if named else NOTHING_BEATS
        if not self.can:
            return "no single method: each that all settings confirmed is excluded in one or more"
        ahead = [name for name in self.can if not self.over_baseline(name) < 0]
        if not ahead:
            behind = "has a lower mean" if len(self.can) == 1 else "have lower means"
            return f"no method: {listing(self.can)} can be the best, but {behind} than DP-SGD"
        one = "one of " if len(ahead) > 1 else ""
        with_gains = listing([self.with_gain(name) for name in ahead])
        return f"{one}{with_gains}, which can be the best in all settings" + self.reservation

    def over_baseline(self, method: str) -> float:
        """Return the gain of a confirmed method over DP-SGD, the mean of all settings; or nan."""
        means = self.confirmed["mean"]
        return float(means[method] - means.get(self.found.track.baseline, np.nan))

    def with_gain(self, method: str) -> str:
        """Return its name with that gain in points, where DP-SGD was confirmed, too."""
        gain = self.over_baseline(method)
        return method if np.isnan(gain) else f"{method} ({gain * 100:+.2f})"

    @property
    def reservation(self) -> str:
        """What must be said of a gain over a baseline whose search space ended too early."""
        ended = len(self.here(self.found.limited))
        where_so = f"in {ended} of {len(self.tasks)} settings " if len(self.tasks) > 1 else ""
        said = f"; {where_so}a wider range of learning rates might help DP-SGD"
        return said if ended else ""

    @property
    def largest_gain(self) -> str:
        """The largest gain over DP-SGD in a setting, in points, with the method."""
        gains = self.here(self.found.gains).to_dict("records")
        if not gains:
            return DASH
        top = max(gains, key=lambda row: float(row["gain"]))
        return f"{ACCURACY.show(top['gain'])} ({top['method']} on {top['task']})"

    @property
    def searches(self) -> str:
        """The lowest and the highest accuracy of a search of DP-SGD, by task, in %."""
        said = []
        for task in self.tasks:
            one = self.found.settings[task, self.epsilon]
            if (base := self.found.track.baseline) in one.methods:
                means = 100 * one.by_search[one.methods.index(base)]
                ends = f"{decimal(means.min(), 1)} to {decimal(means.max(), 1)}"
                said.append(f"{task} {ends}, deviation {decimal(np.std(means, ddof=1), 1)}")
        return "; ".join(said) or DASH

    def cells(self) -> list[str]:
        """Return the row that is printed."""
        below = self.shown(better=False)
        everyone = len(self.can) == len(self.confirmed)
        can = f"each of {len(self.can)}" if everyone else ", ".join(self.can) or "none"
        worse = ", ".join(f"{name} ({n} of {len(self.tasks)})" for name, n in below.items())
        start = [f"{self.epsilon:g}", str(len(self.tasks)), self.start, can, worse or "none"]
        ended = self.here(self.found.best)
        collapsed = f"{ended['collapsed'].sum()} of {ended['runs'].sum()}"
        return [*start, self.largest_gain, self.searches, collapsed]

    def chosen(self) -> Iterator[list[str]]:
        """Yield what the searches of the methods that can be the best chose, a row for each."""
        for method in self.can:
            values = [
                one
                for task in self.tasks
                for one in _chosen(self.found, method, task, self.epsilon)
            ]
            rates, clips = ([one.get(name) for one in values] for name in CHOICES)
            falls = (
                DASH if _spread(rates) == DASH else f"{sum(map(_falls, rates))} of {len(values)}"
            )
            ended = len(where(self.here(self.found.at_an_end), method=method))
            first = [method, f"{self.epsilon:g}", str(len(values))]
            at_an_end = f"{ended} of {len(self.tasks)}"
            yield [*first, _spread(rates), falls, at_an_end, _spread(clips)]


def _chosen(
    found: LeagueFindings, method: str, task: str, epsilon: float
) -> list[Mapping[str, object]]:
    """Return the hyper-parameters that each search of a method chose in a setting."""
    runs = where(found.confirmed[task], label=method, epsilon=epsilon)
    return [json.loads(text) for text in runs.drop_duplicates("search")["hyperparameters"]]


def _in_all(found: LeagueFindings) -> list[str]:
    """Return the methods that all settings of a track confirm; none of a track with one task."""
    if len(found.confirmed) < 2:
        return []
    first, *others = found.settings.values()
    return [name for name in first.methods if all(name in one.methods for one in others)]


def _medians(found: LeagueFindings, method: str, name: str) -> list[float]:
    """Return the median of what the searches of each setting chose for a hyper-parameter.

    Nothing is returned where a setting lacks the method, or a choice is no number and no schedule.
    """
    values = [
        _numbers([one.get(name) for one in _chosen(found, method, *place)])
        for place in found.settings
    ]
    return [float(np.median(each)) for each in values] if all(values) else []


def _data(found: LeagueFindings) -> str:
    return KINDS[3] if found.track == PRETRAINED else listing([*KINDS[:3]])


def _transfers(tracks: Sequence[LeagueFindings]) -> Iterator[Block]:
    """Yield whether one value suited all settings, for each method that all of a track confirm."""
    rows = []
    for found in tracks:
        for method in _in_all(found):
            if rates := _medians(found, method, "learning_rate"):
                middle = float(np.median(rates))
                near = sum(middle / NEAR <= one <= middle * NEAR for one in rates)
                shown = [_spread(rates), f"{near} of {len(rates)}"]
                clip_norms = _spread(_medians(found, method, "clip_norm"))
                rows.append([_data(found), method, str(len(rates)), *shown, clip_norms])
    if rows:
        yield TextBlock("Values that transferred", [TRANSFERRED])
        title = "Did one value suit all settings?"
        yield ListBlock(title=title, heads=TRANSFER, rows=rows, align="llrrrr")


def _falls(value: object) -> bool:
    return isinstance(value, dict) and value.get("kind") == "linear" and not value.get("final")


def _spread(values: Sequence[object]) -> str:
    """Return the median of numbers, or peaks, with their range; a dash where there are others."""
    numbers = _numbers(values)
    if not numbers:
        return DASH
    middle, low, high = (significant(float(f(numbers)), 2) for f in (np.median, min, max))
    return f"{middle} ({low} to {high})"


def _numbers(values: Sequence[object]) -> list[float]:
    """Return numbers, or the peaks of schedules; none where there are others."""
    peaks = [one.get("peak") if isinstance(one, dict) else one for one in values]
    numbers = [one for one in peaks if isinstance(one, int | float)]
    return numbers if len(numbers) == len(values) else []


def practice_page(tracks: Sequence[LeagueFindings], data: Mapping[str, Dataset]) -> str:
    """Return the page in Markdown.

    Args:
        tracks: what the published tasks of each track say, whose baselines are DP-SGD. No kind of
            examples is in two of them.
        data: the dataset of each task of the league.
    """
    cells: dict[tuple[str, bool], dict[str, int]] = {}
    of: dict[tuple[str, bool], LeagueFindings] = {}
    for found in tracks:
        for task in (one for one in found.confirmed if one in data):
            size = data[task].sizes()["train"]
            place = kind_of(data[task]), size >= LARGE
            cells.setdefault(place, {})[task] = size
            of[place] = found
    places = [(kind, large) for kind in KINDS for large in SIZES if (kind, large) in cells]
    rows = {place: _rows(of[place], cells[place]) for place in places}
    short = TextBlock(
        "In short", [_covered(places), *_tune_first(tracks), *_excluded_least(tracks)]
    )
    parts = [HEAD, to_markdown(short), *map(to_markdown, _starts(rows))]
    for kind in KINDS:
        empty = [SIZES[large] for large in SIZES if (kind, large) not in cells]
        nothing = [f"With {size}: no confirmed task is published." for size in empty]
        parts.append(to_markdown(TextBlock(kind.capitalize(), nothing)))
        for place in (one for one in places if one[0] == kind):
            title = f"{kind.capitalize()} with {SIZES[place[1]]}"
            parts.extend(map(to_markdown, _tables(title, cells[place], rows[place])))
    parts.extend(map(to_markdown, _transfers(tracks)))
    parts.append(to_markdown(TextBlock("How to read this", READING)))
    return "\n".join(parts)


def _rows(found: LeagueFindings, tasks: Mapping[str, int]) -> list[PracticeRow]:
    budgets = sorted({epsilon for task, epsilon in found.settings if task in tasks})
    return [
        PracticeRow(found, epsilon, tuple(one for one in tasks if (one, epsilon) in found.settings))
        for epsilon in budgets
    ]


def _covered(places: Sequence[tuple[str, bool]]) -> str:
    """Return in a sentence which kinds and sizes of data have evidence."""
    number = len(KINDS) * len(SIZES)
    if len(places) == number:
        return f"Each of the {number} combinations of kind and size of data has a confirmed task."
    if not places:
        return f"Of {number} combinations of kind and size of data, none has a confirmed task."
    named = "; ".join(f"{kind} with {SIZES[large]}" for kind, large in places)
    have = "have" if len(places) > 1 else "has"
    return (
        f"Of {number} combinations of kind and size of data, {len(places)} {have} a confirmed "
        f"task: {named}."
    )


def _starts(rows: Mapping[tuple[str, bool], Sequence[PracticeRow]]) -> Iterator[ListBlock]:
    """Yield a table of what to start with, in which budgets with the same advice share a row."""
    told: dict[tuple[str, bool, str], list[str]] = defaultdict(list)
    for place, each in rows.items():
        for row in each:
            told[*place, row.start].append(f"{row.epsilon:g}")
    if told:
        yield ListBlock(
            title="By data and budget",
            caption="“(1 of 4)” means in one of four settings. Data have no confirmed task at an ε "
            "that is not listed.",
            heads=("data", "size", "ε", "start with"),
            rows=[
                [kind, SIZES[large], ", ".join(budgets), start]
                for (kind, large, start), budgets in told.items()
            ],
            align="llll",
        )


def _tune_first(tracks: Sequence[LeagueFindings]) -> Iterator[str]:
    """Yield in a sentence how much the learning rate of DP-SGD differs among settings."""
    said = []
    for found in tracks:
        rates = _medians(found, found.track.baseline, "learning_rate")
        if found.track.baseline in _in_all(found) and rates:
            low, high = (significant(end, 2) for end in (min(rates), max(rates)))
            said.append(f"from {low} to {high} on {_data(found)}")
    if said:
        yield (
            "Tune the learning rate: the median of what the searches of a setting chose for DP-SGD "
            f"ranges {listing(said)}."
        )


def _excluded_least(tracks: Sequence[LeagueFindings]) -> Iterator[str]:
    """Yield for each track which of the methods that all settings confirm is excluded least."""
    for found in tracks:
        if methods := _in_all(found):
            able = list(where(found.best, can_be_best=True)["method"])
            most = max(map(able.count, methods))
            first = [method for method in methods if able.count(method) == most]
            yield (
                f"On {_data(found)}, {listing(first)} can be the best in {most} of "
                f"{len(found.settings)} settings, the most of the {len(methods)} methods that all "
                f"of them confirm; {found.track.called} can be the best in "
                f"{able.count(found.track.baseline)}.{_gains(found, methods, first)}"
            )


def _gains(found: LeagueFindings, methods: Sequence[str], named: Sequence[str]) -> str:
    """Return in a sentence what some methods gain on average, and the one that gains most.

    Nothing is said where the baseline is none of the methods that all settings confirm.
    """
    if found.track.baseline not in methods:
        return ""
    means = found.best.groupby("method")["mean"].mean()[[*methods]]
    gains = 100 * (means - means[found.track.baseline])
    shown = dict.fromkeys([*named, str(gains.idxmax())])
    on_average = listing([f"{gains[name]:.2f} points for {name}" for name in shown])
    return (
        " A method that varies much is hard to exclude, so look at gains, too: over "
        f"{found.track.called}, on average over all settings, {on_average}, the highest."
    )


def _tables(
    title: str, tasks: Mapping[str, int], rows: Sequence[PracticeRow]
) -> Iterator[ListBlock]:
    named = [f"{task} (n = {number:,})" for task, number in tasks.items()]
    yield ListBlock(
        title=title,
        caption=f"From {count(len(tasks), 'task')}: {listing(named)}.",
        heads=START,
        rows=[row.cells() for row in rows],
        align="l" * len(START),
        notes=["At any other ε no task here is confirmed."],
    )
    yield ListBlock(
        title=f"{title}: what searches chose",
        heads=CHOSEN,
        rows=sorted((cells for row in rows for cells in row.chosen()), key=lambda one: one[0]),
        align="llrrrrr",
    )
