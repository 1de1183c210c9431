"""The page of the league, from its published files: in Markdown, and as a PDF with figures."""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from clipnoise.report.blocks import Block, FigureBlock, ListBlock, TextBlock
from clipnoise.report.export import to_markdown
from clipnoise.report.figures import canvas, league
from clipnoise.report.formats import ACCURACY, DASH, count, decimal, listing
from clipnoise.report.inference.confirmed import Confirmed
from clipnoise.report.inference.over_tasks import LEAST_GAP, SURE
from clipnoise.report.inference.sign_flips import units_needed
from clipnoise.report.league import LEAST_TASKS, LeagueFindings, MethodOverTasks
from clipnoise.report.league_papers import claims_block
from clipnoise.report.pdf import typeset
from clipnoise.report.records import split, where
from clipnoise.report.statistics import ALPHA, LEVEL, Interval
from clipnoise.studies.tracks import PRIVATE

UNDER_WAY = "This comparison is under way, task by task."
TOO_FEW = "All tasks of this track are confirmed; they are too few for an answer over tasks."
TASKS_NEEDED = units_needed(ALPHA)
MOST = 8  # gains that are named one by one
CONFIRMED_HEADS = (
    *("method", "accuracy", "gain", "pointwise", "simultaneous", "better than", "worse than"),
    *("collapsed", "time", "p", "can be best"),
)
CONFIRMED = (
    "Accuracy is in %, over searches and seeds; that of a run that diverged is 0. The gain over "
    "{base} is in points, with its pointwise 95% interval, and with the one that is simultaneous "
    "with those of all methods, tasks and budgets. Both contain seeds, search and test set, and "
    "are nominal.",
    "Better and worse than: from how many methods it is told apart, on these test examples, at one "
    "level over all pairs and settings.",
    "Collapsed: diverged, or not above the best constant prediction by more than 1.96 standard "
    "errors of the test set. Where it is small these are many points, and a run that learned "
    "something counts, too.",
    "Time: processor time in steps over that of {base}, the median of runs.",
    "p: the larger p-value of two tests of whether the method can be the best, times the number "
    "of settings. The test for all examples like those of the test set is nominal.",
)
PASSED_SOME = (
    " A method that passed only some screens has the settings of tasks on which it did well."
)
OVER_HEADS = (
    *("method", "gain", "pointwise", "simultaneous", "prediction", "SD", "p", "closed", "95%"),
)
OVER_GAIN = (
    "Gain: the expected gain over {base} on a task, in points, with its pointwise 95% interval, "
    "with the one that is simultaneous with those of all methods and budgets, and with the 95% "
    "prediction interval for a new task. The tasks are taken as a sample of all tasks; those of "
    "one data set count as one task, with their mean. SD: the standard deviation of gains between "
    "tasks. p: the p-value of the hypothesis that no other method is better on average, at this ε "
    "by itself."
)
OVER_CLOSED = (
    "Closed: how much of what privacy costs {base} the method wins back, in % on average over "
    "tasks, with a 95% bootstrap interval that includes the uncertainty of the gap. It is of these "
    "tasks alone, each of which counts, also where two are of one data set; and those with a gap "
    "are chosen by results on them, which favours the method where a gap is small. The ceiling of "
    "a task is the method without privacy that is best on validation examples. Each of these "
    "intervals holds by itself."
)


def league_page(found: LeagueFindings, planned: Mapping[str, str]) -> str:
    """Return the page of a track in Markdown; its figures are files beside it.

    Args:
        found: what its published tasks say.
        planned: the titles of all its tasks, by their names.
    """
    said, track = answer(found, planned), found.track
    option = "" if track == PRIVATE else f" --track {track.id}"
    printed = f"Printed by `clipnoise league{option}` from the published file of each task."
    head = f"# {track.title}\n\n{printed} {track.head}\n\n{said}\n"
    return "\n".join([head, *map(_part_to_markdown, parts(found, planned))])


