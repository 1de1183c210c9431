"""Attack a method: contract check, empirical lower bound on ε, or a deliberately broken control.

An audit can refute a guarantee. It can never prove one.

  clipnoise audit contract METHOD    does one example move a release more than is declared?
  clipnoise audit empirical METHOD   what ε do the releases betray at least?
  clipnoise audit control NAME       is a known mistake exposed?
  clipnoise audit report             a PDF of all results in a folder

Results are JSON: printed, or written with --out.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipnoise.cli._options import ranged
from clipnoise.errors import UserError
from clipnoise.fields import Count, Natural, Positive, Probability
from clipnoise.privacy.accountants.poisson import POISSON_ACCOUNTANTS, Rate

if TYPE_CHECKING:
    from clipnoise.audit.subject import Subject

EMPIRICAL = {
    "canaries": (Count, "canaries per run, at most one per parameter (default 640)"),
    "runs": (Count, "independent runs, each with canaries of its own (default 100)"),
    "noise_multiplier": (Positive, "σ (default 4)"),
    "sampling_rate": (Rate, "q (default 0.9)"),
    "steps": (Count, "T (default 4)"),
    "delta": (Probability, "δ (default 1e-5)"),
    "confidence": (Probability, "of the lower bound (default 0.95)"),
    "seed": (Natural, "of the first run (default 0)"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", required=True)
    contract = commands.add_parser("contract", help="hold releases to the declared sensitivity")
    empirical = commands.add_parser("empirical", help="bound ε from below by guessing canaries")
    control = commands.add_parser("control", help="audit a deliberately broken variant")
    report = commands.add_parser("report", help="typeset all results")
    for command in (contract, empirical):
        command.add_argument("method", help="method id, e.g. dp-adambc")
        command.add_argument(
            "--hyperparameters", default="{}", help="JSON object by the names of the run spec"
        )
    control.add_argument("name", help="name of the control, e.g. half-noise")
    contract.add_argument(
        "--microbatch",
        type=ranged(Count),
        default=1,
        help="examples whose mean is clipped; the declared sensitivity is 2C then",
    )
    for command in (contract, empirical, control):
        command.add_argument("--cache", type=Path, default=Path("data"), help="prepared datasets")
        command.add_argument("--out", type=Path, help="JSON file to write")
    for name, (kind, words) in EMPIRICAL.items():
        empirical.add_argument(f"--{name.replace('_', '-')}", type=ranged(kind), help=words)
    empirical.add_argument(
        "--accountant", choices=POISSON_ACCOUNTANTS, help="of the claim (default prv)"
    )
    report.add_argument("--results", type=Path, required=True, help="folder of JSON results")
    report.add_argument("--template", type=Path, default=Path("reports/templates/audit.typ"))
    report.add_argument("--out", type=Path, required=True, help="PDF to write")


def run(arguments: argparse.Namespace) -> int:
    if arguments.what == "report":
        return _report(arguments)
    from clipnoise.files import write_json

    result = {"contract": _contract, "empirical": _empirical, "control": _control}[arguments.what](
        arguments
    )
    if arguments.out is None:
        print(json.dumps(result, indent=1))
        return 0
    write_json(arguments.out, result)
    print(f"{arguments.out}: {_conclusion(result)}")
    return 0


def _contract(arguments: argparse.Namespace) -> dict[str, Any]:
    from clipnoise.audit.bench import real_data
    from clipnoise.audit.contract import check_contract
    from clipnoise.audit.nodes import check_nodes
    from clipnoise.audit.runs import check_sampler, check_steps
    from clipnoise.data.digits import Digits
    from clipnoise.models.dense import Logistic
    from clipnoise.privacy.microbatches import MicroBatches

    audited, digits = _subject(arguments), Digits()
    audited = replace(audited, microbatches=MicroBatches(arguments.microbatch))
    real = real_data(digits, Logistic(), digits.load(arguments.cache).train.dense())
    findings = (
        check_steps(audited, arguments.cache),
        check_sampler(audited),
        check_nodes(audited),
    )
    return check_contract(audited, real, findings=findings)


def _empirical(arguments: argparse.Namespace) -> dict[str, Any]:
    from clipnoise.audit.empirical import Settings, audit

    given = {name: getattr(arguments, name) for name in [*EMPIRICAL, "accountant"]}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    return audit(_subject(arguments), arguments.cache, settings)


def _control(arguments: argparse.Namespace) -> dict[str, Any]:
    from clipnoise.audit.controls.check import check_control

    return check_control(arguments.name, arguments.cache)


def _subject(arguments: argparse.Namespace) -> Subject:
    from clipnoise.audit.subject import subject

    try:
        options = json.loads(arguments.hyperparameters)
    except json.JSONDecodeError as error:
        raise UserError(f"--hyperparameters: not valid JSON: {error}") from None
    if not isinstance(options, dict):
        raise UserError("--hyperparameters: expected a JSON object.")
    return subject(arguments.method, options)


def _conclusion(result: dict[str, Any]) -> str:
    if result["kind"] == "control":
        return f"refuted by {', '.join(result['refuted_by']) or 'nothing'}"
    if result["kind"] == "contract":
        return ", ".join([result["verdict"], *result["broken"]])
    bound = result["bound"]["epsilon"]
    return f"{result['verdict']}: ε ≥ {bound:.3f}, claimed {result['claimed_epsilon']:.3f}"


def _report(arguments: argparse.Namespace) -> int:
    from clipnoise.files import write_atomically
    from clipnoise.report.audits import build_audit_report

    write_atomically(arguments.out, build_audit_report(arguments.results, arguments.template))
    print(f"{arguments.out}: audit report")
    return 0
