"""Privacy checked: attacks on the code, and the published ε computed again."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import click

from clipnoise.cli import options
from clipnoise.fields import Count, Natural, Positive, Probability
from clipnoise.files import write_atomically, write_json
from clipnoise.privacy.accountants.poisson import PoissonAccountant, Rate

PUBLISHED = Path("reports/published/reaccounting.yaml")
NO_CODE = "no code was released"  # what that file says of such a result

MethodName = Annotated[str, options.ARGUMENT]
Out = Annotated[Path | None, "JSON file to write, instead of printing."]


@click.group(cls=options.CommandGroup)
def audit() -> None:
    """Attack a method: contract check, guesses of canaries, or a broken control.

    An audit can refute a guarantee. It can never prove one.
    """


@options.command(audit)
def contract(
    method: MethodName,
    hyperparameters: options.Hyperparameters = options.NO_HYPERPARAMETERS,
    microbatch: Annotated[
        Count, "Examples whose mean is clipped; above 1, the declared sensitivity is 2C."
    ] = 1,
    cache: options.Cache = options.CACHE,
    out: Out = None,
) -> None:
    """Check that one example moves no release of METHOD by more than is declared."""
    from clipnoise.audit.contract import check_contract
    from clipnoise.audit.subject import subject
    from clipnoise.privacy.microbatches import MicroBatches

    audited = replace(subject(method, hyperparameters), microbatches=MicroBatches(microbatch))
    result = check_contract(audited, cache)
    _show(asdict(result), out, ", ".join([result.verdict, *result.broken]))


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The settings of an empirical audit; None takes the default of `Settings`."""

    canaries: Annotated[Count | None, "Canaries per run, at most one per parameter (640)."] = None
    runs: Annotated[Count | None, "Independent runs, each with its own canaries (100)."] = None
    noise_multiplier: Annotated[Positive | None, "σ (4)."] = None
    sampling_rate: Annotated[Rate | None, "q (0.9)."] = None
    steps: Annotated[Count | None, "T (4)."] = None
    delta: Annotated[Probability | None, "δ (1e-5)."] = None
    confidence: Annotated[Probability | None, "Confidence of all findings together (0.95)."] = None
    seed: Annotated[Natural | None, "Seed of the first run (0)."] = None
    accountant: Annotated[PoissonAccountant | None, "Accountant of the claimed ε (prv)."] = None


@options.command(audit)
def empirical(
    method: MethodName,
    attack: Attack,
    hyperparameters: options.Hyperparameters = options.NO_HYPERPARAMETERS,
    cache: options.Cache = options.CACHE,
    out: Out = None,
) -> None:
    """Refute what METHOD claims, or a part of it, by guessing canaries."""
    from clipnoise.audit.empirical import audit as attack_method
    from clipnoise.audit.findings import Settings
    from clipnoise.audit.subject import subject

    settings = Settings(
        **{name: value for name, value in vars(attack).items() if value is not None}
    )
    result = attack_method(subject(method, hyperparameters), cache, settings)
    bound, final = result.bound.epsilon, result.final_bound.epsilon
    numbers = f"releases show ε {bound:.3f}, final parameters ε {final:.3f}"
    conclusion = f"{result.verdict}: {numbers}, claimed {result.claimed_epsilon:.3f}"
    _show(asdict(result), out, conclusion)


@options.command(audit)
def control(
    name: Annotated[str, options.ARGUMENT], cache: options.Cache = options.CACHE, out: Out = None
) -> None:
    """Audit the deliberately broken variant NAME, such as half-noise."""
    from clipnoise.audit.controls import check_control

    result = check_control(name, cache)
    _show(result.plain(), out, f"refuted by {', '.join(result.refuted_by) or 'nothing'}")


@options.command()
def selfcheck(
    device: Annotated[Literal["auto", "cpu", "cuda"], "Where to check."] = "auto",
) -> int:
    """Check that this machine computes what the guarantees assume, and how fast.

    Gradient engines against float64 on the CPU, in float32 and bfloat16; the most that one example
    adds; a resumed run against one without a stop; memory that runs out; the cost of a step. The
    exit code is 1 if a check fails.
    """
    from clipnoise.audit.selfcheck import self_check
    from clipnoise.run.setup import named_device

    chosen = named_device(device)
    print(f"checking {chosen}", flush=True)
    failed = 0
    for found in self_check(chosen):
        print(f"{'ok' if found.holds else 'FAILED':<8}{found.name:<20}{found.said}", flush=True)
        failed += not found.holds
    print(f"{failed} checks failed" if failed else "all checks passed")
    return 1 if failed else 0


@options.command(audit)
def report(
    results: Annotated[Path, "Folder of the audits' JSON files."],
    out: Annotated[Path, "PDF to write."],
    template: options.Template = options.TEMPLATES / "audit.typ",
    methods: Annotated[
        Sequence[str], "The methods to show, without controls; all by default."
    ] = (),
    study: Annotated[str, "The study whose methods these are, for the title."] = "",
) -> None:
    """Typeset the results in a folder as one PDF."""
    from clipnoise.report.audits import build_audit_report

    write_atomically(out, build_audit_report(results, template, methods, study))
    print(f"{out}: audit report")


def _show(result: dict[str, object], out: Path | None, conclusion: str) -> None:
    """Print an audit's result, or write it to a file and print its conclusion."""
    if out is None:
        print(json.dumps(result, indent=1))
        return
    write_json(out, result)
    print(f"{out}: {conclusion}")


def _computed(what: str, epsilon: float, tight: float) -> str:
    """Return ε of something and, where it is known, its tighter value."""
    if math.isnan(epsilon):
        return f"{what} not covered"
    return f"{what} {epsilon:.2f}" + ("" if math.isnan(tight) else f" (tight: {tight:.2f})")


@options.command()
def reaccount(
    out: Annotated[Path, "CSV file to write."],
    published: Annotated[Path, "YAML file of published results."] = PUBLISHED,
    report: Annotated[Path | None, "PDF to write."] = None,
    template: options.Template = options.TEMPLATES / "audit.typ",
) -> None:
    """Compute what ε would hold for published results with Poisson batches, in text and code.

    Both are upper bounds at the paper's δ, with the assumptions beside each number. Writes a CSV
    file, and a PDF with --report.
    """
    from clipnoise.audit.reaccounting import reaccount as compute_again
    from clipnoise.audit.reaccounting import read_published, to_csv
    from clipnoise.report.audits import build_reaccounting_report

    rows = [compute_again(result) for result in read_published(published)]
    write_atomically(out, to_csv(rows))
    for row in rows:
        batches = "" if row.batch_size is None else " with Poisson batches"
        code = _computed("released code", row.released, row.released_tight)
        print(
            f"{row.paper}, {row.result}: published {row.published:g}; would hold{batches} at "
            f"δ = {row.delta:.3g}: {_computed('text', row.text, row.text_tight)}, "
            f"{'no code' if row.released_code == NO_CODE else code}"
        )
    if report is not None:
        write_atomically(report, build_reaccounting_report(out, template))
