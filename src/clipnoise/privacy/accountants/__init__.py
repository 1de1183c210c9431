"""Accountants: bounds on ε from σ, sampling rate and steps. One file per analysis.

Each sampler says which of them cover its batches. To add an accountant, write its bound and enter
it here with its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from clipnoise.privacy.accountants.allocation import allocated_epsilon
from clipnoise.privacy.accountants.fixed_size import fixed_size_epsilon
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.accountants.nodes import node_epsilon
from clipnoise.privacy.accountants.poisson import (
    POISSON_ACCOUNTANTS,
    PoissonAccountant,
    Releases,
    epsilon,
)

AccountantName = Literal[PoissonAccountant, "pld-allocation", "per-epoch", "rdp-replace"]
DEFAULT_ACCOUNTANT: AccountantName = "pld"  # the tightest; nodes of a graph need another one


@dataclass(frozen=True)
class Accountant:
    """One analysis.

    Attributes:
        epsilon: its bound on ε, never below the true value.
        assumes: what it assumes of a sampler; it is refused for samplers that it does not cover.
            None if it may be used with every sampler; ε is nominal for those it does not cover.
        replaces: whether its ε is for replacing an example, not for adding or removing one.
    """

    epsilon: Callable[[Releases], float]
    assumes: str | None = None
    replaces: bool = False


def _sampled(name: PoissonAccountant, releases: Releases) -> float:
    """Bound ε by an accountant of Poisson sampling, or exactly if nothing is sampled."""
    if releases.sampling_rate == 1:
        return _unsampled(releases)
    if releases.affected_examples > 1:
        return node_epsilon(releases)
    return epsilon(
        name,
        noise_multiplier=releases.noise_multiplier,
        sampling_rate=releases.sampling_rate,
        steps=releases.steps,
        delta=releases.delta,
    )


def _unsampled(releases: Releases) -> float:
    """Return ε without amplification: T releases at σ cost as much as one at σ/√T."""
    sigma = releases.noise_multiplier / math.sqrt(releases.steps)
    return gaussian_epsilon(sigma, releases.delta)


ACCOUNTANTS: dict[AccountantName, Accountant] = {
    **{name: Accountant(partial(_sampled, name)) for name in POISSON_ACCOUNTANTS},
    "pld-allocation": Accountant(
        allocated_epsilon, assumes="that each example takes part in one random step of each epoch"
    ),
    "per-epoch": Accountant(_unsampled, assumes="that each example takes part once an epoch"),
    # Replacing an example in a Poisson sample moves the mixture of outputs differently from adding
    # or removing one, and no accountant here covers it. In a sample of a fixed size it moves the
    # sum by at most twice as much as removing one.
    "rdp-replace": Accountant(fixed_size_epsilon, assumes="batches of a fixed size", replaces=True),
}
assert set(ACCOUNTANTS) == set(get_args(AccountantName))
