"""Accountants: bounds on ε from σ, sampling rate and steps. One file per analysis.

ACCOUNTANTS lists them, each with the samplers that its analysis covers. To add an accountant, write
its bound and enter it here with its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from clipnoise.core.query import Adjacency
from clipnoise.errors import UserError, unknown
from clipnoise.privacy.accountants.fixed_size import fixed_size_epsilon
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.accountants.nodes import node_epsilon
from clipnoise.privacy.accountants.poisson import PoissonAccountant, Releases, epsilon
from clipnoise.privacy.samplers import SamplerName

AccountantName = Literal[PoissonAccountant, "per-epoch", "rdp-replace"]


@dataclass(frozen=True)
class Accountant:
    """One analysis.

    Attributes:
        epsilon: its bound on ε, never below the true value.
        covers: the samplers for which the bound is proven, by adjacency.
        assumes: what it assumes of a sampler; it is refused for samplers that it does not cover.
            None if it may be used with every sampler; ε is nominal for those it does not cover.
    """

    epsilon: Callable[[Releases], float]
    covers: Mapping[Adjacency, frozenset[SamplerName]]
    assumes: str | None = None

    def proves(self, sampler: SamplerName, adjacency: Adjacency) -> bool:
        """Return whether the bound is proven for a sampler and an adjacency."""
        return sampler in self.covers.get(adjacency, ())

    def adjacency(self, sampler: SamplerName) -> Adjacency:
        """Return what its ε for single examples is about, with batches from a sampler.

        It is adding or removing one, or replacing one, or, where removing one would move the
        others to other batches, replacing one by nothing.
        """
        if "replace" in self.covers:
            return "replace"
        in_place = self.proves(sampler, "zero-out") and not self.proves(sampler, "add-remove")
        return "zero-out" if in_place else "add-remove"


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


def _covering(
    *samplers: SamplerName, by_position: tuple[SamplerName, ...]
) -> dict[Adjacency, frozenset[SamplerName]]:
    """Return what is covered for single examples, and so for users as units.

    Args:
        samplers: those whose batches hold the same others if an example is removed.
        by_position: those that assign positions to batches: without an example, the others have
            other positions. They are covered if the example's own position stays, empty.
    """
    free = frozenset(samplers)
    return {"add-remove": free, "add-remove-user": free, "zero-out": free.union(by_position)}


# Replacing an example in a Poisson sample moves the mixture of outputs differently from adding or
# removing one, and no accountant here covers it. In a sample of a fixed size it moves the sum by
# at most twice as much as removing one.
_POISSON = _covering(
    "poisson", "truncated-poisson", "full", by_position=("cyclic-poisson", "cyclic")
)
_NODES: dict[Adjacency, frozenset[SamplerName]] = {
    "add-remove-node": frozenset({"poisson", "fixed-size", "full"})
}

ACCOUNTANTS: dict[AccountantName, Accountant] = {
    "rdp": Accountant(partial(_sampled, "rdp"), {**_POISSON, **_NODES}),
    "prv": Accountant(partial(_sampled, "prv"), _POISSON),
    "pld": Accountant(partial(_sampled, "pld"), _POISSON),
    "per-epoch": Accountant(
        _unsampled,
        _covering("full", by_position=("cyclic", "shuffled")),
        assumes="that each example takes part once an epoch",
    ),
    "rdp-replace": Accountant(
        fixed_size_epsilon,
        {"replace": frozenset({"fixed-size"})},
        assumes="batches of a fixed size",
    ),
}
assert set(ACCOUNTANTS) == set(get_args(AccountantName))


def check_accountant(
    name: AccountantName, sampler: SamplerName, *, affected_examples: int = 1
) -> None:
    """Refuse an accountant that cannot be applied to a sampler.

    Args:
        name: the accountant.
        sampler: how batches are drawn.
        affected_examples: how many per-example gradients one unit can change; above 1 for nodes of
            a graph.

    Raises:
        UserError: an unknown accountant, or one whose assumptions the sampler does not meet.
    """
    accountant = ACCOUNTANTS.get(name)
    if accountant is None:
        raise unknown("accountant", name, ACCOUNTANTS, key="accountant")
    covered = sorted(set().union(*accountant.covers.values()))
    if accountant.assumes is not None and sampler not in covered:
        raise UserError(
            f"accountant: {name!r} assumes {accountant.assumes}, which does not hold for the "
            f"sampler {sampler!r}. Allowed samplers: {', '.join(covered)}."
        )
    if affected_examples > 1:
        able = [other for other, it in ACCOUNTANTS.items() if "add-remove-node" in it.covers]
        if name not in able:
            raise UserError(
                f"accountant: {name!r} has no analysis for nodes of a graph. "
                f"Allowed: {', '.join(able)}."
            )
        if not accountant.proves(sampler, "add-remove-node"):
            raise UserError(
                f"sampler: no analysis covers {sampler!r} for nodes of a graph. "
                f"Allowed: {', '.join(sorted(accountant.covers['add-remove-node']))}."
            )
