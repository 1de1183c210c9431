"""Blocks that are computed again in the backward pass: the same gradients, in less memory."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from clipnoise.core.clipping import Clipping
from clipnoise.data.base import DenseExamples
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.fields import Precision, parse, to_plain
from clipnoise.gradients.checks import check_model
from clipnoise.gradients.choice import choose_engine
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.engine import GradientEngine, OneByOne, VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.factored.recording import Recording
from clipnoise.models.base import model_class
from clipnoise.models.recomputed import recompute, recompute_blocks

TEXTS = Signature("tokens", (12,), 3, vocabulary=50)
SMALL = {"layers": 3, "width": 8, "heads": 2, "dropout": 0.2, "pretrained": False}
COUNT = 5
MASKS = Masks(11, torch.tensor([4, 0, 9, 2, 7]))


def bert(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = parse(model_class("tiny-bert"), {**SMALL, **options})
    return model.build(TEXTS, Path("weights")).train()


class Residual(nn.Module):
    """A block with two outputs, a shared input, and parameters outside layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.scale = nn.Linear(6, 6), nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor, *, shift: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden = functional.dropout(functional.gelu(self.inside(x)), 0.3, self.training)
        return x + self.scale * hidden + shift, hidden, None


class Nested(nn.Module):
    """A block of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.ModuleList([Residual(), Residual()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.inside:
            x = functional.dropout(block(x, shift=torch.ones(6))[0], 0.2, self.training)
        return x


class Residuals(nn.Module):
    """A block that is used twice, another one, and a block of blocks, with dropout around them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 6), nn.Linear(6, 3)
        self.blocks = nn.ModuleList([Residual(), Residual()])
        self.nested, self.dropout = Nested(), nn.Dropout(0.3)

    def forward(self, ids: Tensor) -> Tensor:
        shift = torch.linspace(0, 1, 6)
        x = self.dropout(self.first(ids / 50))
        for block in (self.blocks[0], self.blocks[1], self.blocks[0]):
            x, _, _ = block(x, shift=shift)
        outputs: Tensor = self.last(self.dropout(self.nested(x)))
        return outputs


def residuals(*, recomputes: bool = False) -> nn.Module:
    torch.manual_seed(0)
    network = Residuals()
    nested = network.nested
    for block in (*network.blocks, *nested.inside, nested) if recomputes else ():
        recompute(block)
    return network.train()


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "bert": (bert, lambda: bert(recompute=True)),
    "bert, lora": (lambda: bert(train="lora"), lambda: bert(train="lora", recompute=True)),
    "bert, last block": (
        lambda: bert(train="last-block"),
        lambda: bert(train="last-block", recompute=True),
    ),
    "own blocks": (residuals, lambda: residuals(recomputes=True)),
}
both = pytest.mark.parametrize(("plain", "again"), NETWORKS.values(), ids=NETWORKS)


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randint(1, 50, (COUNT, 12)), torch.randint(0, 3, (COUNT,))


def gradients(engine: GradientEngine, masks: Masks = MASKS) -> Tensor:
    return engine.per_example_gradients(*batch(), engine.flat.theta.clone(), masks)


@both
@pytest.mark.parametrize("kind", [FactoredEngine, VmapEngine, OneByOne])
def test_gradients_are_bit_for_bit_those_of_the_network_that_keeps_its_values(
    plain: Callable[[], nn.Module], again: Callable[[], nn.Module], kind: type[GradientEngine]
) -> None:
    kept, recomputed = kind(plain(), losses), kind(again(), losses)
    expected = gradients(kept)
    assert torch.equal(gradients(recomputed), expected)
    assert not torch.equal(gradients(kept, replace(MASKS, key=12)), expected)  # masks matter
    clipping = Clipping(
        clip_norm=0.5 * float(expected.norm(dim=1).median()),
        key=MASKS.key,
        examples=MASKS.examples,
    ).at(kept.flat.theta.clone())
    total = recomputed.clipped_sum(*batch(), clipping)
    assert torch.equal(total, kept.clipped_sum(*batch(), clipping))


