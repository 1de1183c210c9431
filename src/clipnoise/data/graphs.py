"""Graphs: nodes that hear a bounded number of others, and synthetic ones of any size.

An edge is two messages, one each way, and each belongs to the list of its sender. Who sends to whom
is fixed before training: a node sends to at most K of its neighbours, chosen by its own list alone,
and of what arrives a node hears at most K. So a node that comes or goes, with its list, changes its
own example and those of at most K others, whatever the graph. Two nodes of different parts are in
no edge.

The lists of others keep the place of a node that goes; a message to it leads nowhere. Were it
struck from them too, each of its neighbours would send to somebody else instead, and no bound
would hold: sampling of edges by the degree of a node, as in Daigavane et al. 2021, has this gap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from clipnoise.data.base import Examples
from clipnoise.data.drawn import DrawnOfFourSizes
from clipnoise.data.rows import Rows
from clipnoise.data.signature import Signature
from clipnoise.fields import Count, Fraction, Natural
from clipnoise.seeds import derive, generator

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import torch
    from torch import Tensor

NOBODY = -1


@dataclass(frozen=True)
class NeighbourRows(Rows):
    """Nodes with those they hear, gathered when taken.

    A row has shape (1 + K, features + 1): the node, then the nodes it hears, then zeros. The last
    column is 1 where there is a node.

    Attributes:
        features: of every node of the graph, shape (N, features); memory-mapped, or in memory.
        heard: the node itself and whom it hears, integers of shape (n, 1 + K), −1 for nobody.
    """

    features: np.ndarray
    heard: Tensor
    device: str = "cpu"

    def __len__(self) -> int:
        return len(self.heard)

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        import torch

        heard = self.heard[chosen if isinstance(chosen, slice) else chosen.cpu()]
        there = (heard != NOBODY).unsqueeze(-1)
        features = torch.from_numpy(self.features[heard.clamp(min=0).numpy()])
        return torch.cat([features * there, there.to(features.dtype)], dim=-1).to(self.device)

    def to(self, device: str) -> NeighbourRows:
        return replace(self, device=device)


def messages(edges: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Return who could send to whom in one part of a graph.

    Args:
        edges: pairs of nodes, integers of shape (E, 2); the direction does not matter, repeated
            edges, loops and edges to other parts are left out.
        nodes: the nodes of the part, distinct integers of shape (n,).

    Returns:
        Positions in `nodes` of sender and receiver, int64 of shape (M, 2).
    """
    import numpy as np

    place = np.full(1 + max(edges.max(initial=0), nodes.max(initial=0)), NOBODY)
    place[nodes] = np.arange(len(nodes))
    ends = place[edges]
    ends = ends[(ends != NOBODY).all(axis=1) & (ends[:, 0] != ends[:, 1])]
    both = np.concatenate([ends, ends[:, ::-1]])
    numbers = np.unique(both[:, 0] * len(nodes) + both[:, 1])
    return np.stack(np.divmod(numbers, max(1, len(nodes))), axis=1)


def heard(sent: np.ndarray, nodes: np.ndarray, degree: int, seed: int) -> np.ndarray:
    """Choose whom each node hears, such that at most K hear it.

    Args:
        sent: who could send to whom, as `messages` returns it.
        nodes: the nodes of the part, distinct integers of shape (n,).
        degree: K, how many a node hears and how many hear it, at most.
        seed: of the choice; which message goes first depends on its two ends and the seed alone.

    Returns:
        Each node and whom it hears, int32 of shape (n, 1 + K), −1 for nobody.
    """
    import numpy as np

    preference = _preference(nodes[sent], seed)
    _, kept = _first(sent[:, 0], preference, degree)
    sent, preference = sent[kept], preference[kept]
    rank, kept = _first(sent[:, 1], preference, degree)
    lists = np.full((len(nodes), 1 + degree), NOBODY, dtype=np.int32)
    lists[:, 0] = nodes
    lists[sent[kept, 1], 1 + rank] = nodes[sent[kept, 0]]
    return lists


