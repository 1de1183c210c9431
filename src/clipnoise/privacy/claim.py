"""Sampler and accountant: an ε is a guarantee only when the sampler that ran is the assumed one."""

from __future__ import annotations

from typing import Literal

from clipnoise.privacy import nodes
from clipnoise.privacy.queries import Adjacency

Claim = Literal["guarantee", "nominal", "non-private"]

# The accountants whose analysis covers a sampler, for adding or removing one example. Replacing an
# example in a Poisson sample moves the mixture differently, and none of them covers that; in a
# sample of a fixed size it moves the sum by at most twice as much as removing one.
PROVEN = {
    "poisson": frozenset({"rdp", "prv", "pld"}),
    "truncated-poisson": frozenset({"rdp", "prv", "pld"}),
    "cyclic-poisson": frozenset({"rdp", "prv", "pld"}),
    "cyclic": frozenset({"rdp", "prv", "pld", "per-epoch"}),
    "full": frozenset({"rdp", "prv", "pld", "per-epoch"}),
    "shuffled": frozenset({"per-epoch"}),
}
PROVEN_FOR_REPLACING = {"fixed-size": frozenset({"rdp-replace"})}
PROVEN_FOR_NODES = {sampler: frozenset({nodes.ACCOUNTANT}) for sampler in nodes.SAMPLERS}


def claim(
    *,
    private: bool,
    sampler: str | None,
    accountant: str | None,
    adjacency: Adjacency,
    covered: bool = True,
) -> Claim:
    """Return what may be said about a run's ε.

    Args:
        private: whether the method's query protects its examples at all.
        sampler: how batches were really drawn; None for a non-private run.
        accountant: whose analysis gave ε; None for a non-private run.
        adjacency: what one dataset's neighbour is, for the query's sensitivity. A user is to
            add-remove-user what an example is to add-remove.
        covered: whether the noise is scaled to what one example can really change.

    Returns:
        "guarantee" when the accountant's analysis covers the sampler and the noise covers the
        sensitivity, "nominal" when not, "non-private" when nothing is protected.
    """
    if not private or sampler is None:
        return "non-private"
    of_adjacency = {"replace": PROVEN_FOR_REPLACING, "add-remove-node": PROVEN_FOR_NODES}
    proven = of_adjacency.get(adjacency, PROVEN).get(sampler, frozenset())
    return "guarantee" if covered and accountant in proven else "nominal"