@pytest.mark.parametrize("again", [again for _, again in NETWORKS.values()], ids=NETWORKS)
def test_masks_do_not_depend_on_who_else_is_in_the_batch(again: Callable[[], nn.Module]) -> None:
    engine, (x, y) = FactoredEngine(again(), losses), batch()
    theta, some = engine.flat.theta.clone(), torch.tensor([3, 1])
    alone = engine.per_example_gradients(x[some], y[some], theta, MASKS.reordered(some))
    torch.testing.assert_close(alone, gradients(engine)[some])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_blocks_run_twice_and_fewer_values_are_kept(precision: Precision) -> None:
    runs, kept = [], []
    for recomputes in (False, True):
        network: Any = bert(recompute=recomputes)
        calls = [0]

        def count(*_: object, calls: list[int] = calls) -> None:
            calls[0] += 1

        for block in network.inside.bert.encoder.layer:  # a hook of the block runs only once
            block.output.register_forward_pre_hook(count)
        engine = FactoredEngine(network, losses)
        engine.precision = precision
        found, held = saved(engine)
        runs.append((calls[0], found))
        kept.append(held)
    (once, expected), (twice, actual) = runs
    assert (once, twice) == (3, 6)
    assert torch.equal(actual, expected)
    assert kept[1] < kept[0] / 2


def saved(engine: GradientEngine) -> tuple[Tensor, int]:
    """Return per-example gradients, and how many bytes the backward pass found kept for it.

    What a recomputed block keeps inside is seen by its own hooks, until it is freed.
    """
    bytes_of: dict[int, int] = {}
    alive: list[Tensor] = []  # so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        bytes_of[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        return gradients(engine), sum(bytes_of.values())


def test_the_checks_and_the_choice_of_an_engine_take_such_a_network() -> None:
    network, (x, y) = bert(recompute=True), batch()
    check_model(network, x)
    choice = choose_engine(network.train(), losses, DenseExamples(x, y), batch=COUNT)
    assert choice.name == "factored"


def test_a_block_that_mixes_examples_gets_one_at_a_time_in_both_passes() -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(tuple(x.shape))
            return functional.gelu(x - x.mean(dim=0))

    seen: list[tuple[int, ...]] = []
    network = nn.Sequential(nn.Linear(12, 6), Mean(), nn.Linear(6, 3))
    recompute(network[1])
    engine, (x, y) = FactoredEngine(network, losses), batch()
    engine.per_example_gradients(x.float(), y, engine.flat.theta.clone())
    assert seen == [(1, 6), (1, 6)]


def test_a_trained_parameter_given_to_a_block_is_not_left_out_of_the_gradients() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift, self.last = nn.Parameter(torch.zeros(6)), nn.Linear(12, 6)
            self.block = Residual()

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.block(self.last(x / 50), shift=self.shift)[0]
            return outputs

    network, (x, y) = Shifted(), batch()
    recompute(network.block)
    choice = choose_engine(network, losses, DenseExamples(x.float(), y), batch=COUNT)
    assert choice.name == "vmap"
    assert "a trained parameter in the arguments of a recomputed block" in choice.reason


def test_outside_of_engines_and_in_copies_the_network_is_what_it_was() -> None:
    network, other, (x, _) = bert().eval(), bert(recompute=True).eval(), batch()
    assert torch.equal(other(x), network(x))
    assert other.state_dict().keys() == network.state_dict().keys()
    copied: Any = copy.deepcopy(other)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert torch.equal(other(x), network(x))
    assert not copied(x).any()


def test_the_option_enters_the_hash_only_where_it_is_set() -> None:
    kind = model_class("tiny-bert")
    assert "recompute" not in to_plain(parse(kind, SMALL))
    assert to_plain(parse(kind, {**SMALL, "recompute": True}))["recompute"] is True


def test_a_network_without_blocks_is_refused_by_the_option() -> None:
    with pytest.raises(UserError, match=r"model\.recompute: Linear has no blocks"):
        recompute_blocks(nn.Linear(2, 2))


@pytest.mark.quick(again=[NETWORKS["own blocks"][1]])
@pytest.mark.parametrize("again", [again for _, again in NETWORKS.values()], ids=NETWORKS)
def test_a_pass_leaves_nothing_behind(again: Callable[[], nn.Module]) -> None:
    gradients(FactoredEngine(again(), losses))
    gc.collect()
    assert not any(type(value) is Recording for value in gc.get_objects())
