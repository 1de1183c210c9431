"""The judgement of a method in a file: where it stands in the league, and the page that says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import pandas as pd

from clipnoise.privacy.profile import rounded_up
from clipnoise.report.audits import page, sheet, text
from clipnoise.report.baseline import contended, cost_ratio
from clipnoise.report.blocks import ListBlock, TextBlock
from clipnoise.report.formats import DASH, METRICS, decimal, named
from clipnoise.report.inference.sign_flips import apart_from, units_needed
from clipnoise.report.publication import run_rows
from clipnoise.report.records import split, where
from clipnoise.report.statistics import ALPHA, Interval, advantage
from clipnoise.report.verdict import HELD_UP
from clipnoise.studies.league import GIVEN
from clipnoise.studies.screening import CONFIRM

if TYPE_CHECKING:
    from clipnoise.audit.judge.verdict import Judgement
    from clipnoise.audit.loops.claim import LoopJudgement
    from clipnoise.privacy.profile import StatedProfile

VERDICTS = {
    "not refuted": "Not refuted. No check found anything that contradicts the guarantee. This is "
    "no proof: a better attack may find more.",
    "refuted": "Refuted. The guarantee does not hold, or cannot be relied on.",
    "no claim": "No claim. The method protects nothing, so there is nothing to refute.",
    "void": "Void. A control that is judged beside every file came out wrong: do not rely on this "
    "judgement.",
}


class LeagueRank(TypedDict):
    """The rank of a method among `of`, and the lowest and highest that cannot be excluded."""

    rank: int
    low: int
    high: int
    of: int


class LeagueSetting(TypedDict):
    """How a method does at one task and budget.

    Attributes:
        task, epsilon, metric: the task, its ε, and the column by which methods are compared.
        mean: over `runs` completed of `planned` runs; None without any.
        over: mean, low and high of the difference to the baseline; None without a pair.
        rank: None where a run is lacking, or ε is no guarantee under the same adjacency.
        not_ranked: the labels of methods for which that is so.
        hyperparameters: as in the table of runs.
        time: the median device time as a multiple of the baseline's; None if unknown.
    """

    task: str
    epsilon: float
    metric: str
    mean: float | None
    runs: int
    planned: int
    over: list[float] | None
    rank: LeagueRank | None
    not_ranked: list[str]
    hyperparameters: str
    time: float | None


class Standing(TypedDict):
    """Where a method stands in a league.

    Attributes:
        settings: one for each task and budget.
        time: over all of them.
        held_up: whether other work held the runs up.
    """

    settings: list[LeagueSetting]
    time: float | None
    held_up: bool


class LeagueStanding(Standing):
    """The same, with what it is that the method took part in.

    Attributes:
        task: of the league.
        study, report: the files of its study and of its report.
        baseline: the method with which it is compared.
        tune, space: what was tuned, and whose choice that is.
        among: in words, the methods among which it is ranked.
    """

    task: str
    study: str
    report: str
    baseline: str
    tune: Mapping[str, Mapping[str, object]]
    space: str
    among: str


def build_judgement(
    result: Judgement, template: Path, league: LeagueStanding | None = None
) -> bytes:
    """Make the page of a judgement.

    Args:
        result: what `judge` returned.
        league: where the method stands, if it took part.
        template: the Typst file.

    Returns:
        The PDF; the same bytes for the same input.

    Raises:
        UserError: the template does not compile.
    """
    options = named(result.hyperparameters) or "no options"
    file = f"{result.file}, SHA-256 {result.sha256[:16]}…; {options}"
    checks = ([each.name, "" if each.holds else "refuted", each.said] for each in result.checks)
    beside = [
        f"{each.name}: {each.said}{'' if each.holds else ' (not as expected)'}"
        for each in result.controls
    ]
    blocks = [
        text("Verdict", [VERDICTS[result.verdict], file, *_claim(result), *_cost(result)]),
        sheet("Checks", ["check", "", "finding"], "lll", checks),
        *([] if league is None else _standing(league)),
        *([text("Controls", beside)] if beside else []),
        text("Not checked", result.not_checked),
    ]
    return page(result.method or result.file, "judge", blocks, template, flipped=False)


def build_loop_judgement(result: LoopJudgement, template: Path) -> bytes:
    """Make the page of a judgement of a training loop.

    Args:
        result: what `judge_file` returned.
        template: the Typst file.

    Returns:
        The PDF; the same bytes for the same input.

    Raises:
        UserError: the template does not compile.
    """
    given = {name: value for name, value in vars(result.claim).items() if value is not None}
    file = f"{result.file}, SHA-256 {(result.sha256 or '')[:16]}…; level {result.level}"
    rate = (
        f"An honest loop is refuted by chance with a probability of at most "
        f"{result.false_refutation:g}, over all checks that draw."
    )
    claimed = f"Claim: {named(given)}; {result.examples} examples."
    profile = result.profile
    allowed = [] if profile is None else [f"If the claim is true: {_attacks(profile)}."]
    rows = ([each.name, "" if each.holds else "refuted", each.said] for each in result.checks)
    power = (f"{each.name}: {each.power}" for each in result.checks if each.power)
    skipped = [f"{each.name}: {each.said}" for each in result.skipped]
    blocks: list[TextBlock | ListBlock] = [
        text("Verdict", [VERDICTS[result.verdict], file, claimed, *allowed, rate]),
        sheet("Checks", ["check", "", "finding"], "lll", rows),
        text("What would have been seen", power),
        *([text("Remarks", result.remarks)] if result.remarks else []),
        text("Not checked", [*skipped, *result.not_checked]),
    ]
    return page(result.file or "", "judge-loop", blocks, template, flipped=False)


def _claim(result: Judgement) -> Iterator[str]:
    claim = result.claim
    if result.verdict == "refuted":
        yield "It may claim no ε."
    elif claim is not None:
        examples = ", ".join(f"{decimal(e, 2)} at σ = {s}" for s, e in claim.epsilon.items())
        yield (
            f"It may claim the ε of the accountant under {claim.adjacency} adjacency "
            f"({claim.claim}): for example, with n = {claim.examples}, "
            f"B = {claim.expected_batch_size}, T = {claim.steps} and "
            f"δ = {claim.delta:g}, ε = {examples} ({claim.accountant}, Poisson sampling)."
        )
        nominal = "" if claim.claim == "guarantee" else ", nominal"
        for sigma, profile in claim.profile.items():
            yield f"At σ = {sigma}{nominal}: {_attacks(profile)}."


def _attacks(profile: StatedProfile) -> str:
    """Return μ and true positive rates in words."""
    if "true_positive_rates" not in profile:
        return f"privacy profile not available: {profile['unavailable']}"
    rates = " and ".join(
        f"{rounded_up(true)} at an FPR of {100 * float(false):g}%"
        for false, true in profile["true_positive_rates"].items()
    )
    if profile["mu"] is None:
        gaussian = f"no μ of Gaussian DP: {profile['unavailable']}"
    else:
        slack = f", but for a probability of {profile['slack']:g}" if profile["slack"] else ""
        gaussian = f"Gaussian DP with μ = {rounded_up(profile['mu'])}{slack}"
    return f"{gaussian}; an attack has a TPR of at most {rates}"


def _cost(result: Judgement) -> Iterator[str]:
    cost = result.cost
    if cost is not None:
        yield (
            f"A step takes {decimal(cost.time, 2)} times as long as one of {cost.than}, on "
            f"logistic regression with one thread. Gradients of each drawn {cost.unit}: "
            f"{cost.passes}. "
            f"Numbers that the method remembers for each parameter: {cost.buffers}."
        )


def standing_rows(league: LeagueStanding) -> tuple[list[str], list[list[str]]]:
    """Return where a method stands in the league: the heads of a table, and its rows."""
    base, rows = league["baseline"], []
    for at in league["settings"]:
        metric, rank, lost = METRICS[at["metric"]], at["rank"], at["planned"] - at["runs"]
        mean = DASH if at["mean"] is None else metric.show(at["mean"])
        cells = [at["task"], f"{at['epsilon']:g}", metric.heading]
        cells.append(f"{mean} ({lost} of {at['planned']} runs failed)" if lost else mean)
        cells.append(Interval(*at["over"]).show(metric) if at["over"] else DASH)
        cells.append(
            f"{rank['rank']} of {rank['of']} [{rank['low']}, {rank['high']}]" if rank else DASH
        )
        rows.append([*cells, _number(at["time"])])
    return ["task", "ε", "metric", "mean", f"over {base}", "rank", f"time ÷ {base}"], rows


def _number(value: float | None) -> str:
    return DASH if value is None else decimal(value, 2)


def _standing(league: LeagueStanding) -> Iterator[TextBlock | ListBlock]:
    """Yield where the method stands in the league."""
    heads, rows = standing_rows(league)
    yield sheet(f"The league, {league['task']}", heads, "lrlrrrr", rows)
    yield text("What these columns mean", list(_reading(league)))


def _reading(league: LeagueStanding) -> Iterator[str]:
    base = league["baseline"]
    whose = {GIVEN: "as given", base: f"that of {base}, because no other was given"}
    found = whose.get(league["space"], "the league's for this method")
    space = {**league["tune"].get("ranges", {}), **league["tune"].get("grid", {})}
    yield (
        f"Search space: {named(space)}; {found}. Both "
        "methods were tuned alike by docs/league.md: the configuration of a search that is best on "
        "validation data is run with other seeds. Other hyper-parameters are those that were "
        "judged. The ε of the search is not included."
    )
    yield (
        f"Over {base}: the mean difference in test results, in pairs, with its 95% t-interval, "
        "which leaves out the test set. A pair is a search, with the mean over its seeds. "
        "Rank: by the mean, with all ranks that sign flips do not exclude, at one level of "
        f"{ALPHA} over all methods (docs/league.md); fewer than {units_needed(ALPHA)} pairs "
        f"exclude none. It is among {league['among']}."
    )
    left = sorted({name for at in league["settings"] for name in at["not_ranked"]})
    if left:
        yield (
            "Not ranked at every setting, because runs failed or are missing, or because ε is no "
            f"guarantee under the same adjacency: {', '.join(left)}."
        )
    yield (
        f"Time: device seconds in all steps of a run, over those of {base}; the median over seeds "
        f"on the same kind of machine. Over all settings: {_number(league['time'])}. "
        + (HELD_UP if league["held_up"] else "")
    )


# ---- Where it stands


def standing(runs: pd.DataFrame, league: pd.DataFrame, method: str, baseline: str) -> Standing:
    """Compare a method with a baseline, and rank it among the methods of the league.

    Args:
        runs: the runs of both methods, which were tuned in the same way.
        league: the rows of the league's runs that have ended, as `run_rows` returns them.
        method: the id of the method.
        baseline: the id of the baseline.

    Returns:
        Plain data. The seeds of a search share its choice, so their mean is what is compared.
    """
    known = league[~league["method"].isin([method, baseline])]
    both = pd.concat([run_rows(runs), known], ignore_index=True)
    both["unit"] = both["seed"].map(runs.set_index("seed")["search"].to_dict())
    settings = []
    for (panel, epsilon), here in both.groupby(["panel", "epsilon"], sort=False):
        trained = where(runs, panel=panel, epsilon=epsilon)
        if len(trained):
            ratio = _ratio(trained, method, baseline)
            settings.append(_setting(here, method, baseline, ratio))
    time = _ratio(runs, method, baseline)
    return {"settings": settings, "time": time, "held_up": contended(runs)}


def _ratio(runs: pd.DataFrame, method: str, baseline: str) -> float | None:
    ratio = cost_ratio(where(runs, method=method), where(runs, method=baseline))
    return None if pd.isna(ratio) else ratio


def _setting(rows: pd.DataFrame, method: str, baseline: str, time: float | None) -> LeagueSetting:
    """Return how a method does at one task and budget, as plain data."""
    mine = where(rows, method=method)
    done = where(mine, status="completed")
    first, seeds = mine.iloc[0], set(mine["seed"])
    metric = METRICS[first["metric"]]
    # Ranks are among completed runs whose ε is a guarantee under the same adjacency.
    able = where(rows, claim="guarantee", adjacency=first["adjacency"], status="completed")
    valued = split(able[able["value"].notna()], "label")
    scores = {label: _by_unit(one) for (label,), one in valued}
    complete = {label: scores[label] for (label,), one in valued if seeds <= {*one["seed"]}}
    own, base = scores.get(method, {}), scores.get(baseline, {})
    over, up = advantage(own, base, metric), metric.higher_is_better
    return {
        "task": str(first["dataset" if first["panel"] == CONFIRM else "panel"]),
        "epsilon": float(first["epsilon"]),
        "metric": metric.column,
        "mean": float(done["value"].mean()) if len(done) else None,
        "runs": len(done),
        "planned": len(mine),
        "over": [over.mean, over.low, over.high] if {*own} & {*base} else None,
        "rank": _rank(complete, method, higher_is_better=up) if method in complete else None,
        "not_ranked": sorted({*rows["label"]} - {*complete}),
        "hyperparameters": str(first["hyperparameters"]),
        "time": time,
    }


def _by_unit(runs: pd.DataFrame) -> dict[int, float]:
    """Return the mean value of each seed, or of each search where searches are repeated."""
    return {int(float(unit)): float(one["value"].mean()) for (unit,), one in split(runs, "unit")}


def _rank(
    scores: Mapping[str, Mapping[int, float]], method: str, *, higher_is_better: bool
) -> LeagueRank:
    """Return the rank of a method, with the ranks that cannot be excluded.

    A method is surely better or worse than another one if sign flips tell them apart, at one level
    over all others. So the interval holds the rank of the expected results at a confidence of
    1 − α, where equally good methods have symmetric differences. `scores` are by label, then by
    unit.
    """
    mine, others = scores[method], [name for name in scores if name != method]
    own, rest = (
        np.array([[scores[name][unit] for unit in mine] for name in names]).reshape(-1, len(mine))
        for names in ([method], others)
    )
    gains = (own - rest).mean(axis=1) * (1 if higher_is_better else -1)
    surely = gains[apart_from(own[0], rest) <= ALPHA] if others else gains
    return {
        "rank": 1 + int((gains < 0).sum()),
        "low": 1 + int((surely < 0).sum()),
        "high": len(scores) - int((surely > 0).sum()),
        "of": len(scores),
    }