def answer(found: LeagueFindings, planned: Mapping[str, str]) -> str:
    """Return what the README says of this version, once enough tasks are confirmed.

    Arguments are as for `league_page`.
    """
    tasks = [task for task in planned if task in found.confirmed]
    if len(tasks) < TASKS_NEEDED:
        return UNDER_WAY if len(tasks) < len(planned) else TOO_FEW
    base = found.track.called
    said = [
        f"On {len(tasks)} tasks, with {_compared(found)} on each, tests show {base} not to be the "
        f"best in {len(found.without_baseline) or 'none'} of {len(found.settings)} settings (a "
        f"task at one ε), and in {len(found.alone) or 'none'} a single method is left as the best. "
        f"Intervals, which assume more, show {base} to be beaten in {len(found.beaten) or 'none'}.",
        _on_average(found),
    ]
    if len(found.limited):
        out = {*_of(found.without_baseline)}
        both, every = len(out & {*_of(found.limited)}), len(found.limited)
        settings = count(every, "setting") + (
            f", including {both} of those {len(out)}," if both else ""
        )
        if both == every:
            settings = f"{both} of those {count(len(out), 'setting')}"
        said.append(f"In {settings} a wider range of learning rates might help {base}.")
    return " ".join(said)


def _compared(found: LeagueFindings) -> str:
    """Return in words how many private methods a task has screened, if any, and confirmed.

    What is not searched for, and so has no hyper-parameters of its own, is a reference.
    """
    methods = "methods "
    parts = []
    if found.screened:
        parts.append(f"{_from_to(found.screened.values())} methods and variants screened")
        methods = ""
    confirmed = {
        task: len(_private(found.tasks[task].dropna(subset="search"))) for task in found.confirmed
    }
    parts.append(f"{_from_to(confirmed.values())} {methods}confirmed")
    references = [len(_private(runs)) - confirmed[task] for task, runs in found.confirmed.items()]
    if any(references):
        noun = "reference" if max(references) == 1 else "references"
        parts.append(f"{_from_to(references)} {noun} compared")
    return listing(parts)