def _preference(ends: np.ndarray, seed: int) -> np.ndarray:
    """Return a number for each message that depends on nothing but its ends and the seed.

    Source: Steele, Lea, Flood 2014, "Fast Splittable Pseudorandom Number Generators" (SplitMix64).
    """
    import numpy as np

    mixed = np.full(len(ends), derive("split", seed), dtype=np.uint64)
    for end in (0, 1):
        mixed += ends[:, end].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def _first(groups: np.ndarray, preference: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rank within its group and the row of the most preferred of each group."""
    import numpy as np

    order = np.lexsort((preference, groups))
    ordered = groups[order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return rank[rank < most], order[rank < most]


def examples(
    features: np.ndarray, targets: np.ndarray, edges: np.ndarray, nodes: Tensor, **choice: int
) -> Examples:
    """Return the nodes of one part, with whom they hear in it, and what is asked about them.

    Args:
        features: of every node of the graph, shape (N, features).
        targets: of every node, integers of shape (N,).
        edges: of the graph, integers of shape (E, 2).
        nodes: of the part, int64 of shape (n,).
        choice: degree and seed, as `heard` has them.
    """
    import torch

    members = nodes.numpy()
    lists = torch.from_numpy(heard(messages(edges, members), members, **choice))
    asked = torch.from_numpy(targets[members].astype("int64"))
    return Examples(NeighbourRows(features, lists), asked)


@dataclass(frozen=True, kw_only=True)
class SyntheticGraph(DrawnOfFourSizes):
    """Nodes around one centre per class, most of whose edges stay within the class.

    Each node draws edges to others; some are drawn far more often, so degrees are as uneven as in
    a graph of citations. The parts are graphs of their own.

    Attributes:
        split_seed: another seed draws other centres, nodes and edges.
        features: of a node.
        classes: number of centres.
        separation: expected distance of a centre from the origin.
        edges: that each node draws.
        homophily: share of the edges that stay within the class.
        degree: K, how many a node hears and how many hear it, at most.
    """

    id: ClassVar[str] = "synthetic-graph"
    title: ClassVar[str] = "Synthetic graph"
    preprocessing: ClassVar[str] = "at most K neighbours heard by each node, and each node by K"

    validation_examples: Count = 250
    test_examples: Count = 250
    features: Count = 128
    classes: Count = 40
    separation: float = 3.0
    edges: Natural = 7
    homophily: Fraction = 0.7
    degree: Count = 7

    @property
    def signature(self) -> Signature:
        return Signature("nodes", (1 + self.degree, self.features + 1), self.classes)

    def degree_bound(self) -> int:
        return self.degree

    def parts(self) -> Callable[[str], Examples]:
        import torch

        sizes, stream = self.sizes(), generator("split", self.split_seed)
        centres = torch.randn(self.classes, self.features, generator=stream)
        centres *= self.separation / self.features**0.5
        return lambda part: self._drawn(centres, sizes[part], stream)

    def _drawn(self, centres: Tensor, count: int, stream: torch.Generator) -> Examples:
        """Draw a graph whose class c has the nodes c, c + classes, c + 2·classes, …"""
        import torch

        targets = torch.arange(count) % self.classes
        features = torch.randn(count, self.features, generator=stream)
        features += centres[targets]
        ends = torch.arange(count).repeat_interleave(self.edges)
        popular = torch.rand(len(ends), generator=stream, dtype=torch.float64).square()
        anyone = (popular * count).long()
        same = targets[ends] + self.classes * (popular * (count // self.classes)).long()
        stays = torch.rand(len(ends), generator=stream) < self.homophily
        others = torch.where(stays & (same < count), same, anyone)
        edges = torch.stack([ends, others], dim=1)
        return examples(
            features.numpy(),
            targets.numpy(),
            edges.numpy(),
            torch.randperm(count, generator=stream),
            degree=self.degree,
            seed=self.split_seed,
        )
