"""Every engine gives the clipped sum that one backward pass per example gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from gradient_networks import NETWORKS, build, examples, losses
from torch import Tensor, nn

from clipnoise.core.clip_rules import HardClip
from clipnoise.core.clip_rules.smooth import PSAC, AutomaticClip
from clipnoise.core.clipping import Clipping
from clipnoise.core.taken import LOSSES, GradientsAndCount
from clipnoise.data.base import Examples
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.engine import (
    GradientEngine,
    OneByOne,
    VmapEngine,
    pieces,
    whole_groups,
)
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.units import PhysicalBatch, PrivateUnits

ENGINES: list[type[GradientEngine]] = [VmapEngine, FactoredEngine]
every_engine = pytest.mark.parametrize("kind", ENGINES, ids=lambda kind: kind.name)
every_network = pytest.mark.parametrize("name", NETWORKS)


def ramp(d: int, low: float, high: float) -> Tensor:
    return torch.linspace(low, high, d)


CLIPPINGS: dict[str, Callable[[int], Clipping]] = {
    "clipped": lambda d: Clipping(0.5),
    "scaled and moved": lambda d: Clipping(0.5, scale=ramp(d, 0.1, 3), offset=ramp(d, -0.2, 0.2)),
    "three iterates": lambda d: Clipping(0.5, weights=(0.6, 0.3, -0.1)),
    "micro-batches": lambda d: Clipping(0.2, weights=(0.9, 0.1), group_size=4),
    "automatic": lambda d: Clipping(0.5, rule=AutomaticClip(gamma=0.3)),
    "psac": lambda d: Clipping(0.5, scale=ramp(d, 0.1, 3), rule=PSAC(gamma=0.1)),
    "per layer": lambda d: Clipping(0.5, rule=HardClip(per="layer")),
    "per layer with all": lambda d: Clipping(
        0.2,
        (0.6, 0.4),
        ramp(d, 0.1, 3),
        ramp(d, -0.2, 0.2),
        group_size=4,
        rule=PSAC(gamma=0.1, per="layer"),
    ),
    "counted": lambda d: Clipping(1.5, of=GradientsAndCount()),
    "counted per layer, in micro-batches": lambda d: Clipping(
        0.5, group_size=4, rule=AutomaticClip(per="layer"), of=GradientsAndCount()
    ),
    "unclipped": lambda d: Clipping(None),
    "unclipped with all": lambda d: Clipping(
        None, (0.6, 0.4), ramp(d, 0.1, 3), ramp(d, -0.2, 0.2), group_size=4
    ),
}
SIZES = torch.tensor([1, 3, 2, 5, 4, 1, 1, 9, 30, 30])  # of micro-batches


def for_batch(clipping: Clipping, count: int) -> Clipping:
    """Put the examples of a batch into micro-batches of unequal sizes, where there are any."""
    if clipping.group_size == 1:
        return clipping
    return replace(clipping, groups=torch.arange(len(SIZES)).repeat_interleave(SIZES)[:count])


def iterates(engine: GradientEngine, count: int) -> list[Tensor]:
    draws = torch.Generator().manual_seed(2)
    theta = engine.flat.theta.clone()
    return [theta + 0.3 * j * torch.randn(theta.shape, generator=draws) for j in range(count)]


def by_hand(network: nn.Module, inputs: Tensor, targets: Tensor, theta: Tensor) -> Tensor:
    """Take one ordinary backward pass per example."""
    trained = [p for p in network.parameters() if p.requires_grad]
    torch.nn.utils.vector_to_parameters(theta.clone(), trained)
    rows = []
    for i in range(len(inputs)):
        loss = losses(network(inputs[i : i + 1]), targets[i : i + 1]).sum()
        gradients = torch.autograd.grad(loss, trained, materialize_grads=True)
        rows.append(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    return torch.stack(rows)


@every_engine
@every_network
@pytest.mark.parametrize("clipping_name", CLIPPINGS)
def test_clipped_sum_equals_one_backward_pass_per_example(
    kind: type[GradientEngine], name: str, clipping_name: str
) -> None:
    engine = kind(build(name), losses)
    clipping = for_batch(CLIPPINGS[clipping_name](engine.flat.theta.numel()), 7)
    inputs, targets = examples(name, 7)
    thetas = iterates(engine, len(clipping.weights))
    gradients = [by_hand(build(name), inputs, targets, theta) for theta in thetas]
    expected = clipped_sum(gradients, clipping, engine.flat.layer_sizes)
    actual = engine.clipped_sum(inputs, targets, clipping.at(*thetas))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@every_engine
@every_network
@pytest.mark.parametrize("clipping_name", CLIPPINGS)
def test_an_empty_batch_gives_the_zero_vector(
    kind: type[GradientEngine], name: str, clipping_name: str
) -> None:
    engine = kind(build(name), losses)
    clipping = for_batch(CLIPPINGS[clipping_name](engine.flat.theta.numel()), 0)
    total = engine.clipped_sum(
        *examples(name, 0), clipping.at(*iterates(engine, len(clipping.weights)))
    )
    assert total.shape == (engine.flat.theta.numel() + clipping.of.extra,)
    assert not total.any()


@every_engine
@every_network
def test_a_batch_of_one_is_one_clipped_gradient(kind: type[GradientEngine], name: str) -> None:
    engine = kind(build(name), losses)
    inputs, targets = examples(name, 1)
    total = engine.clipped_sum(inputs, targets, Clipping(1e-3).at(*iterates(engine, 1)))
    assert float(total.double().norm()) == pytest.approx(1e-3, rel=1e-6)


@every_engine
@every_network
def test_gradients_do_not_depend_on_what_ran_before(kind: type[GradientEngine], name: str) -> None:
    engine = kind(build(name), losses)
    theta = engine.flat.theta.clone()
    first = engine.per_example_gradients(*examples(name, 3), theta)
    engine.per_example_gradients(*examples(name, 5), theta + 1)
    engine.summed_gradient(*examples(name, 2), theta)
    assert torch.equal(engine.per_example_gradients(*examples(name, 3), theta), first)


@every_engine
@pytest.mark.parametrize("clipping_name", CLIPPINGS)
@pytest.mark.parametrize("size", [1, 3, 5, 100])
def test_physical_batches_add_up_to_the_logical_batch(
    kind: type[GradientEngine], clipping_name: str, size: int
) -> None:
    engine = kind(build("shared layer"), losses)
    clipping = for_batch(CLIPPINGS[clipping_name](engine.flat.theta.numel()), 11)
    data = Examples(*examples("shared layer", 20))
    batch = torch.tensor([17, 0, 3, 4, 5, 9, 10, 11, 13, 19, 18])
    thetas = iterates(engine, len(clipping.weights))
    whole = engine.clipped_sum(data.inputs[batch], data.targets[batch], clipping.at(*thetas))
    parts = PrivateUnits(engine, data, PhysicalBatch(size)).clipped_sum(batch, clipping.at(*thetas))
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [*ENGINES, OneByOne], ids=lambda kind: kind.name)
@pytest.mark.parametrize("size", [0, 4])
def test_an_empty_logical_batch_gives_the_zero_vector(
    kind: type[GradientEngine], size: int
) -> None:
    engine = kind(build("shared layer"), losses)
    data = Examples(*examples("shared layer", 5))
    empty = torch.zeros(0, dtype=torch.int64)
    total = PrivateUnits(engine, data, PhysicalBatch(size)).clipped_sum(
        empty, Clipping(1.0).at(*iterates(engine, 1))
    )
    assert total.shape == engine.flat.theta.shape
    assert not total.any()


@pytest.mark.parametrize(("count", "size"), [(10, 4), (10, 1), (3, 10), (0, 4), (0, 0)])
def test_pieces_cover_the_batch(count: int, size: int) -> None:
    cut = list(pieces(count, size))
    assert [i for piece in cut for i in range(count)[piece]] == list(range(count))
    assert all(piece.stop - piece.start <= size for piece in cut)


@pytest.mark.parametrize("size", [1, 2, 4, 7, 100])
@pytest.mark.parametrize("sizes", [[], [10], [3, 3, 3, 1], [1, 5, 2, 2], [1] * 10])
def test_pieces_split_no_micro_batch_of_any_size(sizes: list[int], size: int) -> None:
    groups = [number for number, count in enumerate(sizes) for _ in range(count)]
    cut = list(whole_groups(torch.tensor(groups, dtype=torch.int64), size))
    assert [i for piece in cut for i in range(len(groups))[piece]] == list(range(len(groups)))
    held = [set(groups[piece]) for piece in cut]
    assert sum(len(one) for one in held) == len(sizes), "a micro-batch is in two pieces"
    assert all(len(groups[p]) <= size or len(one) == 1 for p, one in zip(cut, held, strict=True))


def test_vmap_cuts_large_batches_without_changing_the_sum() -> None:
    engine = VmapEngine(build("convolution"), losses)
    inputs, targets = examples("convolution", 71)
    clipping, thetas = for_batch(Clipping(0.1, group_size=5), 71), iterates(engine, 1)
    whole = engine.clipped_sum(inputs, targets, clipping.at(*thetas))
    engine.piece = 32
    torch.testing.assert_close(engine.clipped_sum(inputs, targets, clipping.at(*thetas)), whole)


@every_engine
def test_losses_of_a_batch_are_taken_in_one_pass(
    kind: type[GradientEngine],
) -> None:
    engine = kind(build("convolution"), losses)
    inputs, targets = examples("convolution", 20)
    passes: list[int] = []
    engine.network.register_forward_hook(lambda _, given, __: passes.append(len(given[0])))
    theta = engine.flat.theta.clone()
    clipping = Clipping(100.0, of=LOSSES).at(theta)
    total = engine.clipped_sum(inputs, targets, clipping)
    assert passes == [20]
    torch.testing.assert_close(total, losses(engine.network(inputs), targets).sum().view(1))


@every_engine
@every_network
def test_mean_gradient_is_that_of_the_mean_loss(kind: type[GradientEngine], name: str) -> None:
    engine = kind(build(name), losses)
    inputs, targets = examples(name, 5)
    theta = iterates(engine, 2)[1]
    expected = by_hand(build(name), inputs, targets, theta).mean(dim=0)
    actual = engine.mean_gradient(inputs, targets, theta)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    one = by_hand(build(name), inputs[:1], targets[:1], theta).squeeze(0)
    actual = engine.mean_gradient(inputs[:1], targets[:1], theta)
    torch.testing.assert_close(actual, one, rtol=1e-4, atol=1e-6)
    assert not engine.mean_gradient(inputs[:0], targets[:0], theta).any()


@every_engine
def test_micro_batches_without_the_group_of_each_example_are_refused(
    kind: type[GradientEngine],
) -> None:
    engine = kind(build("shared layer"), losses)
    clipping = Clipping(0.1, group_size=2)
    with pytest.raises(ValueError, match="group of each example"):
        engine.clipped_sum(*examples("shared layer", 4), clipping.at(*iterates(engine, 1)))


@every_engine
def test_the_number_of_weights_must_be_that_of_the_iterates(kind: type[GradientEngine]) -> None:
    engine = kind(build("shared layer"), losses)
    for clip_norm in (1.0, None):
        with pytest.raises(ValueError, match="zip"):
            engine.clipped_sum(
                *examples("shared layer", 2), Clipping(clip_norm).at(*iterates(engine, 2))
            )


@pytest.mark.parametrize("kind", [*ENGINES, OneByOne], ids=lambda kind: kind.name)
def test_differences_of_losses_are_clipped_one_by_one(kind: type[GradientEngine]) -> None:
    engine = kind(build("shared layer"), losses)
    inputs, targets = examples("shared layer", 7)
    theta = engine.flat.theta.clone()
    u = torch.randn(theta.shape, generator=torch.Generator().manual_seed(0))
    plan = Clipping(0.5, weights=(50.0, -50.0), of=LOSSES).at(theta + 0.01 * u, theta - 0.01 * u)
    up, down = (engine.per_example_losses(inputs, targets, p, Masks.first(7)) for p in plan.points)
    numbers = 50 * (up - down)
    assert numbers.abs().min() < 0.5 < numbers.abs().max()
    total = engine.clipped_sum(inputs, targets, plan)
    torch.testing.assert_close(total, numbers.clamp(-0.5, 0.5).sum(0), rtol=1e-4, atol=1e-4)
    slopes = by_hand(build("shared layer"), inputs, targets, theta) @ u
    torch.testing.assert_close(numbers.squeeze(1), slopes, rtol=0.05, atol=0.05)
    unclipped = engine.clipped_sum(inputs, targets, replace(plan, clip_norm=None))
    torch.testing.assert_close(unclipped, numbers.sum(0), rtol=1e-3, atol=1e-3)
    assert engine.clipped_sum(inputs[:0], targets[:0], plan).tolist() == [0.0]
