"""Print the ε that a noise multiplier gives, under each accountant.

ε is an upper bound for T steps of Poisson sampling at rate q, add-remove adjacency. The accountants
bound the same true value: the smallest is the tightest, and each is a guarantee by itself. With
--participations nothing is sampled: each example takes part so often, in a fixed order, and ε is
exact.
"""

from __future__ import annotations

import argparse
import math

from clipnoise.cli._options import (
    add_mechanism,
    check_mechanism,
    print_epsilons,
    ranged,
    sensitivity_in_clip_norms,
)
from clipnoise.fields import Positive
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.accountants.poisson import POISSON_ACCOUNTANTS, epsilon


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--noise-multiplier",
        type=ranged(Positive),
        required=True,
        help="σ, above 0: the noise on the clipped sum, in units of the clip norm C",
    )
    add_mechanism(parser)
    parser.add_argument("--accountant", choices=POISSON_ACCOUNTANTS, help="only this one")


def run(arguments: argparse.Namespace) -> int:
    check_mechanism(arguments)
    sigma = arguments.noise_multiplier / sensitivity_in_clip_norms(arguments)
    if arguments.participations is not None:
        value = gaussian_epsilon(sigma / math.sqrt(arguments.participations), arguments.delta)
        print(f"exact       {value:.4f}")
        return 0
    mechanism = {
        "noise_multiplier": sigma,
        "sampling_rate": arguments.sampling_rate,
        "steps": arguments.steps,
        "delta": arguments.delta,
    }
    if arguments.accountant is None:
        print_epsilons(mechanism)
    else:
        print(f"{epsilon(arguments.accountant, **mechanism):.4f}")
    return 0
