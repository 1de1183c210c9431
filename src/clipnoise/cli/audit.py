"""Privacy checked: attacks on the code, and the published ε computed again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from clipnoise.cli import options
from clipnoise.fields import Count, Natural, Positive, Probability
from clipnoise.privacy.accountants.poisson import POISSON_ACCOUNTANTS, Rate

SETTINGS = {
    "canaries": (Count, "Canaries per run, at most one per parameter (640)."),
    "runs": (Count, "Independent runs, each with its own canaries (100)."),
    "noise-multiplier": (Positive, "σ (4)."),
    "sampling-rate": (Rate, "q (0.9)."),
    "steps": (Count, "T (4)."),
    "delta": (Probability, "δ (1e-5)."),
    "confidence": (Probability, "Confidence of the lower bound (0.95)."),
    "seed": (Natural, "Seed of the first run (0)."),
}

method = click.argument("method")
json_out = options.out("JSON file to write; otherwise the result is printed.", required=False)


@click.group(cls=options.CommandGroup)
def audit() -> None:
    """Attack a method: contract check, empirical lower bound on ε, or a broken control.

    An audit can refute a guarantee. It can never prove one.
    """


@audit.command()
@method
@options.hyperparameters(required=False)
@click.option(
    "--microbatch",
    type=options.Ranged(Count),
    default=1,
    help="Examples whose mean is clipped; above 1, the declared sensitivity is 2C.",
)
@options.cache
@json_out
def contract(
    method: str, hyperparameters: dict[str, Any], microbatch: int, cache: Path, out: Path | None
) -> None:
    """Check that one example moves no release of METHOD by more than is declared."""
    from clipnoise.audit.bench import real_data
    from clipnoise.audit.contract import check_contract
    from clipnoise.audit.nodes import check_nodes
    from clipnoise.audit.runs import check_sampler, check_steps
    from clipnoise.audit.subject import subject
    from clipnoise.data.digits import Digits
    from clipnoise.models.dense import Logistic
    from clipnoise.privacy.microbatches import MicroBatches

    audited, digits = subject(method, hyperparameters), Digits()
    audited = replace(audited, microbatches=MicroBatches(microbatch))
    real = real_data(digits, Logistic(), digits.load(cache).train.dense())
    findings = (check_steps(audited, cache), check_sampler(audited), check_nodes(audited))
    result = check_contract(audited, real, findings=findings)
    _show(result, out, ", ".join([result["verdict"], *result["broken"]]))


@audit.command()
@method
@options.hyperparameters(required=False)
@options.together(
    *(
        click.option(f"--{name}", type=options.Ranged(kind), help=text)
        for name, (kind, text) in SETTINGS.items()
    )
)
@click.option(
    "--accountant", type=click.Choice(POISSON_ACCOUNTANTS), help="Of the claimed ε (prv)."
)
@options.cache
@json_out
def empirical(
    method: str, hyperparameters: dict[str, Any], cache: Path, out: Path | None, **options: Any
) -> None:
    """Compute an empirical lower bound on the ε of METHOD by guessing canaries."""
    from clipnoise.audit.empirical import Settings
    from clipnoise.audit.empirical import audit as attack
    from clipnoise.audit.subject import subject

    settings = Settings(**{name: value for name, value in options.items() if value is not None})
    result = attack(subject(method, hyperparameters), cache, settings)
    bound, claimed = result["bound"]["epsilon"], result["claimed_epsilon"]
    _show(result, out, f"{result['verdict']}: ε ≥ {bound:.3f}, claimed {claimed:.3f}")


@audit.command()
@click.argument("name")
@options.cache
@json_out
def control(name: str, cache: Path, out: Path | None) -> None:
    """Audit the deliberately broken variant NAME, such as half-noise."""
    from clipnoise.audit.controls.check import check_control

    result = check_control(name, cache)
    _show(result, out, f"refuted by {', '.join(result['refuted_by']) or 'nothing'}")


@audit.command()
@click.option(
    "--results", type=options.PATH, required=True, help="Folder of the audits' JSON files."
)
@options.template("audit.typ")
@options.out("PDF to write.")
def report(results: Path, template: Path, out: Path) -> None:
    """Typeset all results in a folder as one PDF."""
    from clipnoise.files import write_atomically
    from clipnoise.report.audits import build_audit_report

    write_atomically(out, build_audit_report(results, template))
    print(f"{out}: audit report")


def _show(result: dict[str, Any], out: Path | None, conclusion: str) -> None:
    """Print an audit's result, or write it to a file and print its conclusion."""
    from clipnoise.files import write_json

    if out is None:
        print(json.dumps(result, indent=1))
        return
    write_json(out, result)
    print(f"{out}: {conclusion}")


@options.command()
@click.option(
    "--published",
    type=options.PATH,
    default=Path("reports/published/reaccounting.yaml"),
    help="YAML file of published results.",
)
@options.out("CSV file to write.")
@click.option("--report", type=options.PATH, help="PDF to write.")
@click.option(
    "--template",
    type=options.PATH,
    default=options.TEMPLATES / "audit.typ",
    help="Layout of the PDF.",
)
def reaccount(published: Path, out: Path, report: Path | None, template: Path) -> None:
    """Compute published ε again, for the algorithm in the text and for the released code.

    Both at the paper's δ, with the assumptions beside each number. Writes a CSV file, and a PDF
    with --report.
    """
    from clipnoise.audit.reaccounting import reaccount as compute_again
    from clipnoise.audit.reaccounting import read_published, to_csv
    from clipnoise.files import write_atomically
    from clipnoise.report.audits import build_reaccounting_report

    rows = [compute_again(result) for result in read_published(published)]
    write_atomically(out, to_csv(rows))
    for row in rows:
        print(
            f"{row.paper}, {row.result}: published {row.published:g}, at δ = {row.delta:.3g} "
            f"text {row.text:.2f}, released code {row.released:.2f} "
            f"(tight: {row.text_tight:.2f}, {row.released_tight:.2f})"
        )
    if report is not None:
        write_atomically(report, build_reaccounting_report(out, template))
