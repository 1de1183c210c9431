"""Graphs whose nodes have bounded in- and out-degrees: ogbn-arxiv, and a synthetic one.

An undirected edge becomes two directed ones, and each belongs to the list of its source. Which
directed edges are kept is fixed before training: a node keeps at most K edges to its neighbours,
chosen from its own list alone, and at most K of the edges that then arrive. So adding or removing
a node together with its list changes its own example and those of at most K others, whatever the
graph. No edge joins nodes of different splits.

Removing a node leaves its place in the lists of its neighbours, and an edge to it leads nowhere. If
the node were removed from those lists too, each neighbour would choose another target instead, and
no bound would hold: sampling edges by the degree of a node, as in Daigavane et al. 2021, has this
gap.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clipnoise.data.base import Examples, FourSizes, Partitioned, Splits
from clipnoise.data.rows import Rows
from clipnoise.data.signature import Signature
from clipnoise.data.synthetic import Drawn
from clipnoise.errors import UserError
from clipnoise.fields import Count, Fraction, Natural
from clipnoise.lazy import Tensor, np, torch
from clipnoise.privacy.units import Node
from clipnoise.seeds import GAMMA, derive, generator, mix64

NO_NODE = -1
FEATURES, CLASSES = 128, 40  # of ogbn-arxiv
SPLITS = {"train": "train", "validation": "valid", "test": "test"}  # files of ogbn-arxiv


@dataclass(frozen=True)
class NeighbourRows(Rows):
    """Nodes with their in-neighbours, gathered when taken.

    A row has shape (1 + K, features + 1): the node, then its in-neighbours, then zeros. The last
    column is 1 where there is a node.

    Attributes:
        features: of every node of the graph, shape (N, features); memory-mapped, or in memory.
        neighbourhoods: each node and its in-neighbours, integers of shape (n, 1 + K), filled up
            with −1.
    """

    features: np.ndarray
    neighbourhoods: Tensor

    def __len__(self) -> int:
        return len(self.neighbourhoods)

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        nodes = self.neighbourhoods[chosen if isinstance(chosen, slice) else chosen.cpu()]
        present = (nodes != NO_NODE).unsqueeze(-1)
        features = torch.from_numpy(self.features[nodes.clamp(min=0).numpy()])
        return torch.cat([features * present, present.to(features.dtype)], dim=-1).to(self.device)


def directed_edges(edges: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Return both directions of every edge within one split of a graph.

    Args:
        edges: pairs of nodes, integers of shape (E, 2), in either direction; repeated edges, loops
            and edges to other splits are left out.
        nodes: the nodes of the split, distinct integers of shape (n,).

    Returns:
        Positions in `nodes` of source and target, int64 of shape (M, 2).
    """
    place = np.full(1 + max(edges.max(initial=0), nodes.max(initial=0)), NO_NODE)
    place[nodes] = np.arange(len(nodes))
    ends = place[edges]
    ends = ends[(ends != NO_NODE).all(axis=1) & (ends[:, 0] != ends[:, 1])]
    both = np.concatenate([ends, ends[:, ::-1]])
    numbers = np.unique(both[:, 0] * len(nodes) + both[:, 1])
    return np.stack(np.divmod(numbers, max(1, len(nodes))), axis=1)


def sample_neighbourhoods(
    edges: np.ndarray, nodes: np.ndarray, degree: int, seed: int
) -> np.ndarray:
    """Sample the in-neighbours of each node such that in- and out-degrees are at most K.

    Args:
        edges: the candidates, as `directed_edges` returns them.
        nodes: the nodes of the split, distinct integers of shape (n,).
        degree: K, the bound on in- and out-degrees.
        seed: of the choice; the priority of an edge depends on its two ends and the seed alone.

    Returns:
        Each node and its in-neighbours, int32 of shape (n, 1 + K), filled up with −1.
    """
    priority = _priority(nodes[edges], seed)
    _, kept = _first(edges[:, 0], priority, degree)
    edges, priority = edges[kept], priority[kept]
    rank, kept = _first(edges[:, 1], priority, degree)
    neighbourhoods = np.full((len(nodes), 1 + degree), NO_NODE, dtype=np.int32)
    neighbourhoods[:, 0] = nodes
    neighbourhoods[edges[kept, 1], 1 + rank] = nodes[edges[kept, 0]]
    return neighbourhoods


