"""Graphs: in-neighbours, what removing a node can change, and damaged archives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from real_files import graphs as archive
from real_files import prepare, small

from clipnoise.data.base import dataset_class
from clipnoise.data.graphs import (
    NO_NODE,
    NeighbourRows,
    SyntheticGraph,
    directed_edges,
    sample_neighbourhoods,
)
from clipnoise.errors import UserError
from clipnoise.models.gcn import GCN

ARXIV = dataset_class("ogbn-arxiv")
NODES, DEGREE = 40, 3


def random_edges(seed: int = 0) -> np.ndarray:
    draws = np.random.default_rng(seed)
    ends = draws.random((200, 2))
    ends[:, 1] **= 3  # some nodes have a great many edges
    return (NODES * ends).astype(int)


def star() -> np.ndarray:
    return np.array([(0, other) for other in range(1, NODES)])


GRAPHS = {"random": random_edges(), "star": star(), "no edges": np.empty((0, 2), dtype=int)}
every_graph = pytest.mark.parametrize("edges", GRAPHS.values(), ids=GRAPHS)


def lists(edges: np.ndarray, degree: int = DEGREE, seed: int = 0) -> np.ndarray:
    nodes = np.arange(NODES)
    return sample_neighbourhoods(directed_edges(edges, nodes), nodes, degree, seed)


@every_graph
def test_in_and_out_degrees_are_at_most_k(edges: np.ndarray) -> None:
    found = lists(edges)
    others = found[:, 1:]

    assert found.shape == (NODES, 1 + DEGREE)
    assert (found[:, 0] == np.arange(NODES)).all()
    counts = np.bincount(others[others != NO_NODE], minlength=NODES)
    assert counts.max(initial=0) <= DEGREE
    neighbours = {frozenset(edge) for edge in edges.tolist() if edge[0] != edge[1]}
    for node, in_neighbours in enumerate(others):
        there = [other for other in in_neighbours.tolist() if other != NO_NODE]
        assert len(set(there)) == len(there)
        assert all(frozenset((node, other)) in neighbours for other in there)


def test_every_edge_is_kept_both_ways_where_no_node_has_more_than_k() -> None:
    ring = np.stack([np.arange(NODES), (np.arange(NODES) + 1) % NODES], axis=1)
    doubled = np.concatenate([ring, ring[:, ::-1], ring])
    others = lists(doubled, degree=2)[:, 1:]
    expected = np.sort((np.arange(NODES)[:, None] + [-1, 1]) % NODES)
    np.testing.assert_array_equal(np.sort(others), expected)


@every_graph
@pytest.mark.parametrize("seed", range(3))
def test_removing_a_node_and_its_list_changes_the_in_neighbours_of_at_most_k_others(
    edges: np.ndarray, seed: int
) -> None:
    """The privacy claim: with its own gradient, K + 1 terms of the sum change."""
    nodes = np.arange(NODES)
    candidates = directed_edges(edges, nodes)
    before = sample_neighbourhoods(candidates, nodes, DEGREE, seed)
    for gone in nodes:
        after = sample_neighbourhoods(candidates[candidates[:, 0] != gone], nodes, DEGREE, seed)
        changed = (np.sort(before) != np.sort(after)).any(axis=1)
        assert changed.sum() <= DEGREE
        assert not changed[gone]
        assert not (np.delete(after, gone, axis=0) == gone).any()


def test_removing_a_node_from_the_lists_of_others_would_change_many_in_neighbours() -> None:
    """Why the places stay: every neighbour of a hub would choose another target instead."""
    hub = np.concatenate([star(), random_edges()])
    nodes = np.arange(NODES)
    candidates = directed_edges(hub, nodes)
    before = sample_neighbourhoods(candidates, nodes, DEGREE, 0)
    after = sample_neighbourhoods(candidates[(candidates != 0).all(axis=1)], nodes, DEGREE, 0)
    assert (np.sort(before) != np.sort(after)).any(axis=1)[1:].sum() > DEGREE


def test_the_choice_follows_from_the_seed() -> None:
    edges = GRAPHS["random"]
    np.testing.assert_array_equal(lists(edges), lists(edges))
    assert (lists(edges) != lists(edges, seed=1)).any()


def test_neighbours_are_chosen_evenly() -> None:
    chosen = np.concatenate([lists(star(), seed=seed)[0, 1:] for seed in range(2000)])
    counts = np.bincount(chosen, minlength=NODES)[1:]
    expected = len(chosen) / (NODES - 1)
    assert ((counts - expected) ** 2 / expected).sum() < 38 + 5 * np.sqrt(2 * 38)


def test_no_edge_joins_two_splits(tmp_path: Path) -> None:
    prepare(tmp_path, "ogbn-arxiv")
    splits = small("ogbn-arxiv", public_examples=10).load(tmp_path)
    assert splits.public is not None
    seen: set[int] = set()
    for part in (splits.train, splits.validation, splits.test, splits.public):
        assert isinstance(part.inputs, NeighbourRows)
        own = set(part.inputs.neighbourhoods[:, 0].tolist())
        assert set(part.inputs.neighbourhoods.flatten().tolist()) - {NO_NODE} == own
        assert not own & seen
        seen |= own


def test_rows_hold_the_node_then_its_in_neighbours_then_zeros() -> None:
    features = np.arange(12, dtype="float32").reshape(4, 3) + 1
    rows = NeighbourRows(features, torch.tensor([[2, 0, NO_NODE], [1, NO_NODE, NO_NODE]]))

    taken = rows[torch.tensor([1, 0])]

    zeros = [0.0] * 4
    assert taken[0].tolist() == [[*features[1], 1], zeros, zeros]
    assert taken[1].tolist() == [[*features[2], 1], [*features[0], 1], zeros]
    assert torch.equal(rows[:1], taken[1:])
    assert len(rows.to("cpu")) == 2


def test_the_network_takes_the_mean_over_present_nodes() -> None:
    dataset = SyntheticGraph(features=5, classes=3, degree=2)
    network = GCN(width=4, encoder_layers=2, decoder_layers=1).build(dataset.signature, Path())
    node, other = torch.randn(2, 5)

    def row(*states: torch.Tensor) -> torch.Tensor:
        there = torch.stack([torch.cat([state, torch.ones(1)]) for state in states])
        return torch.cat([there, torch.zeros(3 - len(states), 6)]).unsqueeze(0)

    torch.testing.assert_close(network(row(node)), network(row(node, node, node)))
    torch.testing.assert_close(network(row(node, other)), network(row(other, node)))
    mean = (network.encoder(node) + network.encoder(other)) / 2
    expected = network.decoder(mean + network.core(mean))
    torch.testing.assert_close(network(row(node, other))[0], expected)


def test_the_sizes_are_those_of_the_published_graph() -> None:
    sizes = ARXIV().sizes()
    assert sizes == {"train": 90_941, "validation": 29_799, "test": 48_603, "public": 0}
    assert sum(sizes.values()) == 169_343
    assert ARXIV().signature.shape == (8, 129)
    assert small("ogbn-arxiv", degree=5).unit().degree == 5


def test_fewer_nodes_than_requested_are_an_error(tmp_path: Path) -> None:
    dataset = prepare(tmp_path, "ogbn-arxiv")
    with pytest.raises(UserError, match=r"asks for 121 .* holds 120"):
        replace(dataset, train_examples=121).load(tmp_path)  # type: ignore[call-arg]


DAMAGE = {
    "raw/edge": (np.array([[0, 190]]), "holds 190; allowed are 0 to 189"),
    "raw/node-label": (np.array([-1]), "holds -1; allowed are 0 to 39"),
    "raw/node-feat": (np.ones((3, 127)), "127 columns, expected 128"),
    "split/time/train": (np.array([0, 0]), "twice"),
    "split/time/valid": (np.array([0.5]), "not a table of int64"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_table_that_does_not_fit_is_named_and_nothing_is_written(
    name: str, tmp_path: Path
) -> None:
    values, said = DAMAGE[name]
    archive.write(tmp_path, {**archive.members(), f"arxiv/{name}.csv.gz": archive.table(values)})
    ARXIV().raw_files(tmp_path).accept()
    with pytest.raises(UserError, match=said) as caught:
        ARXIV().prepare(tmp_path)
    assert "arxiv.zip" in str(caught.value)
    assert not (tmp_path / "ogbn-arxiv").exists()


@pytest.mark.parametrize("name", ["raw/edge", "raw/node-label", "split/time/test"])
def test_a_missing_or_damaged_table_is_named(name: str, tmp_path: Path) -> None:
    member = f"arxiv/{name}.csv.gz"
    files = archive.members()
    for broken in ({**files, member: files[member][:-9]}, {**files, member: b""}):
        archive.write(tmp_path, broken)
        with pytest.raises(UserError, match=r"arxiv\.zip"):
            ARXIV().prepare(tmp_path)
    del files[member]
    archive.write(tmp_path, files)
    with pytest.raises(UserError, match=f"does not contain {member}"):
        ARXIV().prepare(tmp_path)


def test_numbers_that_are_not_finite_and_labels_too_few_are_named(tmp_path: Path) -> None:
    files = archive.members()
    features = np.full((190, 128), np.inf)
    archive.write(tmp_path, {**files, "arxiv/raw/node-feat.csv.gz": archive.table(features)})
    with pytest.raises(UserError, match="not finite"):
        ARXIV().prepare(tmp_path)
    labels = archive.table(np.zeros(5, dtype=int))
    archive.write(tmp_path, {**files, "arxiv/raw/node-label.csv.gz": labels})
    with pytest.raises(UserError, match="5 rows"):
        ARXIV().prepare(tmp_path)
