"""A vector that is not finite, or whose norm is not, counts as zero, in every gradient engine."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gradient_networks import NETWORKS, build, examples, losses
from torch import Tensor, nn

from clipnoise.core.clip_rules import HardClip
from clipnoise.core.clip_rules.smooth import PSAC, AutomaticClip
from clipnoise.core.clipping import Clipping
from clipnoise.core.method import LocalTraining
from clipnoise.core.taken import GradientsAndCount, GradientsAndSlacks
from clipnoise.data.base import Examples
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.gradients.engine import (
    GradientEngine,
    OneByOne,
    VmapEngine,
)
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.factored.uses import ParameterGradient
from clipnoise.gradients.units import PhysicalBatch, PrivateUnits
from clipnoise.gradients.users import UserEngine

ENGINES: tuple[type[GradientEngine], ...] = (OneByOne, VmapEngine, FactoredEngine)
C, COUNT, ROWS, WIDTH, OUTPUTS = 0.5, 7, 2, 4, 100
BAD = 3  # the place of the bad example


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a loss whose gradient in the outputs is the targets."""
    return (outputs * targets).flatten(1).sum(dim=1)


def linear() -> nn.Module:
    """Return a network in which the gradient of an example is its targets' outer product with it.

    Its norm is computed by inner products of rows, because these are few.
    """
    torch.manual_seed(0)
    return nn.Linear(WIDTH, OUTPUTS, bias=False)


def good() -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(COUNT, ROWS, WIDTH, generator=draws)
    return inputs, torch.randn(COUNT, ROWS, OUTPUTS, generator=draws)


def with_bad(kind: str) -> tuple[Tensor, Tensor]:
    inputs, targets = good()
    one_hot = torch.eye(ROWS, WIDTH)
    inputs[BAD], targets[BAD] = {
        "orthogonal rows of 2e18": (one_hot, torch.full((ROWS, OUTPUTS), 2e18)),
        "a norm too large for 32 bits": (one_hot, torch.full((ROWS, OUTPUTS), 1e25)),
        "a product too large for 32 bits": (1e30 * one_hot, torch.full((ROWS, OUTPUTS), 1e30)),
        "a loss that is not a number": (one_hot, torch.full((ROWS, OUTPUTS), math.nan)),
        "an infinite input": (torch.full((ROWS, WIDTH), math.inf), targets[BAD]),
        "zero times infinity": (0 * one_hot, torch.full((ROWS, OUTPUTS), math.inf)),
    }[kind]
    return inputs, targets


KINDS = (
    "orthogonal rows of 2e18",
    "a norm too large for 32 bits",
    "a product too large for 32 bits",
    "a loss that is not a number",
    "an infinite input",
    "zero times infinity",
)
GROUPS = torch.tensor([0, 0, 1, 1, 1, 2, 2])
D = WIDTH * OUTPUTS
CLIPPINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"scale": torch.linspace(0.5, 2, D)},
    "scaled, one coordinate by zero": {"scale": torch.linspace(0, 2, D)},
    "moved": {"offset": torch.linspace(-0.1, 0.1, D)},
    "two iterates": {"weights": (0.9, 0.1)},
    "micro-batches": {"group_size": 2, "groups": GROUPS},
    "counted": {"of": GradientsAndCount()},
    "slacks": {"of": GradientsAndSlacks(slots=3)},
    "automatic": {"rule": AutomaticClip()},
    "psac": {"rule": PSAC()},
}


def others(clipping: Clipping) -> tuple[Tensor, Clipping]:
    """Return the examples that remain without the bad one (and its group), and their clipping."""
    if clipping.groups is None:
        return torch.tensor([i for i in range(COUNT) if i != BAD]), clipping
    rows = (clipping.groups != clipping.groups[BAD]).nonzero().squeeze(1)
    values = {**vars(clipping), "groups": clipping.groups[rows]}
    return rows, Clipping(**values)


