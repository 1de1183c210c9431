"""The page that says how a method in a file was judged, from the judge's result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clipnoise.report.audits import content, sheet, text
from clipnoise.report.formats import DASH, METRICS, decimal, shown
from clipnoise.report.pdf import typeset
from clipnoise.report.statistics import ALPHA, Interval
from clipnoise.report.verdict import HELD_UP
from clipnoise.studies.league import GIVEN

VERDICTS = {
    "not refuted": "Not refuted. No check found anything that contradicts the guarantee. This is "
    "no proof: a better attack may find more.",
    "refuted": "Refuted. The guarantee does not hold, or cannot be relied on.",
    "no claim": "No claim. The method protects nothing, so there is nothing to refute.",
    "void": "Void. A control that is judged beside every file came out wrong: do not rely on this "
    "judgement.",
}


def build_judgement(result: dict[str, Any], template: Path) -> bytes:
    """Make the page of a judgement.

    Args:
        result: what `judge` returned.
        template: the Typst file.

    Returns:
        The PDF; the same bytes for the same input.

    Raises:
        UserError: the template does not compile.
    """
    hyperparameters = ", ".join(f"{k} {shown(v)}" for k, v in result["hyperparameters"].items())
    file = f"{result['file']}, SHA-256 {result['sha256'][:16]}…; {hyperparameters or 'no options'}"
    checks = (
        [each["name"], "" if each["holds"] else "refuted", each["said"]]
        for each in result["checks"]
    )
    beside = [f"{name}: {said}" for name, said in _controls(result)]
    blocks = [
        text("Verdict", [VERDICTS[result["verdict"]], file, *_claim(result), *_cost(result)]),
        sheet("Checks", ["check", "", "finding"], "lll", checks),
        *_standing(result),
        *([text("Controls", beside)] if beside else []),
        text("Not checked", result["not_checked"]),
    ]
    page = content(result["method"] or result["file"], "judge", blocks)
    return typeset({**page, "flipped": False}, template, {})


def _claim(result: dict[str, Any]) -> Iterator[str]:
    claim = result.get("claim")
    if result["verdict"] == "refuted":
        yield "It may claim no ε."
    elif claim is not None:
        examples = ", ".join(f"{decimal(e, 2)} at σ = {s}" for s, e in claim["epsilon"].items())
        yield (
            f"It may claim the ε of the accountant under {claim['adjacency']} adjacency "
            f"({claim['claim']}): for example, with n = {claim['examples']}, "
            f"B = {claim['expected_batch_size']}, T = {claim['steps']} and "
            f"δ = {claim['delta']:g}, ε = {examples} ({claim['accountant']}, Poisson sampling)."
        )


def _cost(result: dict[str, Any]) -> Iterator[str]:
    cost = result.get("cost")
    if cost is not None:
        yield (
            f"A step takes {decimal(cost['time'], 2)} times as long as one of {cost['than']}, on "
            f"logistic regression with one thread. Gradients of each drawn {cost['unit']}: "
            f"{cost['passes']}. "
            f"Numbers that the method remembers for each parameter: {cost['buffers']}."
        )


def standing_rows(league: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
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


def _standing(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield where the method stands in the league, if it took part."""
    if "league" in result:
        league = result["league"]
        heads, rows = standing_rows(league)
        yield sheet(f"The league, {league['size']}", heads, "lrlrrrr", rows)
        yield text("What these columns mean", list(_reading(league)))


def _reading(league: dict[str, Any]) -> Iterator[str]:
    base = league["baseline"]
    whose = {GIVEN: "as given", base: f"that of {base}, because no other was given"}
    found = whose.get(league["space"], "the league's for this method")
    space = {**league["tune"].get("ranges", {}), **league["tune"].get("grid", {})}
    yield (
        f"Search space: {', '.join(f'{k} {shown(v)}' for k, v in space.items())}; {found}. Both "
        "methods were tuned by ruleset A of docs/league.md: the configuration that is best on "
        "validation data is run with other seeds. Other hyper-parameters are those that were "
        "judged. The ε of the search is not included."
    )
    yield (
        f"Over {base}: the mean difference in test results, seed by seed, with its 95% t-interval. "
        "Rank: by the mean over seeds, with all ranks that a paired t-test over seeds, "
        f"Holm-corrected, does not exclude (α = {ALPHA}). It is among {league['among']}."
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


def _controls(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for control in result["controls"]:
        found = ", ".join(control["found"]) or "nothing"
        wrong = "" if control["as_expected"] else " (not as expected)"
        yield control["name"], f"refuted by {found}{wrong}"
