"""Privacy accounting: the ε that a noise multiplier costs, and the noise multiplier for an ε."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click

from clipnoise.cli import options
from clipnoise.errors import UserError
from clipnoise.fields import Count, Fraction, Natural, Positive, Probability, parse
from clipnoise.privacy.accountants import ACCOUNTANTS
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon, gaussian_noise_multiplier
from clipnoise.privacy.accountants.poisson import (
    POISSON_ACCOUNTANTS,
    PoissonAccountant,
    Rate,
    epsilon,
)
from clipnoise.privacy.budget import Budget
from clipnoise.privacy.calibration import Calibration
from clipnoise.privacy.calibration import calibrate as find_noise_multiplier
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.samplers import SAMPLERS

PARTICIPATION = [field.name for field in fields(Participation)]
BUDGET = [field.name for field in fields(Budget) if field.name != "participation"]

mechanism = options.together(
    click.option(
        "--delta",
        type=options.Ranged(Probability),
        required=True,
        help="δ, greater than 0 and less than 1.",
    ),
    click.option(
        "--sampling-rate", type=options.Ranged(Rate), help="q = B/n, greater than 0 and at most 1."
    ),
    click.option("--steps", type=options.Ranged(Natural), help="Number of steps T."),
    click.option(
        "--participations",
        type=options.Ranged(Count),
        help="How often each example takes part in a fixed order; replaces q and T.",
    ),
    click.option(
        "--microbatch",
        type=options.Ranged(Count),
        default=1,
        help="Examples whose mean is clipped. Above 1, one example can move that mean by 2C.",
    ),
)


@options.command()
@click.option(
    "--noise-multiplier",
    type=options.Ranged(Positive),
    required=True,
    help="σ, greater than 0: the noise on the clipped sum, in units of the clip norm C.",
)
@mechanism
@click.option("--accountant", type=click.Choice(POISSON_ACCOUNTANTS), help="Print only this one.")
def account(
    noise_multiplier: float,
    delta: float,
    sampling_rate: float | None,
    steps: int | None,
    participations: int | None,
    microbatch: int,
    accountant: str | None,
) -> None:
    """Print the ε that a noise multiplier costs under each accountant.

    ε is an upper bound for T steps of Poisson sampling at rate q under add-remove adjacency. All
    accountants bound the same true value and each is a guarantee by itself, so the smallest is the
    tightest. With --participations nothing is sampled: each example takes part that often, in a
    fixed order, and ε is exact.
    """
    _check_form(sampling_rate, steps, participations)
    sigma = noise_multiplier / _sensitivity_in_clip_norms(microbatch)
    if participations is not None:
        print(f"exact       {gaussian_epsilon(sigma / math.sqrt(participations), delta):.4f}")
        return
    values: dict[str, Any] = {"sampling_rate": sampling_rate, "steps": steps, "delta": delta}
    if accountant is None:
        _print_epsilons(lambda name: epsilon(name, noise_multiplier=sigma, **values))
    else:
        print(f"{epsilon(accountant, noise_multiplier=sigma, **values):.4f}")


@options.command()
@click.option("--epsilon", type=options.Ranged(Positive), help="The target ε, greater than 0.")
@click.option(
    "--noise-multiplier", type=options.Ranged(Positive), help="σ instead, greater than 0."
)
@mechanism
@click.option("--accountant", type=click.Choice(ACCOUNTANTS), default="rdp")
@click.option(
    "--groups",
    type=options.Ranged(Count),
    default=1,
    help="Groups of examples that take turns; 1 is everyone.",
)
@click.option(
    "--truncation-probability",
    type=options.Ranged(Fraction),
    default=0.0,
    help="Probability that a step of truncated-poisson draws too many examples.",
)
@click.option(
    "--affected-examples",
    type=options.Ranged(Count),
    default=1,
    help="Per-example gradients that one unit can change: K + 1 for a node of a graph.",
)
@click.option("--examples", type=options.Ranged(Count), help="n, for batches of a fixed size.")
@click.option("--sampler", type=click.Choice(SAMPLERS), default="poisson")
@click.option(
    "--evaluation-steps",
    cls=options.ListOption,
    multiple=True,
    type=options.Ranged(Natural),
    help="Steps, at most T, after which to give the ε spent so far.",
)
@options.out("JSON file to write; otherwise the calibration is printed.", required=False)
def calibrate(participations: int | None, microbatch: int, out: Path | None, **given: Any) -> None:
    """Find the smallest noise multiplier for a target ε, or the ε of a given one.

    The ε reached is at most the target and within 1e-3 of it. With --out, the calibration is
    written as JSON with the ε spent at each evaluation step; without, it is printed beside the ε of
    the same noise multiplier under the other accountants. With --participations nothing is sampled
    and σ is exact. With --microbatch above 1, the printed σ is in units of C and twice as large,
    because one example can move a clipped mean by 2C; a file cannot hold either of these.
    """
    target, sigma = given["epsilon"], given["noise_multiplier"]
    if (target is None) == (sigma is None):
        raise UserError("--epsilon, --noise-multiplier: give exactly one of them.")
    _check_form(given["sampling_rate"], given["steps"], participations)
    if out is not None and (participations or microbatch > 1):
        raise UserError(
            "--out: a calibration file holds neither --participations nor --microbatch."
        )
    factor = _sensitivity_in_clip_norms(microbatch)
    if participations is not None:
        _print_exact(target, sigma, given["delta"], factor * math.sqrt(participations))
        return
    budget = budget_of(given)
    if sigma is not None:
        budget = replace(budget, noise_multiplier=sigma / factor)
    calibration = find_noise_multiplier(budget)
    if out is None:
        _print_calibration(calibration, factor)
    else:
        calibration.write(out)
        print(
            f"{out}: noise multiplier {calibration.noise_multiplier:.6f}, "
            f"ε = {calibration.epsilon:.6f} ({budget.accountant})"
        )


def budget_of(given: Mapping[str, Any]) -> Budget:
    """Return the budget that the options of `calibrate` describe.

    Raises:
        UserError: options that do not fit each other.
    """
    values = {name: given.get(name) for name in BUDGET}
    participation = {name: given.get(name) for name in PARTICIPATION}
    return parse(Budget, {**values, "participation": participation})


def _check_form(rate: float | None, steps: int | None, participations: int | None) -> None:
    """Require either a sampling rate and a number of steps, or participations."""
    given = [value for value in (rate, steps) if value is not None]
    if participations is not None and given:
        raise UserError("--participations: cannot be combined with --sampling-rate or --steps.")
    if participations is None and len(given) < 2:
        raise UserError("--sampling-rate, --steps: give both, or --participations instead.")


def _sensitivity_in_clip_norms(microbatch: int) -> float:
    """Return how far one example moves the clipped sum, in units of C."""
    return 2.0 if microbatch > 1 else 1.0


def _print_exact(target: float | None, sigma: float | None, delta: float, scale: float) -> None:
    """Print σ and ε of participations in a fixed order: one Gaussian mechanism at σ/scale."""
    if sigma is None:
        assert target is not None
        sigma = scale * gaussian_noise_multiplier(target, delta)
    print(f"noise multiplier σ   {sigma:.6f}")
    print(f"ε (exact)            {gaussian_epsilon(sigma / scale, delta):.6f}")


def _print_calibration(calibration: Calibration, factor: float) -> None:
    budget = calibration.budget
    print(f"noise multiplier σ   {factor * calibration.noise_multiplier:.6f}")
    print(f"ε ({budget.accountant})              {calibration.epsilon:.6f}")
    print(f"δ                    {budget.delta:g}")
    print(f"adjacency, sampler   {calibration.adjacency}, {budget.sampler}")
    for step, spent in calibration.spent.items():
        print(f"ε at step {step:<11}{spent:.6f}")
    if calibration.adjacency != "add-remove":
        return  # the other accountants are for adding or removing one example
    print()
    _print_epsilons(
        lambda name: budget.participation.epsilon(
            name, noise_multiplier=calibration.noise_multiplier, delta=budget.delta
        )
    )


def _print_epsilons(epsilon_by: Callable[[PoissonAccountant], float]) -> None:
    """Print ε under every accountant, or the reason why one gives none."""
    print("accountant  ε")
    for name in POISSON_ACCOUNTANTS:
        try:
            text = f"{epsilon_by(name):.4f}"
        except UserError as error:
            text = f"none: {error}"
        print(f"{name:<12}{text}")