def _priority(ends: np.ndarray, seed: int) -> np.ndarray:
    """Return a pseudorandom number per edge that depends only on its ends and the seed."""
    mixed = np.full(len(ends), derive("split", seed), dtype=np.uint64)
    for end in (0, 1):
        mixed = mix64(mixed + ends[:, end].astype(np.uint64) * np.uint64(GAMMA))
    return mixed


def _first(groups: np.ndarray, priority: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rank within the group, and row, of the first `most` of each group by priority."""
    order = np.lexsort((priority, groups))
    ordered = groups[order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return rank[rank < most], order[rank < most]


def examples(
    features: np.ndarray,
    targets: np.ndarray,
    edges: np.ndarray,
    nodes: Tensor,
    degree: int,
    seed: int,
) -> Examples:
    """Return the nodes of one split with their in-neighbours, and their classes.

    Args:
        features: of every node of the graph, shape (N, features).
        targets: of every node, integers of shape (N,).
        edges: of the graph, integers of shape (E, 2).
        nodes: of the split, int64 of shape (n,).
        degree, seed: as for `sample_neighbourhoods`.
    """
    members = nodes.numpy()
    candidates = directed_edges(edges, members)
    neighbourhoods = sample_neighbourhoods(candidates, members, degree, seed)
    rows = NeighbourRows(features, torch.from_numpy(neighbourhoods))
    return Examples(rows, torch.from_numpy(targets[members].astype("int64")))


@dataclass(frozen=True, kw_only=True)
class SyntheticGraph(Drawn, FourSizes):
    """Nodes around one centre per class, most of whose edges stay within the class.

    Each node draws edges to others; some are drawn far more often, so degrees are as uneven as in
    a citation graph. Each split is a separate graph.

    Attributes:
        split_seed: another seed draws other centres, nodes and edges.
        features: of a node.
        classes: number of centres.
        separation: expected distance of a centre from the origin.
        edges: that each node draws.
        homophily: share of the edges that stay within the class.
        degree: K, the bound on in- and out-degrees.
    """

    id = "synthetic-graph"
    title = "Synthetic graph"
    preprocessing = "in- and out-degrees bounded by K"

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

    def unit(self) -> Node:
        return Node(count=self.sizes()["train"], degree=self.degree)

    def parts(self) -> Callable[[str], Examples]:
        sizes, stream = self.sizes(), generator("split", self.split_seed)
        centres = torch.randn(self.classes, self.features, generator=stream)
        centres *= self.separation / self.features**0.5
        return lambda part: self._drawn(centres, sizes[part], stream)

    def _drawn(self, centres: Tensor, count: int, stream: torch.Generator) -> Examples:
        """Draw a graph whose class c has the nodes c, c + classes, c + 2·classes, …"""
        targets = torch.arange(count) % self.classes
        features = torch.randn(count, self.features, generator=stream)
        features += centres[targets]
        ends = torch.arange(count).repeat_interleave(self.edges)
        popular = torch.rand(len(ends), generator=stream, dtype=torch.float64).square()
        anywhere = (popular * count).long()
        same = targets[ends] + self.classes * (popular * (count // self.classes)).long()
        stays = torch.rand(len(ends), generator=stream) < self.homophily
        others = torch.where(stays & (same < count), same, anywhere)
        edges = torch.stack([ends, others], dim=1)
        nodes = torch.randperm(count, generator=stream)
        graph = features.numpy(), targets.numpy(), edges.numpy()
        return examples(*graph, nodes, self.degree, self.split_seed)


@dataclass(frozen=True, kw_only=True)
class OgbnArxiv(Partitioned):
    """169,343 papers of computer science on arXiv, with the citations among them, in 40 subjects.

    Citations count both ways. Training, validation, test and public papers form separate graphs, as
    in Daigavane et al. 2021 (ogbn-arxiv-disjoint).

    Attributes:
        split_seed: which training papers are private or public, and which edges are kept.
        degree: K, the bound on in- and out-degrees.
    """

    reader = "ogbn-arxiv"

    validation_examples: Natural = 29_799
    degree: Count = 7

    @property
    def signature(self) -> Signature:
        return Signature("nodes", (1 + self.degree, FEATURES + 1), CLASSES)

    def unit(self) -> Node:
        return Node(count=self.sizes()["train"], degree=self.degree)

    def prepare(self, cache: Path, weights: Path | None = None) -> None:
        """Write the whole graph: the options of the split and the degree apply when loading."""
        path = self.raw_files(cache).require() / self.files[0].name
        try:
            with zipfile.ZipFile(path) as archive:
                arrays = _graph(path, archive)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise UserError(f"{path}: truncated or damaged ({error}).") from None
        self.write(cache, arrays)

    def load(self, cache: Path) -> Splits:
        arrays, provenance = self.read(cache)
        members = {part: torch.from_numpy(arrays[part].astype("int64")) for part in SPLITS}
        available = {part: len(nodes) for part, nodes in members.items()}
        rows = self.positions(available, self.shuffled(arrays["train"]))
        features, labels, edges = (arrays[name] for name in ("features", "labels", "edges"))

        def take(part: str) -> Examples:
            file = "train" if part == "public" else part
            nodes, seed = members[file][rows[part]], self.split_seed if file == "train" else 0
            return examples(features, labels, edges, nodes, self.degree, seed)

        return Splits.build(take, self.sizes(), provenance)


def _graph(path: Path, archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
    """Read the archive and check that its parts fit together."""
    features = _table(path, archive, "raw/node-feat", "float32", FEATURES)
    count = len(features)
    labels = _table(path, archive, "raw/node-label", "int64", 1, below=CLASSES)[:, 0]
    edges = _table(path, archive, "raw/edge", "int64", 2, below=count)
    nodes = {
        part: _table(path, archive, f"split/time/{name}", "int64", 1, below=count)[:, 0]
        for part, name in SPLITS.items()
    }
    if len(labels) != count:
        raise UserError(f"{path}: node-label has {len(labels)} rows, node-feat {count}.")
    if not np.isfinite(features).all():
        raise UserError(f"{path}: node-feat holds a number that is not finite.")
    in_splits = np.concatenate(list(nodes.values()))
    if len(np.unique(in_splits)) != len(in_splits):
        raise UserError(f"{path}: a node occurs twice in the files of split/time.")
    narrow = {name: values.astype("int32") for name, values in {"edges": edges, **nodes}.items()}
    return {"features": features, "labels": labels.astype("uint8"), **narrow}


def _table(
    path: Path,
    archive: zipfile.ZipFile,
    name: str,
    dtype: str,
    columns: int,
    below: int | None = None,
) -> np.ndarray:
    """Read a compressed CSV file without header; its numbers are from 0 to `below`, exclusive."""
    import pandas as pd

    member = f"arxiv/{name}.csv.gz"
    try:
        with archive.open(member) as stream:
            table = pd.read_csv(stream, header=None, compression="gzip", dtype=dtype)
    except KeyError:
        raise UserError(f"{path}: does not contain {member}.") from None
    except (ValueError, pd.errors.ParserError) as error:
        raise UserError(f"{path}: {member} is not a table of {dtype} ({error}).") from None
    values: np.ndarray = table.to_numpy()
    if values.shape[1] != columns:
        raise UserError(f"{path}: {member} has {values.shape[1]} columns, expected {columns}.")
    if below is not None and len(values) and not 0 <= values.min() <= values.max() < below:
        wrong = values.min() if values.min() < 0 else values.max()
        raise UserError(f"{path}: {member} holds {wrong}; allowed are 0 to {below - 1}.")
    return values
