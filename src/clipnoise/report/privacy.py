"""The section on privacy: what is guaranteed, what is nominal, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pandas as pd

from clipnoise.fields import to_plain
from clipnoise.privacy.claim import NOT_COVERED, covered_by_epsilon
from clipnoise.privacy.noise import IndependentNoise
from clipnoise.privacy.profile import RATES, PrivacyProfile, rounded_up
from clipnoise.privacy.units import Node
from clipnoise.report.blocks import ListBlock, TextBlock
from clipnoise.report.formats import (
    DASH,
    budget,
    compact,
    count,
    listing,
    shown,
    significant,
)
from clipnoise.report.records import NON_PRIVATE

if TYPE_CHECKING:
    from clipnoise.core.query import Adjacency
    from clipnoise.run.spec import RunSpec

GROUPING = [
    *("claim", "accountant", "sampler", "adjacency", "caveat", "randomness", "unit", "release")
]
NUMBERS = [
    *("dataset", "noise", "budget", "delta", "noise_multiplier", "degree"),
    *("sampling_rate", "steps", "examples"),
]
HEADINGS = (
    *("statement", "dataset", "noise", "target ε", "achieved ε", "δ", "μ"),
    *(f"TPR at {100 * rate:g}% FPR" for rate in RATES),
    *("σ", "K", "q", "T", "n", "runs"),
)
OPTIONAL = ("noise", "K")  # columns that are left out where no row has anything in them
SEEDED = (
    "Noise and batches are derived from the seed, and runs with the same seed share them. The "
    "guarantee holds neither against anyone who knows the seed nor for several such runs published "
    "together."
)
WEAK_DELTA = (
    "Publishing one private example picked at random satisfies (0, 1/n), so such a δ excludes no "
    "breach of a single example. A δ far below 1/n does; ε is larger then."
)
COMPARABLE = (
    "One (ε, δ) does not order mechanisms, but a whole trade-off curve does. TPR is the most that "
    "any attack can reach: the share of members that it recognises where it takes that share of "
    "non-members for members. All of these bounds are of the same accountant as ε."
)
ALSO_NOMINAL = "Where ε is nominal, so are they."
GAUSSIAN = (
    "μ is that of Gaussian differential privacy: but for a probability of {slack}, which counts as "
    "revealing everything, a run is no easier to attack than one Gaussian release with σ = 1/μ. "
    "Errors of attacks that the curve allows exceed those that μ allows by at most {regret}."
)
EXACT = (
    "μ is that of Gaussian differential privacy, and exact: a run is as hard to attack as one "
    "Gaussian release with σ = 1/μ."
)
DEGREE = (
    "K: bound on the degrees of the graph; σ is in units of 2(K+1)C, the furthest that one node "
    "can move a clipped sum. "
)
SYMBOLS = (
    "σ: noise multiplier. {degree}q: sampling rate. T: steps. n: private training {units}. ε "
    "covers one "
    "training run at fixed hyper-parameters; choosing them is not included. Test results are "
    "measured on examples outside the training set, which the statement does not protect."
)
SECURE = "Noise and batches came from a cryptographic source and cannot be reproduced."
HEADS = {"guarantee": "Guarantee", "nominal": "Nominal ε, no guarantee"}
NAMES = {
    "rdp": "RDP",
    "prv": "PRV",
    "pld": "PLD",
    "monte-carlo": "Monte Carlo",
    "poisson": "Poisson",
    "cyclic-poisson": "cyclic Poisson",
    "balls-in-bins": "balls in bins",
}


def headline(runs: pd.DataFrame) -> str:
    """Return the claim of a whole study in a few words, for the running header."""
    claims = set(runs["claim"]) - {""}
    if "nominal" in claims:
        return "ε is nominal in some runs" if "guarantee" in claims else "ε is nominal"
    if "guarantee" in claims:
        return "(ε, δ) guaranteed for private runs"
    return "no private run" if claims else "no result yet"


def privacy_statement(
    runs: pd.DataFrame, specs: Mapping[str, RunSpec]
) -> list[TextBlock | ListBlock]:
    """Return what is guaranteed of some runs, of which each is given once, and the numbers of it.

    What is said has numbers where several statements are about private runs, and what several share
    is said once.

    Args:
        runs: planned ones, with what is known of their results.
        specs: of all runs, by hash, for what σ depends on beside the numbers of a run.
    """
    finished = _with_mechanisms(runs[runs["claim"] != ""], specs)
    private = list(finished[finished["claim"] != NON_PRIVATE].groupby(GROUPING, sort=True))
    statements: list[TextBlock] = []
    rows: list[tuple[str, ...]] = []
    holders: dict[str, list[str]] = {}
    for number, (key, subset) in enumerate(private, 1):
        text, further = _sentences(*map(str, key), number=len(subset))
        name = f"{number}. " if len(private) > 1 else ""
        statements.append(TextBlock(f"{name}{HEADS[str(key[0])]}.", [text]))
        for sentence in further:
            holders.setdefault(sentence, []).append(str(number))
        rows += [(str(number) if name else DASH, *row) for row in _rows(subset)]
    for numbers in dict.fromkeys(map(tuple, holders.values())):
        text = " ".join(one for one, those in holders.items() if tuple(those) == numbers)
        head = "" if len(numbers) == len(private) else f"{listing(list(numbers))}."
        statements.append(TextBlock(head, [text]))
    bounds = [one for one in finished["profile"] if one is not None and one.epsilons]
    if bounds:
        nominal = [ALSO_NOMINAL] if (finished["claim"] == "nominal").any() else []
        text = " ".join([COMPARABLE, *nominal, *_gaussian(bounds)])
        statements.append(TextBlock("Comparable bounds.", [text]))
    weak = finished[finished["delta"] * finished["examples"] > 1 - 1e-9]
    if len(weak):
        text = f"{count(len(weak), 'run')} at δ = 1/n or above. {WEAK_DELTA}"
        statements.append(TextBlock("Remark on δ.", [text]))
    references = finished[finished["claim"] == NON_PRIVATE]
    if len(references):
        methods = ", ".join(references["method"].drop_duplicates())
        text = (
            f"{count(len(references), 'run')} ({methods}) trained without protecting the examples. "
            "They have no ε and serve as references."
        )
        statements.append(TextBlock("Non-private.", [text]))
    unfinished = len(runs) - len(finished)
    if unfinished:
        text = f"{count(unfinished, 'planned run')} without a result: nothing is claimed for them."
        statements.append(TextBlock("No claim.", [text]))
    return [*statements, *([_numbers(rows, _units(finished))] if rows else [])]


def _with_mechanisms(runs: pd.DataFrame, specs: Mapping[str, RunSpec]) -> pd.DataFrame:
    """Return runs with the correlation of their noise and, for nodes, the bound on degrees."""
    found = [_mechanism(specs.get(name)) for name in runs["hash"]]
    return runs.assign(noise=[one[0] for one in found], degree=[one[1] for one in found])


def _mechanism(spec: RunSpec | None) -> tuple[str, str]:
    if spec is None or spec.privacy is None:
        return DASH, DASH
    noise, unit = spec.privacy.noise, spec.unit
    correlated = not isinstance(noise, IndependentNoise)
    return (
        shown(to_plain(noise)) if correlated else DASH,
        str(unit.degree) if isinstance(unit, Node) else DASH,
    )


def _units(runs: pd.DataFrame) -> str:
    """Return what n counts: that of the private runs, in the plural."""
    names = runs[runs["claim"] != NON_PRIVATE]["unit"].replace("", "example").drop_duplicates()
    return " or ".join(f"{name}s" for name in names)


def _numbers(rows: Sequence[tuple[str, ...]], units: str) -> ListBlock:
    """Return the numbers behind the statements as a table, and what its symbols mean."""
    kept = [
        column
        for column, head in enumerate(HEADINGS)
        if head not in OPTIONAL or any(row[column] != DASH for row in rows)
    ]
    heads = [HEADINGS[column] for column in kept]
    behind = compact(
        heads,
        [[row[column] for column in kept] for row in rows],
        (1,),
        numbers=len(heads) - heads.index("target ε"),
    )
    note = SYMBOLS.format(degree=DEGREE if "K" in heads else "", units=units)
    return replace(behind, notes=[note])


def _gaussian(bounds: Sequence[PrivacyProfile]) -> Iterator[str]:
    """Yield what μ means for some profiles, where there is one."""
    regrets = [one.regret for one in bounds if one.regret is not None]
    slack = max(one.slack for one in bounds)
    if regrets and slack:
        yield GAUSSIAN.format(slack=significant(slack), regret=rounded_up(max(regrets), 2))
    elif regrets:
        yield EXACT


def _bounds(profiles: Iterable[PrivacyProfile | None]) -> Iterator[str]:
    """Yield the largest μ of some runs, and their largest true positive rates, rounded up."""
    known = [one for one in profiles if one is not None and one.epsilons]
    mus = [one.mu for one in known if one.mu is not None]
    yield rounded_up(max(mus)) if mus and len(mus) == len(known) else DASH
    for rate in RATES:
        most = max((one.true_positive_rate(rate) for one in known), default=None)
        yield DASH if most is None else f"{rounded_up(100 * most)}%"


def _sentences(*terms: str, number: int) -> tuple[str, tuple[str, ...]]:
    """Return what is claimed for some runs, and sentences that other runs may share."""
    claim, accountant, sampler, adjacency, caveat, randomness, unit, release = terms
    runs, used = count(number, "run"), f"{NAMES.get(accountant, accountant)} accountant"
    source = SECURE if randomness == "secure" else SEEDED
    drawn = f"{NAMES.get(sampler, sampler)} sampling"
    if claim == "guarantee":
        text = (
            f"{runs}. The trained model and every iterate before it are (ε, δ)-differentially "
            f"private under {adjacency} adjacency. ε is an upper bound from the {used} for "
            f"{drawn}, which is how the batches were drawn."
        )
        covered = covered_by_epsilon(cast("Adjacency", adjacency), unit or "example")
        return text, (covered, NOT_COVERED["strict" if release == "strict" else "full"], source)
    gap = f"does not cover {drawn} under {adjacency} adjacency, as it was run"
    if caveat:
        gap = f"does not hold for these runs: {caveat}"
    text = (
        f"{runs}. ε was computed by the {used}, whose analysis {gap}. These ε are nominal: they "
        "order runs by noise and guarantee nothing."
    )
    return text, (source,)


def _rows(runs: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """Yield one row per setting, with the largest ε that any of its runs reached."""
    for _, subset in runs.groupby(NUMBERS, sort=False, dropna=False):
        first = subset.iloc[0]
        target = budget(first["budget"])
        yield (
            first["dataset"],
            first["noise"],
            target.removeprefix("ε = ") if "ε" in target else DASH,
            significant(subset["epsilon_achieved"].max(), 5),
            significant(first["delta"]),
            *_bounds(subset["profile"]),
            significant(first["noise_multiplier"]),
            first["degree"],
            significant(first["sampling_rate"]),
            significant(first["steps"], 12),
            significant(first["examples"], 12),
            str(len(subset)),
        )
