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
from pathlib import Path

from clipnoise.cli._options import (
    add_mechanism,
    check_mechanism,
    print_epsilons,
    ranged,
    sensitivity_in_clip_norms,
)
from clipnoise.errors import UserError
from clipnoise.fields import Count, Natural, Positive, parse
from clipnoise.privacy.calibration import Calibration, Target, calibrate
from clipnoise.privacy.participation import (
    ANALYSES,
    SAMPLERS,
    Overflow,
    gaussian_epsilon,
    gaussian_noise_multiplier,
)


def configure(parser: argparse.ArgumentParser) -> None:
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--epsilon", type=ranged(Positive), help="the target ε, above 0")
    budget.add_argument("--noise-multiplier", type=ranged(Positive), help="σ itself, above 0")
    add_mechanism(parser)
    parser.add_argument("--accountant", choices=ANALYSES, default="rdp")
    parser.add_argument(
        "--groups", type=ranged(Count), default=1, help="groups that take turns; 1 is everyone"
    )
    parser.add_argument(
        "--overflow",
        type=ranged(Overflow),
        default=0.0,
        help="probability that a step of truncated-poisson leaves examples out",
    )
    parser.add_argument(
        "--terms",
        type=ranged(Count),
        default=1,
        help="gradients that one unit can change: K + 1 for a node of a graph",
    )
    parser.add_argument(
        "--examples", type=ranged(Count), help="n, for nodes in batches of a fixed size"
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
    other = ("out", "participations", "microbatch")
    options = {name: value for name, value in vars(arguments).items() if name not in other}
    factor = sensitivity_in_clip_norms(arguments)
    if arguments.noise_multiplier is not None:
        options["noise_multiplier"] /= factor
    calibration = calibrate(parse(Target, options))
    if arguments.out is None:
        _print(calibration, factor)
    else:
        calibration.write(arguments.out)
        print(
            f"{arguments.out}: noise multiplier {calibration.noise_multiplier:.6f}, "
            f"ε = {calibration.epsilon:.6f} ({calibration.accountant})"
        )
    return 0


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
    print(f"noise multiplier σ   {factor * calibration.noise_multiplier:.6f}")
    print(f"ε ({calibration.accountant})              {calibration.epsilon:.6f}")
    print(f"δ                    {calibration.delta:g}")
    print(f"adjacency, sampler   {calibration.adjacency}, {calibration.sampler}")
    for step, spent in calibration.spent.items():
        print(f"ε at step {step:<11}{spent:.6f}")
    if calibration.terms > 1:
        return  # no other accountant covers nodes
    print()
    print_epsilons(
        {
            "noise_multiplier": calibration.noise_multiplier,
            "sampling_rate": calibration.sampling_rate,
            "steps": calibration.steps,
            "delta": calibration.delta,
        }
    )