@pytest.mark.parametrize("clipping_name", CLIPPINGS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine_type", ENGINES)
def test_a_vector_that_is_not_finite_counts_as_zero_and_changes_no_other(
    engine_type: type[GradientEngine], kind: str, clipping_name: str
) -> None:
    engine = engine_type(linear(), weighted)
    clipping = Clipping(C, **CLIPPINGS[clipping_name])
    iterates = [engine.flat.theta.clone()] * len(clipping.weights)
    inputs, targets = with_bad(kind)
    rows, rest = others(clipping)
    total = engine.clipped_sum(inputs, targets, clipping.at(*iterates))
    without = engine.clipped_sum(inputs[rows], targets[rows], rest.at(*iterates))
    assert bool(total.isfinite().all())
    if kind == "orthogonal rows of 2e18":  # its norm fits in 32 bits if it is halved
        assert float((total - without).double().norm()) <= C * (1 + 1e-5)
    elif kind == "a norm too large for 32 bits":  # all its factors are finite
        torch.testing.assert_close(total, without, rtol=1e-6, atol=1e-7)
    else:
        assert torch.equal(total, without)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
@pytest.mark.parametrize("engine_type", ENGINES)
@pytest.mark.parametrize("name", NETWORKS)
def test_one_bad_input_moves_the_sum_of_every_network_by_no_more_than_the_clip_norm(
    name: str, engine_type: type[GradientEngine], value: float
) -> None:
    inputs, targets = examples(name, 5)
    if not inputs.is_floating_point():
        pytest.skip("token ids are always finite")
    engine = engine_type(build(name), losses)
    theta, clipping = engine.flat.theta.clone(), Clipping(C)
    rest = torch.tensor([0, 1, 3, 4])
    without = engine.clipped_sum(inputs[rest], targets[rest], clipping.at(theta))
    inputs = inputs.clone()
    inputs[2] = value
    total = engine.clipped_sum(inputs, targets, clipping.at(theta))
    assert float((total - without).double().norm()) <= C * (1 + 1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_given_gradients_that_are_not_finite_count_as_zero(bad: float) -> None:
    rows = torch.randn(5, 3000, generator=torch.Generator().manual_seed(0))
    spoilt = rows.clone()
    spoilt[2, 7:] = bad
    each_layer = Clipping(C, rule=HardClip(per="layer"))
    for clipping, layers in ((Clipping(C), None), (each_layer, [5, 2995])):
        expected = clipped_sum([rows[[0, 1, 3, 4]]], clipping, layers)
        torch.testing.assert_close(clipped_sum([spoilt], clipping, layers), expected)


def test_where_one_product_is_too_large_no_other_vector_is_formed_in_another_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The norm of one of the others fits in 32 bits by its factors, but not by its entries."""
    inputs, targets = with_bad("orthogonal rows of 2e18")
    targets[BAD] = 1.5e18
    engine = FactoredEngine(linear(), weighted)
    clipping = Clipping(C).at(engine.flat.theta.clone())
    expected = engine.clipped_sum(inputs, targets, clipping)
    one_by_one = OneByOne(linear(), weighted).clipped_sum(inputs, targets, clipping)
    assert float((expected - one_by_one).norm()) > C / 2
    add_weighted = ParameterGradient.add_weighted

    def too_large(self: ParameterGradient, *arguments: Any) -> None:
        add_weighted(self, *arguments)
        if self.groups.count > 1:
            arguments[-1].fill_(math.inf)

    monkeypatch.setattr(ParameterGradient, "add_weighted", too_large)
    torch.testing.assert_close(engine.clipped_sum(inputs, targets, clipping), expected)


def test_all_vectors_may_be_bad() -> None:
    for engine_type in ENGINES:
        engine = engine_type(linear(), weighted)
        inputs, targets = good()
        theta = engine.flat.theta.clone()
        total = engine.clipped_sum(inputs * math.nan, targets, Clipping(C).at(theta))
        assert torch.equal(total, torch.zeros_like(theta))


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_logical_batch_with_a_bad_example_is_the_same_in_any_physical_batch_size(
    size: int,
) -> None:
    engine = FactoredEngine(linear(), weighted)
    theta, data = engine.flat.theta.clone(), Examples(*with_bad("an infinite input"))
    rest = torch.tensor([i for i in range(COUNT) if i != BAD])
    total = PrivateUnits(engine, data, PhysicalBatch(size)).clipped_sum(
        torch.arange(COUNT), Clipping(C).at(theta)
    )
    expected = PrivateUnits(engine, data, PhysicalBatch(100)).clipped_sum(
        rest, Clipping(C).at(theta)
    )
    torch.testing.assert_close(total, expected)


def test_a_user_with_a_bad_example_counts_as_zero() -> None:
    name = "shared layer"
    inputs, targets = examples(name, 8)
    inputs = inputs.clone()
    inputs[5] = math.nan
    owners = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    local = LocalTraining(learning_rate=0.1, epochs=1, batch_size=10)
    engine = UserEngine(
        VmapEngine(build(name), losses), Examples(inputs, targets), owners, 4, local
    )
    theta, users = engine.flat.theta.clone(), torch.arange(4)
    total = engine.clipped_sum(users, users, Clipping(C).at(theta))
    expected = engine.clipped_sum(users[[0, 1, 3]], users[[0, 1, 3]], Clipping(C).at(theta))
    assert torch.equal(total, expected)


@pytest.mark.parametrize("engine_type", ENGINES)
def test_a_bad_example_leaves_the_dropout_masks_of_the_others(
    engine_type: type[GradientEngine],
) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)).train()
    engine = engine_type(network, losses)
    theta, (inputs, targets) = engine.flat.theta.clone(), examples("shared layer", 5)
    inputs[2] = math.nan
    rest = torch.tensor([0, 1, 3, 4])
    total = engine.clipped_sum(inputs, targets, Clipping(C).at(theta))
    expected = engine.clipped_sum(inputs[rest], targets[rest], Clipping(C, examples=rest).at(theta))
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-7)
