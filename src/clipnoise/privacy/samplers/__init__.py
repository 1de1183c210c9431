"""Samplers: which examples take part in a step, and what is known of the ε of such batches.

To add a sampler, write its class in a file of its own, and enter it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from clipnoise.errors import UserError, unknown
from clipnoise.privacy.accountants import ACCOUNTANTS, AccountantName
from clipnoise.privacy.samplers.allocated import RandomAllocationSampler
from clipnoise.privacy.samplers.base import Sampler, Sampling
from clipnoise.privacy.samplers.bins import BallsInBinsSampler
from clipnoise.privacy.samplers.cyclic import CyclicPoissonSampler, CyclicSampler
from clipnoise.privacy.samplers.fixed_size import FixedSizeSampler
from clipnoise.privacy.samplers.poisson import (
    FullSampler,
    PoissonSampler,
    TruncatedPoissonSampler,
)
from clipnoise.privacy.samplers.separated import BMinSepSampler
from clipnoise.privacy.samplers.shuffled import ShuffledSampler

__all__ = [
    "SAMPLERS",
    "BMinSepSampler",
    "BallsInBinsSampler",
    "CyclicPoissonSampler",
    "CyclicSampler",
    "FixedSizeSampler",
    "FullSampler",
    "PoissonSampler",
    "RandomAllocationSampler",
    "Sampler",
    "SamplerName",
    "Sampling",
    "ShuffledSampler",
    "TruncatedPoissonSampler",
    "check_accountant",
    "sampler_class",
]

KINDS: tuple[type[Sampler], ...] = (
    PoissonSampler,
    TruncatedPoissonSampler,
    RandomAllocationSampler,
    BallsInBinsSampler,
    BMinSepSampler,
    CyclicPoissonSampler,
    CyclicSampler,
    FullSampler,
    FixedSizeSampler,
    ShuffledSampler,
)
SAMPLERS: Mapping[str, type[Sampler]] = MappingProxyType({kind.id: kind for kind in KINDS})

if TYPE_CHECKING:
    SamplerName = str
else:
    SamplerName = Literal[tuple(SAMPLERS)]


def sampler_class(name: str) -> type[Sampler]:
    """Return the class of a sampler, or raise UserError naming the nearest one."""
    if name not in SAMPLERS:
        raise unknown("sampler", name, SAMPLERS, key="sampler")
    return SAMPLERS[name]


def check_accountant(name: AccountantName, sampler: str, *, affected_examples: int = 1) -> None:
    """Refuse an accountant that cannot be applied to a sampler.

    Args:
        name: the accountant.
        sampler: how batches are drawn.
        affected_examples: how many per-example gradients one unit can change; above 1 for nodes of
            a graph.

    Raises:
        UserError: an unknown accountant, or one whose assumptions the sampler does not meet.
    """
    kind = sampler_class(sampler)
    if name not in ACCOUNTANTS:
        raise unknown("accountant", name, ACCOUNTANTS, key="accountant")
    assumes = ACCOUNTANTS[name].assumes
    covered = sorted(s.id for s in KINDS if any(name in able for able in s.proved.values()))
    if assumes is not None and sampler not in covered:
        raise UserError(
            f"accountant: {name!r} assumes {assumes}, which does not hold for the sampler "
            f"{sampler!r}. Allowed samplers: {', '.join(covered)}."
        )
    if affected_examples > 1:
        able = {a: [s.id for s in KINDS if s.proves(a, "add-remove-node")] for a in ACCOUNTANTS}
        if not able[name]:
            allowed = ", ".join(other for other, samplers in able.items() if samplers)
            raise UserError(
                f"accountant: {name!r} has no analysis for nodes of a graph. Allowed: {allowed}."
            )
        if not kind.proves(name, "add-remove-node"):
            raise UserError(
                f"sampler: no analysis covers {sampler!r} for nodes of a graph. "
                f"Allowed: {', '.join(sorted(able[name]))}."
            )
