"""Nodes of a graph: how far removing or changing one, with its edges, moves a release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from clipnoise.audit.bench import Bench, mean_of_neighbourhood
from clipnoise.audit.constants import Finding
from clipnoise.audit.moments import life
from clipnoise.audit.sensitivity import EXCESS, joint_change
from clipnoise.data.base import DenseExamples
from clipnoise.data.graphs import NeighbourRows, directed_edges, sample_neighbourhoods

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from clipnoise.audit.moments import Moment
    from clipnoise.audit.subject import Subject
    from clipnoise.gradients.engine import GradientEngine

NODES, DEGREE, FEATURES = 24, 3, 5
BATCH = 8.0
ATTACKED = (1, 3)  # the steps
TRIED = 3  # nodes of each graph: the hub, and others
WHOLE, PHYSICAL = 10**6, 5  # sizes of physical batches
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


def check_nodes(subject: Subject, seed: int = 0) -> Finding:
    """Take nodes out of graphs and turn nodes around, with the same batch before and after.

    Args:
        subject: the method.
        seed: of everything random.

    Returns:
        Whether every change keeps to 2(K+1) times what the query declares for an example.
    """
    query, clip_norm = subject.method.query, subject.method.clip_norm_at(1)
    claims = subject.method.private and query.adjacency == "add-remove"
    if clip_norm is None or not claims or subject.microbatches.size > 1:
        return Finding("nodes", True, "makes no claim for nodes of a graph")
    bench = mean_of_neighbourhood(FEATURES, _graphs(seed)[0].examples(), seed)
    worst = 0.0
    for moment in life(subject, bench, expected_batch_size=BATCH, seed=seed):
        if moment.state.step + 1 in ATTACKED:
            worst = max(worst, *_changes(subject, moment, bench, seed))
    holds = worst <= 1 + ROUNDING
    said = f"one node of a graph moves the release {worst:.3g} times as far as declared for it"
    return Finding("nodes", holds, said)


def _graphs(seed: int) -> list[Graph]:
    """Return a star, whose hub is every other node's only in-neighbour, and a random graph."""
    draw = torch.Generator().manual_seed(seed)
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


def _changes(subject: Subject, moment: Moment, bench: Bench, seed: int) -> Iterator[float]:
    everyone = torch.arange(NODES)
    for graph in _graphs(seed):
        before = graph.examples()
        for node in range(TRIED):
            others = everyone[everyone != node]
            gone, turned = graph.without(node).examples(), graph.turned(node).examples()
            for after, rest in ((gone, others), (turned, everyone)):
                sides = (before, everyone), (after, rest)
                yield _change(subject, moment, bench.engine, sides, WHOLE)
                for engine in bench.engines.values() if node == 0 else ():
                    yield _change(subject, moment, engine, sides, PHYSICAL)


def _change(
    subject: Subject,
    moment: Moment,
    engine: GradientEngine,
    sides: tuple[tuple[DenseExamples, Tensor], tuple[DenseExamples, Tensor]],
    size: int,
) -> float:
    """Return the change of the release in units of what is declared for a node."""
    here, there = (
        moment.release(subject, engine, examples, batch=batch, size=size)
        for examples, batch in sides
    )
    components = subject.method.query.components(here.clip_norm, here.expected_batch_size)
    factor = subject.node_sensitivity(DEGREE)
    moved = [
        float((a - b).norm()) / (factor * component.sensitivity)
        for a, b, component in zip(here.values, there.values, components, strict=True)
    ]
    return joint_change(moved, components)
