"""The reports of audits and of re-accounting, from their JSON and CSV files."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from clipnoise.audit.findings import ContractFinding, ControlFinding, EmpiricalFinding
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.files import read_json
from clipnoise.report.blocks import ListBlock, TextBlock
from clipnoise.report.formats import DASH, count, decimal, significant
from clipnoise.report.pdf import typeset
from clipnoise.studies.audits import TOGETHER, refuted_by_guesses

T = TypeVar("T")

COLUMNS = (
    "An audit can refute a guarantee. It can never prove one: a better attack may find more.",
    "Declared: the largest change that one example can cause in a released value, in units of C/B, "
    "the clip norm over the expected batch size. A second number is for a second released value. "
    "The noise has standard deviation σ times this sensitivity.",
    "Measured: the largest change that any attack caused, as a multiple of the declared one, all "
    "released values together. Above 1 the noise is too small.",
    "Noise: the variance of the noise that was added, as a multiple of what σ requires.",
    "Claimed ε: what the accountant gives for the mechanism. Smaller is more private.",
    "ε shown by releases: an attacker guessed which planted examples (canaries) took part, and was "
    "right more often than the claimed mechanism would allow with the noise that this ε takes. "
    "What is refuted is its whole trade-off curve, of which ε at the δ below is one point. "
    "Above the claimed ε the claim is false. It stays far below the claim even for the exact "
    "mechanism, because attacks on single runs are not optimal.",
    "ε shown by final parameters: the same for an attacker who sees the parameters at the end, and "
    "no other release.",
    "p: the probability, at most, that a mechanism as claimed would let the attacker be right so "
    "often, over all the guesses of the row.",
    "Nominal: the accountant's analysis does not cover this adjacency, so its ε is no guarantee.",
)
WITHOUT_CONTROLS = (
    "Whether these attacks also find deliberate mistakes is shown in reports/audit/report.pdf."
)
EXCEEDED = "canaries are guessed more often than the claim allows"
WORDS = ("paper", "result", "noise_source", "steps_source", "released_code")
READING = (
    "Published: ε as printed. Text: the ε that would hold with Poisson batches for the algorithm "
    "in the text at the δ beside it, by the accountant that the paper names (RDP). Code: the same "
    "for the released code; empty where there is none, or where no accountant here covers what it "
    "does. Both are upper bounds for the worst case; what an attack gains may be less.",
    "Tight: the same under numerical composition (PRV), which is closer to the true value.",
    "What a paper does not print is solved for: the noise multiplier or the number of steps at "
    "which the accountant of its code gives the published ε at the δ that the code used.",
    "Values of sampled batches assume Poisson sampling at rate B/n; for nodes of a graph, batches "
    "of a fixed size. Code that shuffles, or goes through a file in its order, has no such bound: "
    "its ε is nominal and guarantees nothing.",
)


def build_audit_report(
    folder: Path, template: Path, methods: Collection[str] = (), study: str = ""
) -> bytes:
    """Make the PDF of all audits, or of those of some methods.

    Args:
        folder: holds contract/, empirical/ and control/ with one JSON file each.
        template: how to lay it out.
        methods: those to show, by id, without the controls; none shows everything.
        study: whose methods these are; named in the title.

    Returns:
        The PDF; the same bytes for the same input.

    Raises:
        UserError: a result is missing, or the template does not compile.
    """
    contracts = _read(ContractFinding, folder / "contract")
    bounds = _read(EmpiricalFinding, folder / "empirical")
    controls = _read(ControlFinding, folder / "control")
    if methods:
        for name in methods:
            if name not in contracts:
                raise UserError(
                    f"{folder}: no audit of {name}. Run: clipnoise audit contract {name}."
                )
        contracts, controls = {name: contracts[name] for name in methods}, {}
        bounds = {name: bound for name, bound in bounds.items() if name in contracts}
    if not contracts and not controls:
        raise UserError(f"{folder}: no audit results. Run: clipnoise audit contract METHOD.")
    refuted = refuted_by_guesses({name: bound.p_value for name, bound in bounds.items()})
    rows = [
        _method(contract, bounds.get(name), refuted=name in refuted)
        for name, contract in contracts.items()
    ]
    heads = (
        "method, adjacency, declared, measured, noise, claimed ε, ε shown by releases, "
        "by final parameters, p, verdict"
    )
    blocks: list[TextBlock | ListBlock] = [
        text("Result", [_result([row[-1] for row in rows], list(controls.values()))]),
        text("What the columns mean", COLUMNS),
        sheet("Methods", heads.split(", "), "ll" + "r" * 7 + "l", rows),
        text("Setup", _setup(contracts.values(), bounds.values())),
    ]
    if controls:
        found = [
            [
                f"{control.control}: {control.mistake}",
                ", ".join(control.refuted_by) or "NOT REFUTED: the audit is broken",
                "; ".join(control.said),
            ]
            for control in controls.values()
        ]
        heads = "mistake, refuted by, evidence"
        blocks.append(sheet("Controls: deliberate mistakes", heads.split(", "), "lll", found))
    title = f"Audit of the methods of {study}" if study else "Audit"
    return page(title, "audit", blocks, template)


def build_reaccounting_report(table: Path, template: Path) -> bytes:
    """Make the PDF of the re-accounting.

    Args:
        table: the CSV file of `clipnoise reaccount`.
        template: how to lay it out.

    Raises:
        UserError: the table is missing, or the template does not compile.
    """
    try:
        words = dict.fromkeys(WORDS, str)
        cells = pd.read_csv(table, dtype=words, keep_default_na=False, na_values=["", "nan"])
    except OSError as error:
        raise UserError(f"{table}: cannot be read: {error.strerror}.") from None
    rows = cells.fillna(dict.fromkeys(WORDS, "")).to_dict("records")
    heads = "paper, result, published, δ, text, text (tight), code, code (tight)"
    assumed = "result, n, B, T, σ, source of σ, source of T, released code"
    blocks: list[TextBlock | ListBlock] = [
        text("How to read this", READING),
        sheet(
            "ε that would hold with Poisson batches, at equal δ",
            heads.split(", "),
            "ll" + "r" * 6,
            map(_costs, rows),
        ),
        sheet("Assumptions", assumed.split(", "), "lrrrrlll", map(_assumptions, rows)),
    ]
    return page("Published ε, computed again", "reaccounting", blocks, template)


def _read(kind: type[T], folder: Path) -> dict[str, T]:
    """Return the results in a folder by the names of their files."""
    try:
        files = {path: read_json(path) for path in sorted(folder.glob("*.json"))}
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: damaged result file: {error}.") from None
    return {path.stem: parse(kind, values, file=str(path)) for path, values in files.items()}


def page(
    title: str, name: str, blocks: Sequence[TextBlock | ListBlock], template: Path, **options: Any
) -> bytes:
    """Lay out a title and blocks; `name` is the kind of report."""
    return typeset({"title": title, "name": name, "blocks": blocks, **options}, template, {})


def text(title: str, paragraphs: Iterable[str]) -> TextBlock:
    """Return a block of paragraphs."""
    return TextBlock(title, list(paragraphs))


def sheet(title: str, heads: list[str], align: str, rows: Iterable[list[str]]) -> ListBlock:
    """Return a table; `align` has a letter per column, l or r."""
    return ListBlock(title=title, heads=heads, align=align, rows=list(rows))


def _method(
    contract: ContractFinding, bound: EmpiricalFinding | None, *, refuted: bool
) -> list[str]:
    noise, unit = contract.noise, (contract.clip_norm or math.nan) / contract.expected_batch_size
    declared = [significant(component.sensitivity / unit, 3) for component in contract.declared]
    return [
        contract.method,
        contract.adjacency,
        ", ".join(declared) or DASH,
        significant(math.nan if contract.measured is None else contract.measured.joint),
        DASH if noise is None else decimal(noise.variance, 3),
        DASH if bound is None else decimal(bound.claimed_epsilon, 2),
        DASH if bound is None else decimal(bound.bound.epsilon, 2),
        DASH if bound is None else decimal(bound.final_bound.epsilon, 2),
        DASH if bound is None else significant(bound.p_value, 2),
        _verdict(contract, bound, refuted=refuted),
    ]


def _verdict(contract: ContractFinding, bound: EmpiricalFinding | None, *, refuted: bool) -> str:
    """Return the verdict on a method; guesses refute it among all methods of the report."""
    if not contract.private:
        return "no claim (non-private)"
    if contract.verdict == "broken" or refuted:
        return "refuted: " + "; ".join(contract.broken or [EXCEEDED])
    if bound is None:
        return "contract kept; not audited"
    return "not refuted" + (" (ε is nominal)" if bound.claim == "nominal" else "")


def _result(verdicts: Sequence[str], controls: Sequence[ControlFinding]) -> str:
    """Return the verdicts on all methods and controls in a few sentences."""
    nothing = sum(verdict.startswith("no claim") for verdict in verdicts)
    refuted = sum(verdict.startswith("refuted") for verdict in verdicts)
    missed = [control.control for control in controls if not control.refuted]
    methods = count(len(verdicts), "method")
    found = (
        f"Of {methods}, {refuted or 'none'} {'are' if refuted > 1 else 'is'} refuted; "
        f"{_no_claim(nothing) if nothing else 'all of them claim privacy'}."
    )
    if missed:
        return f"{found} NOT REFUTED, so that the audit is broken: {', '.join(missed)}."
    if not controls:
        return f"{found} {WITHOUT_CONTROLS}"
    return f"{found} All {len(controls)} controls are refuted, as they must be."


def _no_claim(number: int) -> str:
    return f"{number} {'claims' if number == 1 else 'claim'} no privacy"


def _setup(
    contracts: Collection[ContractFinding], bounds: Collection[EmpiricalFinding]
) -> list[str]:
    """Return the settings of the audits as paragraphs."""
    paragraphs = []
    pairs = [row.measured.pairs for row in contracts if row.measured is not None]
    if pairs:
        paragraphs.append(
            f"Contract check: {sum(pairs):,} comparisons of neighbouring datasets, adversarial "
            "ones and real digits, with empty and oversized batches, at several B, C, σ and T, "
            "at the first, a middle and the last step, at several iterates, through both gradient "
            "engines with several physical batch sizes, on networks with an embedding, a "
            "convolution and dropout, for examples, users and nodes. Noise and updates are those "
            "of the training loop, in runs as long as a study's."
        )
    checks = [check for row in contracts for check in row.checks]
    parts = []
    for name in dict.fromkeys(check.name for check in checks):
        held = [check.holds for check in checks if check.name == name]
        parts.append(f"{name} for {sum(held)} of {len(held)}")
    if parts:
        paragraphs.append(f"Promises, and for how many methods they hold: {', '.join(parts)}.")
    every = {row.settings for row in bounds}
    for settings in sorted(every, key=lambda one: json.dumps(vars(one), sort_keys=True)):
        paragraphs.append(
            f"Empirical audit: m = {settings.canaries * settings.runs:,} gradient canaries, each "
            f"included with probability 1/2, in {settings.runs} independent runs of logistic "
            f"regression on digits; σ = {settings.noise_multiplier:g}, "
            f"q = {settings.sampling_rate:g}, {settings.steps} steps, δ = "
            f"{significant(settings.delta)}, confidence {settings.confidence:g}. Each canary "
            "belongs to a single run, so all runs together are one mechanism."
        )
    for attack, scores in (
        ("releases", {row.score for row in bounds}),
        ("final parameters", {row.final_score for row in bounds}),
    ):
        paragraphs += [f"Score of the attack on {attack}: {score}." for score in sorted(scores)]
    paragraphs.append(
        "Confidence: what the guesses of a row show, by all scores and numbers of guesses that "
        "were tried, holds together with the confidence above (Bonferroni). "
        f"{TOGETHER.format('report')} The test is that of Mahloujifar, Melis and Chaudhuri 2025, "
        "against the curve that the accountant claims."
    )
    return paragraphs


def _costs(row: dict[Any, Any]) -> list[str]:
    numbers = [significant(row[name]) for name in ("published", "delta")]
    names = ("text", "text_tight", "released", "released_tight")
    return [row["paper"], row["result"], *numbers, *(decimal(row[name], 2) for name in names)]


def _assumptions(row: dict[Any, Any]) -> list[str]:
    names = ("examples", "batch_size", "steps", "noise_multiplier")
    words = [row[name] for name in ("noise_source", "steps_source", "released_code")]
    return [row["result"], *(significant(row[name], 6) for name in names), *words]
