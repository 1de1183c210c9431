"""The factored engine: what it holds in memory, what it does not change, what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradient_networks import CLASSES, build, examples, losses
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

from clipnoise.core.clipping import Clipping
from clipnoise.gradients.apart import UnsupportedError
from clipnoise.gradients.engine import OneByOne
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.factored.uses import Groups


class Sizes(TorchDispatchMode):
    """Notes the most elements of any tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        self.names.add(str(func))
        for result in results if isinstance(results, tuple | list) else (results,):
            if isinstance(result, Tensor):
                self.largest = max(self.largest, result.numel())
        return results


def deep() -> nn.Module:
    layers: list[nn.Module] = [nn.Unflatten(1, (1, 12, 12)), nn.Conv2d(1, 24, 3, padding=1)]
    layers += [nn.Tanh(), nn.AvgPool2d(3), nn.Conv2d(24, 48, 3, padding=1), nn.Tanh()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(768, 300), nn.Linear(300, CLASSES))


CLIPPINGS: dict[str, Callable[[int], Clipping]] = {
    "plain": lambda d: Clipping(0.1),
    "scaled": lambda d: Clipping(0.1, scale=torch.linspace(0.5, 2, d)),
    "two iterates": lambda d: Clipping(0.1, weights=(0.9, 0.1)),
    "micro-batches": lambda d: Clipping(0.1, group_size=2, groups=torch.arange(64) // 2),
}


@pytest.mark.parametrize("clipping_name", CLIPPINGS)
def test_per_example_gradients_are_never_held_all_at_once(clipping_name: str) -> None:
    draws = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(64, 144, generator=draws), torch.zeros(64, dtype=torch.int64)
    engine = FactoredEngine(deep(), losses)
    theta = engine.flat.theta.clone()
    clipping = CLIPPINGS[clipping_name](len(theta))
    with Sizes() as sizes:
        engine.clipped_sum(inputs, targets, clipping.at(*[theta] * len(clipping.weights)))
    assert sizes.largest < 64 * len(theta) / 15
    with Sizes() as whole:
        engine.per_example_gradients(inputs, targets, theta)
    assert whole.largest == 64 * len(theta)  # what the bound above would miss


def test_the_backward_pass_stops_at_the_lowest_trained_layer() -> None:
    layers = [nn.Conv1d(1, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(16, CLASSES)]
    network = nn.Sequential(nn.Unflatten(1, (1, 6)), *layers)
    network[1].requires_grad_(False)
    engine = FactoredEngine(network, losses)
    theta = engine.flat.theta.clone()
    with Sizes() as sizes:
        engine.clipped_sum(*examples("convolution", 5), Clipping(0.1).at(theta))
    assert not [name for name in sizes.names if "gelu_backward" in name]
    assert not [name for name in sizes.names if "convolution_backward" in name]


def test_no_layer_computes_a_summed_weight_gradient() -> None:
    engine = FactoredEngine(nn.Sequential(nn.Linear(6, 50), nn.Linear(50, CLASSES)), losses)
    theta = engine.flat.theta.clone()
    products: list[torch.Size] = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm_.default):
                products.append(result.shape)
            return result

    with Products():
        engine.clipped_sum(*examples("convolution", 5), Clipping(0.1).at(theta))
    assert products.count(torch.Size((50, 6))) == 1
    assert products.count(torch.Size((CLASSES, 50))) == 1


def test_buffers_random_streams_and_modes_are_left_alone() -> None:
    network = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.0), nn.Linear(8, CLASSES)).train()
    engine = FactoredEngine(network, losses)
    theta = engine.flat.theta.clone()
    kept, state = theta.clone(), torch.random.get_rng_state()
    engine.clipped_sum(*examples("convolution", 5), Clipping(0.1).at(theta))
    assert torch.equal(theta, kept)
    assert torch.equal(engine.flat.theta, kept)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(p.grad is None and p.requires_grad for p in network.parameters())
    assert network.training


def test_inputs_and_offsets_are_left_alone() -> None:
    engine = FactoredEngine(build("convolution"), losses)
    theta = engine.flat.theta.clone()
    inputs, targets = examples("convolution", 6)
    offset, scale = torch.full_like(theta, 0.1), torch.full_like(theta, 2.0)
    before = [x.clone() for x in (inputs, targets, offset, scale)]
    clipping = Clipping(0.1, (1.0,), scale, offset, 2, torch.tensor([0, 1, 1, 1, 2, 3]))
    engine.clipped_sum(inputs, targets, clipping.at(theta))
    after = (inputs, targets, offset, scale)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


class Derived(nn.Module):
    def __init__(self, use: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.use = nn.Linear(6, CLASSES), use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.layer, x)


REFUSED: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], str]] = {
    "an input overwritten": (lambda m, x: _overwrite(m, x), "changed in place"),
}
COPIED: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "a weight that is computed": lambda m, x: linear(x, m.weight / 2),
    "a weight that is computed, beside a bias": lambda m, x: linear(x, m.weight / 2, m.bias),
    "an unknown function": lambda m, x: x @ m.weight.t() + m.bias.sort().values,
    "parameters in a list": lambda m, x: x[:, :CLASSES] * torch.stack([m.bias, m.bias]).prod(0),
    "a function with an option": lambda m, x: x[:, :CLASSES] * torch.sum(m.weight, dim=1),
    "no axis of examples": lambda m, x: m(x.mean(0)).expand(len(x), -1),
    "what depends on the size of the batch": lambda m, x: m(m(x).repeat(1, 2) / len(x)),
}


def _overwrite(layer: nn.Module, x: Tensor) -> Tensor:
    taken = 1 * x
    outputs: Tensor = layer(taken)
    taken.zero_()
    return outputs


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_rule_covers_is_refused(name: str) -> None:
    use, message = REFUSED[name]
    engine = FactoredEngine(Derived(use), losses)
    with pytest.raises(UnsupportedError, match=message):
        engine.clipped_sum(*examples("convolution", 7), Clipping(0.1).at(engine.flat.theta.clone()))


@pytest.mark.parametrize("name", COPIED)
def test_a_small_parameter_in_any_function_is_copied_for_each_example(name: str) -> None:
    inputs, targets = examples("convolution", 7)
    sums = []
    for kind in (FactoredEngine, OneByOne):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            engine = kind(Derived(COPIED[name]), losses)
        clipping = Clipping(0.1).at(engine.flat.theta.clone())
        sums.append(engine.clipped_sum(inputs, targets, clipping))
    torch.testing.assert_close(*sums)


def test_groups_of_equal_size_are_taken_together_and_none_is_lost() -> None:
    ids = torch.tensor([5, 5, 2, 7, 7, 7, 1, 9, 9])
    groups, order = Groups.of(Clipping(1.0, group_size=3, groups=ids), 9)
    assert order is not None
    found = []
    for piece in groups.pieces(2**18):
        rows = piece.rows(ids[order])
        assert (rows == rows[:, :1]).all()
        found += rows[:, 0].tolist()
    assert sorted(found) == [1, 2, 5, 7, 9]
    assert (groups.count, groups.examples, groups.largest) == (5, 9, 3)
    repeated = groups.to_examples(torch.tensor(found))
    assert torch.equal(repeated, ids[order])
