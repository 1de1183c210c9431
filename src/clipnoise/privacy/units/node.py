"""Nodes of a graph as units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.errors import UserError
from clipnoise.privacy.units.base import Unit

if TYPE_CHECKING:
    from clipnoise.core.query import Adjacency, Query
    from clipnoise.privacy.microbatches import MicroBatches


@dataclass(frozen=True, kw_only=True)
class Node(Unit):
    """A node of a graph with its out-edges.

    It is drawn and clipped like an example, which is a node with its sampled in-neighbours, but
    also changes the gradients of its out-neighbours.

    Attributes:
        degree: K: a node is an in-neighbour of at most K others.
    """

    name = "node"

    degree: int

    @property
    def affected_examples(self) -> int:
        """Return K + 1: a node's own gradient and those of its out-neighbours."""
        return self.degree + 1

    def adjacency(self, declared: Adjacency) -> Adjacency:
        return "add-remove-node"

    def sensitivity_factor(self, query: Query, microbatches: MicroBatches) -> float:
        """Return 2(K+1): how far one node can move the clipped sum, in units of C.

        Removing a node removes its gradient and changes those of at most K out-neighbours. Each of
        these gradients moves by at most 2C if it is in the batch.

        Source: Daigavane et al. 2021, "Node-Level Differentially Private Graph Neural Networks".
        """
        return 2.0 * self.affected_examples

    def check(self, query: Query, microbatches: MicroBatches) -> None:
        super().check(query, microbatches)
        if query.adjacency == "replace":
            raise UserError(
                "method.id: the method accounts for replacing an example, but nodes of a graph are "
                "accounted for being added or removed."
            )
        if microbatches.size > 1:
            raise UserError(
                "privacy.microbatch_size: no analysis covers micro-batches of nodes of a graph, "
                f"got {microbatches.size}. Allowed: 1."
            )