def _from_to(numbers: Collection[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least}" if least == most else f"{least} to {most}"


def _on_average(found: LeagueFindings) -> str:
    """Return in a sentence which gains on a task are shown by what the tasks say together."""
    shown = _above({(one.epsilon, one.method): found.together(one) for one in found.estimated})
    gain = f"a gain over {found.track.called}"
    if not shown:
        return f"On average over tasks, no simultaneous 95% interval (nominal) shows {gain}."
    return f"On average over tasks, simultaneous 95% intervals (nominal) show {gain} {shown}."


def _by_themselves(found: LeagueFindings) -> Iterator[str]:
    """Yield in a sentence which gains on a task an interval for each alone would show."""
    every = found.estimated
    alone = _above({(one.epsilon, one.method): one.gain.mean for one in every})
    if alone:
        yield (
            f"The pointwise 95% interval of a gain lies above 0 {alone}; by chance alone, "
            f"{(1 - LEVEL) / 2 * len(every):.1f} of these {len(every)} intervals would be expected "
            "to."
        )


def _above(intervals: Mapping[tuple[float, str], Interval]) -> str:
    """Return whose gains are shown to be positive, the largest three at each ε, in words."""
    found: dict[float, list[str]] = defaultdict(list)
    for (epsilon, method), one in sorted(intervals.items(), key=lambda pair: -pair[1].mean):
        if one.low > 0:
            found[epsilon].append(f"{method} ({_in_points(one)})")
    named = []
    for epsilon, methods in sorted(found.items()):
        more = [f"{len(methods) - 3} more"] if len(methods) > 3 else []
        named.append(f"at ε = {epsilon:g} for {listing([*methods[:3], *more])}")
    return listing(named)


def _in_points(one: Interval) -> str:
    value, low, high = (decimal(100 * end, 1) for end in (one.mean, one.low, one.high))
    return f"{value} points, {low} to {high}"


def _part_to_markdown(part: Block) -> str:
    if isinstance(part, FigureBlock):
        part = replace(part, image=_picture(part))
    return to_markdown(part)


def pictures(found: LeagueFindings) -> dict[str, bytes]:
    """Return the figures of the page in Markdown as PNG, by the names of their files."""
    return {_picture(block): canvas.to_png(figure, block.alt) for block, figure in _drawn(found)}


def _picture(block: FigureBlock) -> str:
    return f"{block.image}".replace(".svg", ".png")


def _drawn(found: LeagueFindings) -> Iterator[tuple[FigureBlock, Figure]]:
    known = league.looks(found)
    with canvas.look():
        for one in league.figures(found):
            yield one.block, one.draw(known)


def league_pdf(found: LeagueFindings, planned: Mapping[str, str], template: Path) -> bytes:
    """Return the page of the league as PDF, with figures; arguments as for `league_page`.

    Raises:
        UserError: the template is missing or does not compile.
    """
    with tempfile.TemporaryDirectory() as folder:
        images = {}
        for block, figure in _drawn(found):
            name = f"{block.image}"
            images[name] = Path(folder, name)
            images[name].write_bytes(canvas.to_svg(figure))
        shown = [TextBlock("In short", [answer(found, planned)]), *parts(found, planned)]
        content = {"title": found.track.title, "name": "league", "parts": shown}
        return typeset(content, template, images)


def parts(found: LeagueFindings, planned: Mapping[str, str]) -> Iterator[Block]:
    """Yield all that the page shows, in order."""
    yield TextBlock("What is published", list(_published(found, planned)))
    yield _tasks(found, planned)
    if not found.tasks:
        return
    if found.settings:
        yield TextBlock("What these tasks show", list(_shown(found)))
        yield _who(found)
        yield _methods(found)
    yield TextBlock("What the data do not show", list(_untold(found)))
    yield from claims_block(found)
    yield from _over_tasks(found)
    if found.settings:
        yield TextBlock("How to read the tables of tasks", _said(CONFIRMED, found))
    for task, runs in found.tasks.items():
        yield TextBlock(planned.get(task, task), [])
        if task in found.confirmed:
            yield league.gains_figure(found, task).block
        for at in (one for one in found.settings if one[0] == task):
            yield _confirmed(found, *at)
        for (panel,), rows in split(runs, "panel"):
            if task not in found.confirmed or panel not in set(found.confirmed[task]["panel"]):
                yield _screen(task, panel, rows)


def _said(paragraphs: Iterable[str], found: LeagueFindings) -> list[str]:
    """Return paragraphs in which `{base}` is what the track's gains are over."""
    return [one.format(base=found.track.called) for one in paragraphs]


def _published(found: LeagueFindings, planned: Mapping[str, str]) -> Iterator[str]:
    missing = [task for task in planned if task not in found.tasks]
    screened = [task for task in found.tasks if task not in found.confirmed]
    of_league = [task for task in planned if task in found.tasks]
    beside = [task for task in found.tasks if task not in planned]
    names = f": {listing(of_league)}" if of_league else ""
    yield (
        f"Of {count(len(planned), 'task')} of this track, {len(of_league) or 'none'} "
        f"{_is(len(of_league))} published{names}."
    )
    if missing:
        yield f"Missing: {listing(missing)}. Nothing is said of {_them(len(missing))} here."
    if beside:
        yield f"Published, but no task of the league: {listing(beside)}."
    if screened:
        yield (
            f"Only the screen of {listing(screened)} is published. A screen chooses which methods "
            "are confirmed; it is not tested."
        )
    if any(task not in found.confirmed for task in planned):
        yield (
            "What is found while tasks are missing is interim: significance levels hold for this "
            "look alone, without a correction for earlier looks at fewer tasks."
        )


def _is(number: int) -> str:
    return "is" if number < 2 else "are"


def _them(number: int) -> str:
    return "it" if number == 1 else "them"


def _tasks(found: LeagueFindings, planned: Mapping[str, str]) -> ListBlock:
    rows = []
    for task in dict.fromkeys([*planned, *found.tasks]):
        about = planned.get(task, task)
        if task not in found.tasks:
            rows.append([task, about, "not published", *[DASH] * 6])
            continue
        runs = found.tasks[task]
        budgets = sorted(set(runs["epsilon"].dropna()))
        confirmed = found.confirmed.get(task)
        methods = DASH if confirmed is None else str(len(_private(confirmed)))
        state = "screened" if confirmed is None else "confirmed"
        numbers = [f"{len(runs):,}", decimal(runs["cpu_seconds"].sum() / 60, 1)]
        examples = f"{int(runs['test_examples'].max()):,}"
        shown = ", ".join(f"{one:g}" for one in budgets)
        known = found.with_search
        costs = [known[task, one] for one in budgets if (task, one) in known]
        searched = ", ".join(decimal(math.ceil(10 * one) / 10, 1) for one in costs) or DASH
        rows.append([task, about, state, shown, searched, examples, methods, *numbers])
    return ListBlock(
        title="Tasks",
        caption="Confirmed: the number of private methods, references among them. Runs and minutes "
        "of processor time in steps are those of reported runs, without searches. With its search: "
        "ε of publishing all that the trials of a search and its reported run release, composed by "
        "Rényi divergences; it does not cover validation examples, which choose among the trials. "
        "It is nominal: it holds if each trial draws noise of its own, and here those of a search "
        "share a seed. A dash: batches are not Poisson, or nothing is confirmed.",
        heads=(
            *("task", "about", "state", "ε", "with its search (nominal)"),
            *("test examples", "confirmed", "runs", "minutes"),
        ),
        rows=rows,
        align="lllrrrrrr",
    )


def _private(runs: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(runs.loc[runs["epsilon"].notna(), "label"]))


def _place(row: pd.Series) -> str:
    return f"{row['task']} at ε = {row['epsilon']:g}"


def _shown(found: LeagueFindings) -> Iterator[str]:
    """Yield in sentences what tests and intervals show."""
    settings = len(found.settings)
    yield (
        f"There {_is(settings)} {count(settings, 'setting')}, a task at one ε each. Tests and "
        "simultaneous intervals are corrected for all of them, at a joint level of 5%: the more "
        "tasks there are, the stricter they become."
    )
    base = found.track.called
    yield from _excluded(found)
    above = found.gains[found.gains["all_low"] > 0].sort_values("gain", ascending=False)
    below = found.gains[found.gains["all_high"] < 0].sort_values("gain")
    yield _gains(f"Shown to be better than {base}, by simultaneous intervals", above)
    yield _gains("Shown to be worse", below)
    yield from _limited(found)
    yield from _lost_at_an_end(found, below)
    yield _collapsed(found)


def _collapsed(found: LeagueFindings) -> str:
    """Return in a sentence how many runs collapsed, and on which tasks most of all did."""
    runs, collapsed = (int(found.best[name].sum()) for name in ("runs", "collapsed"))
    said = f"Of {runs:,} confirmed runs {collapsed or 'none'} collapsed"
    for task, number in found.hard.items():
        said += f", {number} of them on {task}, where more than half of all runs did"
    return f"{said}."


def _limited(found: LeagueFindings) -> Iterator[str]:
    """Yield in a sentence where the search space ended too early for the baseline."""
    if len(found.limited):
        base = found.track.called
        yield (
            f"On {_places(_of(found.limited))}, at least half of the searches of {base} chose a "
            f"learning rate in an outer fifth of its range: a wider range might help {base}, and "
            "gains over it hold for this search space."
        )


def _lost_at_an_end(found: LeagueFindings, below: pd.DataFrame) -> Iterator[str]:
    """Yield in a sentence which methods that are worse may only have had too short a range."""
    ended = found.at_an_end
    worse = set(zip(below["method"], _of(below), strict=True))
    lost: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for method, setting in zip(ended["method"], _of(ended), strict=True):
        if (method, setting) in worse:
            lost[method].append(setting)
    named = [f"{method} on {_places(settings)}" for method, settings in lost.items()]
    if named:
        yield (
            "Of the methods shown to be worse, these chose learning rates in an outer fifth of "
            "their range in at least half of the searches, so a wider range might help them, too: "
            f"{'; '.join(named)}."
        )


def _places(settings: Iterable[tuple[str, float]]) -> str:
    """Return settings in words, those of a task together."""
    budgets: dict[str, list[str]] = defaultdict(list)
    for task, epsilon in settings:
        budgets[task].append(f"{epsilon:g}")
    return listing([f"{task} (ε = {listing(every)})" for task, every in budgets.items()])


def _of(rows: pd.DataFrame) -> Iterator[tuple[str, float]]:
    return zip(rows["task"], rows["epsilon"], strict=True)


def _excluded(found: LeagueFindings) -> Iterator[str]:
    """Yield in how many settings some method, or all but one, are shown not to be the best."""
    out = where(found.best, can_be_best=False)
    if out.empty:
        yield "In none of them is a method shown not to be the best."
        return
    without = found.without_baseline
    some = len(out.drop_duplicates(["task", "epsilon"]))
    yield (
        f"Some method is shown not to be the best in {some} of them, and {found.track.called} in "
        f"{len(without) or 'none'}" + (f": {_places(_of(without))}." if len(without) else ".")
    )
    more = [place for place in found.beaten if place not in set(_of(without))]
    if more:
        yield (
            f"Intervals show {found.track.called} to be beaten in {len(found.beaten)} settings, "
            f"also on {_places(more)}: the tests assume less than the intervals do."
        )
    names = [f"{row['method']} on {_place(row)}" for _, row in found.alone.iterrows()]
    yield f"A single method is left as the best in {len(names) or 'none'}" + (
        f": {listing(names)}." if names else "."
    )


def _gains(words: str, rows: pd.DataFrame) -> str:
    said = [
        f"{row['method']} on {_place(row)}, {_points(row, 'gain', 'all_low', 'all_high')}"
        for _, row in rows.head(MOST).iterrows()
    ]
    more = f"; {len(rows) - MOST} more are in the tables below" if len(rows) > MOST else ""
    return f"{words}: {'; '.join(said)}{more}." if said else f"{words}: none."


def _points(row: pd.Series, *names: str) -> str:
    return Interval(*(float(row[name]) for name in names)).show(ACCURACY)


def _who(found: LeagueFindings) -> ListBlock:
    rows = []
    for task, epsilon in found.settings:
        here = where(found.best, task=task, epsilon=epsilon).sort_values("mean", ascending=False)
        named = [
            ", ".join(here.loc[here["can_be_best"] == can, "method"]) or "none"
            for can in (True, False)
        ]
        rows.append([task, f"{epsilon:g}", *named])
    return ListBlock(
        title="Who can be the best",
        caption="The highest mean comes first. A method that is not excluded is not shown to be "
        "as good as the best; its mean can be below that of one that is, if it varies more.",
        heads=("task", "ε", "can be the best", "shown not to be"),
        rows=rows,
        align="llll",
    )


def _methods(found: LeagueFindings) -> ListBlock:
    """Return what all settings say of each method; the one that is excluded least comes first."""
    times, base = {at: _times(found, *at) for at in found.settings}, found.track.called
    rows = []
    for (method,), here in split(found.best, "method"):
        gains = where(found.gains, method=method)
        better, worse = (gains["all_low"] > 0).sum(), (gains["all_high"] < 0).sum()
        taken = [one[method] for one in times.values() if method in one]
        cells = [str(int(one)) for one in (len(here), here["can_be_best"].sum(), better, worse)]
        told = here[~here["task"].isin(found.hard)]
        collapsed = f"{told['collapsed'].sum()} of {told['runs'].sum()}" if len(told) else DASH
        ended = str(len(where(found.at_an_end, method=method)))
        row = [method, *cells, collapsed, ended, decimal(float(pd.Series(taken).median()), 2)]
        rows.append((-here["can_be_best"].mean(), row))
    return ListBlock(
        title="Each method, in all settings",
        caption="In how many settings it is confirmed, can be the best, and is shown to be better "
        f"or worse than {base} by simultaneous intervals; its collapsed runs"
        f"{f', without those on {listing([*found.hard])}' if found.hard else ''}; in how many "
        "settings half of its searches or more chose a learning rate in the same outer fifth of "
        f"its range, beyond which it may do better; and its processor time over that of {base}, "
        f"the median of settings.{PASSED_SOME if found.screened else ''}",
        heads=(
            *("method", "settings", "can be best", "better", "worse", "collapsed", "at an edge"),
            "time",
        ),
        rows=[row for _, row in sorted(rows, key=lambda pair: pair[0])],
        align="lrrrrrrr",
    )


def _untold(found: LeagueFindings) -> Iterator[str]:
    """Yield in sentences what the published tasks do not say."""
    settings = found.settings
    if not settings:
        yield "No task is confirmed, so nothing is tested, and no method is called good here."
    few = [key for key, one in settings.items() if one.by_search.shape[1] < found.needed]
    if few:
        yield (
            f"Sign flips over {count(len(settings), 'setting')} exclude nothing with fewer than "
            f"{found.needed} searches. {_places(few)} "
            f"{'has' if len(few) == 1 else 'have'} fewer: there every method can be the best, "
            "whatever it reached."
        )
    open_ = [
        (task, epsilon)
        for task, epsilon in settings
        if where(found.best, task=task, epsilon=epsilon)["can_be_best"].all()
    ]
    if open_:
        yield (
            f"No method is excluded on {_places(open_)}. This does not show that methods are "
            "alike: differences may be too small for the number of searches."
        )
    pairs = sum(math.comb(len(one.methods), 2) for one in settings.values())
    if pairs:
        yield (
            f"Of {count(pairs, 'pair')} of methods in all settings, {len(found.apart) or 'none'} "
            f"{_is(len(found.apart))} told apart. The others are not shown to be equal."
        )
    budgets = sorted({epsilon for _, epsilon in settings})
    have = {f"{epsilon:g}": len({*found.units(epsilon)}) for epsilon in budgets}
    alone = [text for text, sets in have.items() if sets < LEAST_TASKS]
    if alone:
        yield (
            f"With fewer than {LEAST_TASKS} data sets there is no interval over tasks: ε = "
            f"{listing(alone)}."
        )
    few_sets = [text for text, sets in have.items() if sets < TASKS_NEEDED]
    if few_sets:
        yield (
            f"With fewer than {TASKS_NEEDED} data sets no test over tasks can exclude a method: "
            f"ε = {listing(few_sets)}."
        )
    yield "ε is that of one training run. The table of tasks also has it with the search."


def _over_tasks(found: LeagueFindings) -> Iterator[Block]:
    """Yield figures and tables over tasks; of an ε with one task the closed shares alone.

    Its gains stand with the task.
    """
    several = found.estimated
    figures = league.figures_over_tasks(found)
    if not several and not figures:
        return
    said = [_on_average(found), *_by_themselves(found), *_said([OVER_GAIN], found)]
    yield TextBlock("Over tasks", [*(said if several else []), *_said([OVER_CLOSED], found)])
    yield from (one.block for one in figures)
    for epsilon in dict.fromkeys(one.epsilon for one in several):
        yield _over(found, epsilon, [one for one in several if one.epsilon == epsilon])


def _over(found: LeagueFindings, epsilon: float, every: list[MethodOverTasks]) -> ListBlock:
    rows = [
        [
            one.method,
            ACCURACY.show(one.gain.mean.mean),
            _ends(one.gain.mean),
            _ends(found.together(one)),
            _ends(one.gain.new_task),
            ACCURACY.show(one.gain.spread),
            DASH if one.p_value is None else decimal(one.p_value, 4),
            DASH if one.closed is None else decimal(100 * one.closed.mean, 1),
            DASH if one.closed is None else _ends(one.closed, 1),
        ]
        for one in sorted(every, key=lambda one: -one.gain.mean.mean)
    ]
    base, tested = found.track.baseline, found.p_values.get(epsilon)
    if tested is not None:
        rows.append([base, *[DASH] * 5, decimal(tested[base], 4), DASH, DASH])
    at, gaps = found.at(epsilon), every[0].gaps
    notes = [f"Gains over {listing([*at])}."]
    of = found.data_sets
    for one in dict.fromkeys(of[task] for task in at):
        alike = [task for task in at if of[task] == one]
        if len(alike) > 1:
            notes.append(f"Of one data set, and so one task: {listing(alike)}.")
    if gaps:
        notes.append(f"Closed shares over {listing([*gaps])}.")
    small = [task for task in at if task not in gaps]
    if small:
        notes.append(
            f"No share is taken of {listing(small)}, where privacy costs {found.track.called} less "
            f"than {100 * LEAST_GAP:g} points or {SURE:g} standard errors, or results without "
            "privacy are not published."
        )
    some = {name for one in at.values() for name in one.methods}
    left = sorted(name for name in some if any(name not in one.methods for one in at.values()))
    if left:
        notes.append(
            f"Left out, because not all of these tasks confirmed them: {listing(left)}. A method "
            "that passed only some screens was selected by its results on these same tasks."
        )
    return ListBlock(
        title=f"Over tasks, ε = {epsilon:g}",
        heads=OVER_HEADS,
        rows=rows,
        align="l" + "r" * (len(OVER_HEADS) - 1),
        notes=notes,
    )


def _ends(interval: Interval, decimals: int = 2) -> str:
    if math.isnan(interval.low):
        return DASH
    return f"[{decimal(100 * interval.low, decimals)}, {decimal(100 * interval.high, decimals)}]"


def _confirmed(found: LeagueFindings, task: str, epsilon: float) -> ListBlock:
    """Return the table of a task at one ε: means, gains, and who can be the best."""
    place = {"task": task, "epsilon": epsilon}
    gains = {row["method"]: row for row in where(found.gains, **place).to_dict("records")}
    pairs, times = where(found.apart, **place), _times(found, task, epsilon)
    rows = []
    for row in where(found.best, **place).sort_values("mean", ascending=False).to_dict("records"):
        method, over = row["method"], gains.get(row["method"])
        gain = [DASH] * 3 if over is None else [
            ACCURACY.show(over["gain"]),
            _ends(Interval(over["gain"], over["low"], over["high"])),
            _ends(Interval(over["gain"], over["all_low"], over["all_high"])),
        ]  # fmt: skip
        apart = [str(int((pairs[side] == method).sum())) for side in ("better", "worse")]
        collapsed = f"{row['collapsed']} of {row['runs']}"
        last = [decimal(times.get(method, math.nan), 2), decimal(row["adjusted"], 4)]
        can = "yes" if row["can_be_best"] else "no"
        rows.append([method, ACCURACY.show(row["mean"]), *gain, *apart, collapsed, *last, can])
    if task in found.references:
        rows += _references(found.references[task])
    return ListBlock(
        title=f"{task}, ε = {epsilon:g}: confirmed",
        heads=CONFIRMED_HEADS,
        rows=rows,
        align="l" + "r" * (len(CONFIRMED_HEADS) - 1),
    )


def _times(found: LeagueFindings, task: str, epsilon: float) -> Mapping[str, float]:
    """Return by method the median processor time of its runs over that of the baseline."""
    runs = where(found.confirmed[task], epsilon=epsilon)
    median = runs.groupby("label")["cpu_seconds"].median()
    return dict(median / median.get(found.track.baseline, math.nan))


def _references(one: Confirmed) -> Iterable[list[str]]:
    """Yield rows of the methods without privacy."""
    for index, method in enumerate(one.methods):
        accuracy = ACCURACY.show(float(one.accuracy[index].mean()))
        collapsed = f"{int(one.collapsed[index].sum())} of {one.collapsed[index].size}"
        yield [f"{method} (non-private)", accuracy, *[DASH] * 5, collapsed, *[DASH] * 3]


def _screen(task: str, panel: str, runs: pd.DataFrame) -> ListBlock:
    """Return mean accuracies by method and ε, the best mean rank first."""
    private = runs[runs["epsilon"].notna()]
    budgets = sorted(set(private["epsilon"]))
    score = runs["test_accuracy"].where(runs["status"] == "completed", 0.0)
    scored = runs.assign(score=score)
    rows, order = [], []
    for (label,), cell in split(scored, "label"):
        means = cell.groupby("epsilon")["score"].mean()
        free = float(cell["score"].mean()) if cell["epsilon"].isna().all() else math.nan
        cells = [ACCURACY.show(float(means.get(e, free))) for e in budgets]
        diverged = int((cell["status"] != "completed").sum())
        rows.append([label, *cells, str(diverged), decimal(cell["cpu_seconds"].mean(), 2)])
        order.append((free >= 0, -free if free >= 0 else -float(means.mean())))
    ranked = [row for _, row in sorted(zip(order, rows, strict=True), key=lambda pair: pair[0])]
    model = ", ".join(dict.fromkeys(runs["model"]))
    return ListBlock(
        title=f"{task}, {panel} ({model})",
        caption="Mean test accuracy in %, in which a diverged run counts as 0.",
        heads=["method", *(f"ε = {e:g}" for e in budgets), "diverged", "CPU seconds"],
        rows=ranked,
        align="l" + "r" * (len(budgets) + 2),
    )
