"""The verdict on page one: the best method of each setting, by how much, at what cost, how sure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from clipnoise.report.baseline import BASELINE, CONTENDED, baseline_of, contended, cost_ratio
from clipnoise.report.blocks import ListBlock, TextBlock
from clipnoise.report.claims import NOT_EVIDENCE
from clipnoise.report.formats import (
    ACCURACY,
    DASH,
    VALUES,
    budget,
    compact,
    count,
    decimal,
    listing,
)
from clipnoise.report.hyperparameters import CLEAR, IMPLIED, PENDING, clarity
from clipnoise.report.records import NON_PRIVATE, Key, Place, is_private, split, where
from clipnoise.report.statistics import ALPHA, SEEDS_NEEDED, advantage, sampling_error
from clipnoise.report.tables import Cell, Table, build_table
from clipnoise.studies.audits import TOGETHER

HEADS = (
    *("panel", "dataset", "model", "budget", "metric", "best mean", "verdict"),
    *(f"over {BASELINE}", "over the next best", f"time ÷ {BASELINE}", "hyper-parameters"),
)
DATA_HEADS = (
    *("dataset", "model", "parameters", "training", "validation", "test examples"),
    "standard error of a test accuracy",
)
BEST, NO_DIFFERENCE = "best", "no difference found"
NEVER_DIVERGED = "that never diverged"
WITHHELD = {
    "unfinished": "none yet: runs are missing",
    "failed": "none: every method has diverged runs",
    "others failed": "none: every other method has diverged runs",
    "few seeds": f"none: cannot be told with fewer than {SEEDS_NEEDED} seeds",
    "alone": "none: nothing comparable beside it",
    "chance": "none: the best is not shown to have learned",
    "seeds": "none: methods have different seeds",
}
NAMED = 3  # methods that a verdict names one by one
FEW = 8  # methods that the note on audits names one by one
MANY = 24  # settings, of which page one lists those with a difference only
GIVEN = "given"
METHOD = (
    "A method is called best if all others of its setting are excluded by multiple comparisons "
    f"with the best over seeds (sign flips, α = {ALPHA}). This takes into account that the best "
    "was picked on the same seeds, and the number of methods, but not that of settings. Fewer than "
    f"{SEEDS_NEEDED} seeds can exclude nothing. The lead of the best mean is overstated on "
    "average, and only new seeds would tell. “No difference found” does not mean equal: the "
    "intervals show what these seeds leave open."
)
OVER = (
    "Over: by how much the best mean exceeds the other, seed by seed (positive is better, also "
    "where a lower metric is; points, or the unit of the metric), with the 95% t-interval over "
    "seeds, each interval by itself. It covers initial weights, batches and noise, but not which "
    "test examples were drawn: for an accuracy, that is the standard error √(p(1−p)/n) above, at "
    "the median private accuracy, which all runs share."
)
TIME = (
    "Of the processor, or of the GPU where one trained, in all steps; the median ratio over seeds "
    "on the same kind of machine."
)
HELD_UP = (
    f"Other work held up runs of this report (wall clock at least {CONTENDED:g} times processor "
    "time): their ratios are rough."
)
ALL_GIVEN = "Given in the study file."
CHOICES = (
    "Given in the study file, or chosen on validation data. Unclear: the choice is tied with the "
    "next best, or at an edge of the grid, for the methods named or for all that the row compares; "
    "see “Choice of hyper-parameters”."
)


class JudgedSetting(NamedTuple):
    """The verdict on a dataset, model and budget of a panel, in the order of `HEADS`."""

    panel: str
    dataset: str
    model: str
    budget: str
    metric: str
    best: str
    verdict: str
    over_baseline: str
    over_next: str
    time: str
    hyperparameters: str


@dataclass(frozen=True)
class VerdictSection:
    """The verdict of a study; all is empty if no panel compares two private methods.

    Attributes:
        summary: in a sentence.
        table: a row for each setting.
        data: the examples behind it.
        notes: how to read it.
    """

    summary: str
    table: ListBlock
    data: ListBlock
    notes: list[TextBlock]


def verdict_data(runs: pd.DataFrame, watermark: str) -> VerdictSection:
    """Return the verdict of a study.

    Args:
        runs: of the panels to judge.
        watermark: where there is one, no verdict is given.
    """
    private = runs[is_private(runs)]
    rows: list[JudgedSetting] = []
    left_out: dict[str, None] = {}
    for (panel,), one in split(private, "panel"):
        if one["method"].nunique() > 1:
            table = build_table(one, panel)
            rows += [_row(table, place, watermark) for place in table.verdicts]
            left_out |= dict.fromkeys(_left_out(table))
    if not rows:
        return VerdictSection("", compact(HEADS, []), compact([], []), [])
    claiming = private[private["claim"] != NON_PRIVATE]
    same = [row for row in rows if row.verdict.startswith(NO_DIFFERENCE)]
    listed = [row for row in rows if row not in same] if len(rows) > MANY else rows
    hidden = count(len(rows) - len(listed), "setting")
    notes = [
        ("Not listed.", f"{hidden} where no difference was found." if listed != rows else ""),
        ("Audit.", audit_note(claiming) if len(claiming) else "No method claims an ε."),
        ("Time.", f"{TIME} {HELD_UP if contended(private) else ''}"),
        ("Hyper-parameters.", CHOICES if private["configurations"].notna().any() else ALL_GIVEN),
        ("Left out.", f"{listing(list(left_out))}." if left_out else ""),
        ("Reading.", f"{METHOD} {OVER}"),
    ]
    return VerdictSection(
        summary=_summary(rows, watermark),
        table=compact(HEADS, listed, implied=IMPLIED),
        data=compact(DATA_HEADS, _data(private), (1, 0), numbers=5),
        notes=[TextBlock(head, [text]) for head, text in notes if text],
    )


def _row(table: Table, place: Place, watermark: str) -> JudgedSetting:
    dataset, model, text = place
    judged = table.verdicts[place].withheld != "unfinished"
    samples = {key: one for key, one in table.competing(place).items() if judged and one.complete}
    up = table.metric.higher_is_better
    ranked = sorted(samples, key=lambda key: samples[key].mean, reverse=up)
    best, base = (ranked[0] if ranked else None), baseline_of(samples)
    equal = [key for key in ranked if samples[key].values == samples[ranked[0]].values]
    after = next((key for key in ranked if key not in equal), None)
    compared = dict.fromkeys(key for key in (*equal, after, base) if key)
    cells = {key: cell for key, cell in table.column(place).items() if key in compared}
    ratio = math.nan
    if best and base and base != best:
        ratio = cost_ratio(cells[best].runs, cells[base].runs)

    def over(other: Key | None) -> str:
        if best is None or other is None or other == best:
            return DASH
        return advantage(samples[best].values, samples[other].values, table.metric).show(
            table.metric
        )

    return JudgedSetting(
        panel=table.panel,
        dataset=dataset,
        model=model,
        budget=budget(text),
        metric=table.metric.heading,
        best=_named([label for _, label in equal]),
        verdict=_verdict(table, place, ranked, watermark),
        over_baseline=over(base),
        over_next=DASH if after is None else f"{over(after)} ({after[1]})",
        time=decimal(ratio, 2),
        hyperparameters=_clarity({key[1]: cells[key] for key in compared}),
    )


def _named(equal: list[str]) -> str:
    """Return the methods with the best mean: more than one only if they never differ."""
    if len(equal) < 2:
        return "".join(equal) or DASH
    named = equal if len(equal) <= NAMED else [equal[0], count(len(equal) - 1, "other")]
    return f"{VALUES.join(named)} (equal in every seed)"


def _verdict(table: Table, place: Place, ranked: list[Key], watermark: str) -> str:
    """Return whether the best mean is the best method, in a few words."""
    found = table.verdicts[place]
    if watermark:
        return NOT_EVIDENCE
    if found.withheld:
        return WITHHELD[found.withheld]
    equals = [label for method, label in ranked[1:] if (method, label) in found.leaders]
    others = len(ranked) - 1
    if not equals:
        whole = len(ranked) == len(table.competing(place))
        return f"{BEST} of {others + 1}{'' if whole else f' {NEVER_DIVERGED}'}"
    if len(equals) == others:
        return f"{NO_DIFFERENCE} among {others + 1}" if others > 1 else NO_DIFFERENCE
    names = listing(equals) if len(equals) <= NAMED else f"{len(equals)} of {others} others"
    return f"not distinguished from {names}"


def _clarity(cells: dict[str, Cell]) -> str:
    """Return how clearly the hyper-parameters of some methods were chosen, by their labels."""
    doubts = {label: clarity(cell.runs) for label, cell in cells.items()}
    unclear = [label for label, words in doubts.items() if words not in ((), (CLEAR,))]
    if any(words == (PENDING,) for words in doubts.values()):
        return PENDING
    if unclear:
        return "unclear" if len(unclear) == len(doubts) else f"unclear: {', '.join(unclear)}"
    return CLEAR if any(doubts.values()) else GIVEN if doubts else DASH


def _left_out(table: Table) -> Iterator[str]:
    """Yield the methods that do not compete in a setting of a panel, and why."""
    for row in table.rows:
        for place, cell in row.cells.items():
            if place not in table.verdicts or row.key in table.competing(place):
                if cell.sample.diverged:
                    yield f"{row.label} where it diverged"
            elif cell.oracle or cell.claim == NON_PRIVATE:
                yield f"{row.label} (non-private)"
            else:
                words = "nominal ε" if cell.claim == "nominal" else f"{cell.adjacency} adjacency"
                yield f"{row.label} ({words})"


def _summary(rows: list[JudgedSetting], watermark: str) -> str:
    """Return in how many settings which method is best, in a sentence."""
    if watermark:
        return f"No verdict: {watermark}."
    words = [row.verdict for row in rows]
    winners = Counter(row.best for row in rows if row.verdict.startswith(f"{BEST} "))
    best = winners.total()
    none = sum(word.startswith("none") for word in words)
    left = f" {count(none, 'setting')} cannot be judged." if none else ""
    if none == len(words):
        return left.strip()
    judged, better = len(words) - none, "shown to be better than all others"
    if any(NEVER_DIVERGED in word for word in words):
        better += f" {NEVER_DIVERGED}"
    who = next(iter(winners)) if len(winners) == 1 else "one method"
    if judged == 1:
        return f"In one setting {who if best else 'no method'} is {better}.{left}"
    if not best:
        return f"In none of {judged} settings is one method {better}.{left}"
    named = [f"{label} in {number}" for label, number in winners.most_common(NAMED)]
    more = [f"{count(len(winners) - NAMED, 'other')}"] if len(winners) > NAMED else []
    which = f": {listing([*named, *more])}" if len(winners) > 1 else ""
    wins = f"In {best} of {judged} settings {who} is {better}{which}."
    chance = ALPHA * judged
    few = f"{chance:.2g}" if chance < 10 else f"{chance:.0f}"
    noun = "setting" if few == "1" else "settings"
    return (
        f"{wins} If no methods differed, chance would show one in at most {few} {noun} on average."
        f"{left}"
    )


def _data(runs: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """Yield the size of each model and dataset, and how precisely its test set measures."""
    for task, one in split(runs, "dataset", "model"):
        first, done = one.iloc[0], where(one, status="completed")
        error = sampling_error(float(done[ACCURACY.column].median()), first["test_examples"])
        yield (
            *(*task, f"{done['parameters'].max():,.0f}"),
            *(f"{first[f'{part}_examples']:,.0f}" for part in ("train", "validation", "test")),
            DASH if math.isnan(error) else f"{ACCURACY.show(error)} points",
        )


def audit_note(runs: pd.DataFrame) -> str:
    """Return whether the claims of the private methods of a study were audited, and how to do it.

    Args:
        runs: those with an ε.
    """
    found = {str(k): str(v) for k, v in runs.groupby("method", sort=False)["audit"].max().items()}
    refuted = [name for name, words in found.items() if words.startswith("refuted")]
    kept = [name for name, words in found.items() if words and name not in refuted]
    bounds = [f"{name} ({found[name].partition(': ')[2]})" for name in kept]
    missing = [name for name, words in found.items() if not words]
    said = [
        f"{outcome}: {', '.join(names) if len(names) <= FEW else f'{len(names)} methods'}."
        for outcome, names in (("Not refuted", bounds), ("Not audited", missing))
        if names
    ]
    said = [*([f"REFUTED: {', '.join(refuted)}."] if refuted else []), *said]
    target = f"snakemake --cores all reports/{runs['study'].iloc[0]}/audit.pdf"
    return (
        f"{' '.join(said)} “{target}” attacks exactly the methods of this study, at "
        f"settings of its own. {TOGETHER.format('study')} An audit can refute a claim of ε, and "
        "never prove one."
    )
