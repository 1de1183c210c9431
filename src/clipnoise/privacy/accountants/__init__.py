"""Accountants: bounds on ε from σ, sampling rate and steps. One file per analysis.

Each sampler says which of them cover its batches. To add an accountant, write its bound and enter
it here with its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from clipnoise.privacy.accountants.allocation import allocated_delta, allocated_epsilon
from clipnoise.privacy.accountants.fixed_size import fixed_size_delta, fixed_size_epsilon
from clipnoise.privacy.accountants.gaussian import gaussian_delta, gaussian_epsilon
from clipnoise.privacy.accountants.monte_carlo import monte_carlo_delta, monte_carlo_epsilon
from clipnoise.privacy.accountants.nodes import node_delta, node_epsilon
from clipnoise.privacy.accountants.poisson import (
    POISSON_ACCOUNTANTS,
    PoissonAccountant,
    Releases,
    epsilon,
    sampled_delta,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

AccountantName = Literal[
    PoissonAccountant, "pld-allocation", "monte-carlo", "per-epoch", "rdp-replace"
]
DEFAULT_ACCOUNTANT: AccountantName = "pld"  # the tightest; nodes of a graph need another one


@dataclass(frozen=True)
class Accountant:
    """One analysis.

    Attributes:
        epsilon: its bound on ε at δ, never below the true value.
        delta: its bound on δ at each of some ascending ε, of at least one release, never below the
            true value; the δ of the releases is the smallest that matters.
        assumes: what it assumes of a sampler; it is refused for samplers that it does not cover.
            None if it may be used with every sampler; ε is nominal for those it does not cover.
        replaces: whether its ε is for replacing an example, not for adding or removing one.
        patterned: whether it needs the noise and the steps in which an example takes part.
        remark: what a guarantee rests on besides the analysis; a sentence, or nothing.
    """

    epsilon: Callable[[Releases], float]
    delta: Callable[[Releases, Array], Array]
    assumes: str | None = None
    replaces: bool = False
    patterned: bool = False
    remark: str = ""


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


def _sampled_delta(name: PoissonAccountant, releases: Releases, epsilons: Array) -> Array:
    if releases.sampling_rate == 1:
        return _unsampled_delta(releases, epsilons)
    if releases.affected_examples > 1:
        return node_delta(releases, epsilons)
    return sampled_delta(name, releases, epsilons)


def _allocated_delta(releases: Releases, epsilons: Array) -> Array:
    whole = releases.sampling_rate == 1
    return (_unsampled_delta if whole else allocated_delta)(releases, epsilons)


def _unsampled_delta(releases: Releases, epsilons: Array) -> Array:
    return gaussian_delta(math.sqrt(releases.steps) / releases.noise_multiplier, epsilons)


ACCOUNTANTS: dict[AccountantName, Accountant] = {
    **{
        name: Accountant(partial(_sampled, name), partial(_sampled_delta, name))
        for name in POISSON_ACCOUNTANTS
    },
    "pld-allocation": Accountant(
        allocated_epsilon,
        _allocated_delta,
        assumes="that each example takes part in one random step of each epoch",
    ),
    "per-epoch": Accountant(
        _unsampled, _unsampled_delta, assumes="that each example takes part once an epoch"
    ),
    "monte-carlo": Accountant(
        monte_carlo_epsilon,
        monte_carlo_delta,
        assumes="that each example draws its turn, or waits for the bands of the noise",
        patterned=True,
        remark="ε was verified with random draws, and δ includes the probability, at most δ/100, "
        "that they mislead. So were the other bounds of its profile, each at its own ε.",
    ),
    # Replacing an example in a Poisson sample moves the mixture of outputs differently from adding
    # or removing one, and no accountant here covers it. In a sample of a fixed size it moves the
    # sum by at most twice as much as removing one.
    "rdp-replace": Accountant(
        fixed_size_epsilon, fixed_size_delta, assumes="batches of a fixed size", replaces=True
    ),
}
assert set(ACCOUNTANTS) == set(get_args(AccountantName))
