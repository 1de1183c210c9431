"""The page that says how a method in a file was judged, from the judge's result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clipnoise.report.audits import content, sheet, text
from clipnoise.report.formats import decimal
from clipnoise.report.pdf import typeset

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
    hyperparameters = ", ".join(f"{k} {v}" for k, v in result["hyperparameters"].items())
    file = f"{result['file']}, SHA-256 {result['sha256'][:16]}…; {hyperparameters or 'no options'}"
    checks = (
        [each["name"], "" if each["holds"] else "refuted", each["said"]]
        for each in result["checks"]
    )
    beside = [f"{name}: {said}" for name, said in _controls(result)]
    blocks = [
        text("Verdict", [VERDICTS[result["verdict"]], file, *_claim(result), *_cost(result)]),
        sheet("Checks", ["check", "", "finding"], "lll", checks),
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
            f"A step takes {decimal(cost['time'], 2)} times as long as one of dp-sgd, on logistic "
            f"regression with one thread. Gradients of each drawn example: {cost['passes']}. "
            f"Numbers that the method remembers for each parameter: {cost['buffers']}."
        )


def _controls(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for control in result["controls"]:
        found = ", ".join(control["found"]) or "nothing"
        wrong = "" if control["as_expected"] else " (not as expected)"
        yield control["name"], f"refuted by {found}{wrong}"
