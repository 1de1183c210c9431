"""A network's trained parameters are views into one vector, and stay so."""

from __future__ import annotations

import pytest
import torch
from gradient_networks import NETWORKS, Tied, Unused, build, examples
from torch import nn

from clipnoise.errors import UserError
from clipnoise.gradients.engine import FlatModel


@pytest.mark.parametrize("name", NETWORKS)
def test_making_a_network_flat_does_not_change_what_it_computes(name: str) -> None:
    inputs, _ = examples(name, 4)
    before = build(name)(inputs)
    network = build(name)
    FlatModel(network)
    assert torch.equal(network(inputs), before)


@pytest.mark.parametrize("name", NETWORKS)
def test_loading_a_vector_sets_every_parameter(name: str) -> None:
    flat = FlatModel(build(name))
    target = torch.arange(flat.theta.numel(), dtype=torch.float32)
    flat.load(target)
    parameters = [p for p in flat.network.parameters() if p.requires_grad]
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in parameters]), target)
    assert all(torch.equal(v, p) for v, p in zip(flat.split(target), parameters, strict=True))
    assert torch.equal(flat.join(flat.split(target)), target)


def test_a_gradient_step_on_the_parameters_moves_the_vector() -> None:
    flat = FlatModel(build("convolution"))
    before = flat.theta.clone()
    with torch.no_grad():
        for parameter in flat.parameters:
            parameter.add_(1.0)
    assert torch.equal(flat.theta, before + 1)


def test_frozen_parameters_stay_out() -> None:
    flat = FlatModel(Unused())
    assert not any(name.startswith("frozen") for name in flat.names)
    assert flat.theta.numel() == 3 * (6 * 3 + 3)


def test_tied_parameters_count_once() -> None:
    flat = FlatModel(network := Tied())
    assert flat.theta.numel() == 3 * 5 + 2 * 5
    flat.load(torch.zeros_like(flat.theta))
    assert network.last.weight is network.embedding.weight
    assert not network.last.weight.any()


def test_views_are_named_and_share_memory_with_the_vector() -> None:
    flat = FlatModel(build("shared layer"))
    vector = torch.zeros_like(flat.theta)
    views = flat.views(vector)
    assert {name: p.shape for name, p in views.items()} == {
        name: p.shape for name, p in flat.network.named_parameters()
    }
    views["last.bias"].fill_(1.0)
    assert int(vector.sum()) == 3


def test_a_network_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(UserError, match="found: none"):
        FlatModel(nn.Linear(2, 2).requires_grad_(False))


def test_parameters_of_two_dtypes_are_refused() -> None:
    with pytest.raises(UserError, match=r"float32.*float64"):
        FlatModel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))
