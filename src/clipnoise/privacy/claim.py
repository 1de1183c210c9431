"""What a run may claim about privacy, and the statement of it in its summary."""

from __future__ import annotations

from typing import Literal

from clipnoise.privacy.accountants import ACCOUNTANTS, AccountantName
from clipnoise.privacy.queries import Adjacency
from clipnoise.privacy.samplers import SamplerName

Claim = Literal["guarantee", "nominal", "non-private"]


def claim(
    *,
    private: bool,
    sampler: SamplerName | None,
    accountant: AccountantName | None,
    adjacency: Adjacency,
    covered: bool = True,
) -> Claim:
    """Return what may be claimed about a run's ε.

    ε is a guarantee only if the batches were drawn as the accountant assumes.

    Args:
        private: whether the method's query protects its examples at all.
        sampler: how batches were really drawn; None for a non-private run.
        accountant: whose analysis gave ε; None for a non-private run.
        adjacency: the relation between neighbouring datasets behind the query's sensitivity.
        covered: whether the noise is scaled to what one example can really change.

    Returns:
        "guarantee" if the accountant's analysis covers the sampler and the noise covers the
        sensitivity, "nominal" if not, "non-private" if nothing is protected.
    """
    if not private or sampler is None or accountant is None:
        return "non-private"
    proven = ACCOUNTANTS[accountant].proves(sampler, adjacency)
    return "guarantee" if covered and proven else "nominal"
