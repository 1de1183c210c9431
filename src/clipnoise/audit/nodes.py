"""Nodes of a graph: how far removing or changing one, with its edges, moves a release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from clipnoise.audit.bench import mean_of_neighbourhood
from clipnoise.audit.findings import Finding
from clipnoise.audit.moments import WHOLE, life
from clipnoise.audit.sensitivity import EXCESS
from clipnoise.data.base import DenseExamples
from clipnoise.data.graphs import NeighbourRows, directed_edges, sample_neighbourhoods
from clipnoise.privacy.units import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from clipnoise.audit.moments import Moment
    from clipnoise.audit.subject import Subject

NODES, DEGREE, FEATURES = 24, 3, 5
BATCH = 8.0
ATTACKED = (1, 3)  # the steps
TRIED = 3  # nodes of each graph: the hub, and others
PHYSICAL = 5  # size of a physical batch
ROUNDING = 1e-6


@dataclass(frozen=True)
class Graph:
    """A small graph whose nodes are private.

    Attributes:
        edges: directed candidates, shape (M, 2).
        features: float64 of shape (n, features).
        targets: float64 of shape (n,).
    """

    edges: np.ndarray
    features: Tensor
    targets: Tensor

    def examples(self) -> DenseExamples:
        """Return each node with its in-neighbours, by the code that loads the data of a run."""
        neighbourhoods = sample_neighbourhoods(self.edges, np.arange(NODES), DEGREE, seed=0)
        rows = NeighbourRows(self.features.numpy(), torch.from_numpy(neighbourhoods))
        return DenseExamples(rows[:], self.targets)

    def without(self, node: int) -> Graph:
        """Return the graph without a node's out-edges; the node itself is left out of the batch."""
        return Graph(self.edges[self.edges[:, 0] != node], self.features, self.targets)

    def turned(self, node: int) -> Graph:
        """Return the graph with a node whose features are the opposite, far out of range."""
        features = self.features.clone()
        features[node] *= -EXCESS
        return Graph(self.edges, features, self.targets)


def check_nodes(subject: Subject) -> Finding:
    """Take nodes out of graphs and turn nodes around, with the same batch before and after.

    Every change must keep to 2(K+1) times what the query declares for an example.
    """
    claims = subject.method.private and subject.method.query.adjacency == "add-remove"
    if not claims or subject.microbatches.size > 1:
        return Finding("nodes", True, "makes no claim for nodes of a graph")
    bench = mean_of_neighbourhood(FEATURES, _graphs()[0].examples())
    worst = 0.0
    for moment in life(subject, bench, expected_batch_size=BATCH, attacked=ATTACKED):
        worst = max(worst, *_changes(moment))
    holds = worst <= 1 + ROUNDING
    said = f"one node of a graph moves the release {worst:.3g} times as far as declared for it"
    return Finding("nodes", holds, said)


def _graphs() -> list[Graph]:
    """Return a star, whose hub is every other node's only in-neighbour, and a random graph."""
    draw = torch.Generator().manual_seed(0)
    random = torch.randn(NODES, FEATURES, generator=draw, dtype=torch.float64)
    hub = torch.zeros_like(random)
    hub[0] = random[0]
    targets = EXCESS**2 * torch.ones(NODES, dtype=torch.float64)
    star = np.array([(0, other) for other in range(1, 1 + DEGREE)])
    edges = torch.randint(NODES, (3 * NODES, 2), generator=draw).numpy()
    return [
        Graph(directed_edges(ends, np.arange(NODES)), features, targets)
        for ends, features in ((star, hub), (edges, random))
    ]


def _changes(moment: Moment) -> Iterator[float]:
    """Yield changes of the release in units of what is declared for a node."""
    everyone, factor = torch.arange(NODES), moment.subject.node_sensitivity
    if factor is None:
        method, unit = moment.subject.method, Node(count=NODES, degree=DEGREE)
        factor = unit.sensitivity_factor(method.query, moment.subject.microbatches)
    for graph in _graphs():
        before = graph.examples(), everyone
        for node in range(TRIED):
            gone = graph.without(node).examples(), everyone[everyone != node]
            turned = graph.turned(node).examples(), everyone
            paths = [(moment.bench.engine, WHOLE)]
            if node == 0:
                paths += [(engine, PHYSICAL) for engine in moment.bench.engines.values()]
            for after in (gone, turned):
                for engine, size in paths:
                    sides = before, after
                    yield moment.change(sides, engine=engine, size=size, factor=factor).joint
