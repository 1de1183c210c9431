"""Find the smallest noise multiplier that meets an ε, or the ε of a given one.

The ε reached is never above the target and within 1e-3 of it. With --out, the calibration is
written as JSON, with the ε spent at each evaluation step; without, it is printed beside the ε of
the same noise multiplier under the other accountants. With --participations nothing is sampled and
σ is exact. With --microbatch above 1 the σ that is printed is in units of C, and doubled, because
one example can move a clipped mean by 2C; neither is written to a file.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import fields, replace
from pathlib import Path

from clipnoise.cli._options import (
    add_mechanism,
    check_mechanism,
    print_epsilons,
    ranged,
    sensitivity_in_clip_norms,
)
from clipnoise.errors import UserError
from clipnoise.fields import Count, Fraction, Natural, Positive, parse
from clipnoise.privacy.accountants import ACCOUNTANTS
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon, gaussian_noise_multiplier
from clipnoise.privacy.budget import Budget
from clipnoise.privacy.calibration import Calibration, calibrate
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.samplers import SAMPLERS

PARTICIPATION = [field.name for field in fields(Participation)]
BUDGET = [field.name for field in fields(Budget) if field.name != "participation"]


def configure(parser: argparse.ArgumentParser) -> None:
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--epsilon", type=ranged(Positive), help="the target ε, above 0")
    budget.add_argument("--noise-multiplier", type=ranged(Positive), help="σ itself, above 0")
    add_mechanism(parser)
    parser.add_argument("--accountant", choices=ACCOUNTANTS, default="rdp")
    parser.add_argument(
        "--groups", type=ranged(Count), default=1, help="groups that take turns; 1 is everyone"
    )
    parser.add_argument(
        "--truncation-probability",
        type=ranged(Fraction),
        default=0.0,
        help="probability that a step of truncated-poisson draws too many examples",
    )
    parser.add_argument(
        "--affected-examples",
        type=ranged(Count),
        default=1,
        help="per-example gradients that one unit can change: K + 1 for a node of a graph",
    )
    parser.add_argument(
        "--examples",
        type=ranged(Count),
        help="n, for batches of a fixed size",
    )
    parser.add_argument("--sampler", choices=SAMPLERS, default="poisson")
    parser.add_argument(
        "--evaluation-steps",
        type=ranged(Natural),
        nargs="*",
        default=[],
        help="steps, at most T, at which the ε spent so far is wanted",
    )
    parser.add_argument("--out", type=Path, help="file to write; printed when left out")


def run(arguments: argparse.Namespace) -> int:
    check_mechanism(arguments)
    if arguments.out is not None and (arguments.participations or arguments.microbatch > 1):
        raise UserError(
            "--out: a calibration file holds neither --participations nor --microbatch."
        )
    if arguments.participations is not None:
        return _print_exact(arguments)
    budget = budget_of(arguments)
    factor = sensitivity_in_clip_norms(arguments)
    if budget.noise_multiplier is not None:
        budget = replace(budget, noise_multiplier=budget.noise_multiplier / factor)
    calibration = calibrate(budget)
    if arguments.out is None:
        _print(calibration, factor)
    else:
        calibration.write(arguments.out)
        print(
            f"{arguments.out}: noise multiplier {calibration.noise_multiplier:.6f}, "
            f"ε = {calibration.epsilon:.6f} ({budget.accountant})"
        )
    return 0


def budget_of(arguments: argparse.Namespace) -> Budget:
    """Return the budget that the options ask for.

    Raises:
        UserError: options that do not fit each other.
    """
    values = {name: getattr(arguments, name, None) for name in (*BUDGET, *PARTICIPATION)}
    participation = {name: values.pop(name) for name in PARTICIPATION}
    return parse(Budget, {**values, "participation": participation})


def _print_exact(arguments: argparse.Namespace) -> int:
    """Print σ and ε of participations in a fixed order: one Gaussian mechanism at σ/√k."""
    scale = math.sqrt(arguments.participations) * sensitivity_in_clip_norms(arguments)
    sigma = arguments.noise_multiplier
    if sigma is None:
        sigma = scale * gaussian_noise_multiplier(arguments.epsilon, arguments.delta)
    print(f"noise multiplier σ   {sigma:.6f}")
    print(f"ε (exact)            {gaussian_epsilon(sigma / scale, arguments.delta):.6f}")
    return 0


def _print(calibration: Calibration, factor: float) -> None:
    budget, participation = calibration.budget, calibration.budget.participation
    print(f"noise multiplier σ   {factor * calibration.noise_multiplier:.6f}")
    print(f"ε ({budget.accountant})              {calibration.epsilon:.6f}")
    print(f"δ                    {budget.delta:g}")
    print(f"adjacency, sampler   {calibration.adjacency}, {budget.sampler}")
    for step, spent in calibration.spent.items():
        print(f"ε at step {step:<11}{spent:.6f}")
    if participation.affected_examples > 1:
        return  # no other accountant covers nodes
    print()
    print_epsilons(
        {
            "noise_multiplier": calibration.noise_multiplier,
            "sampling_rate": participation.sampling_rate,
            "steps": participation.steps,
            "delta": budget.delta,
        }
    )
