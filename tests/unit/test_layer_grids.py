"""Layers in all their options: sums are those of one example at a time, by an engine that is named.

The options are those with which Opacus tests the per-example gradients of its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from clipnoise.core.clipping import Clipping
from clipnoise.data.base import DenseExamples
from clipnoise.gradients.choice import choose_engine
from clipnoise.gradients.engine import OneByOne

TOKENS = 12


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    flat = outputs.flatten(1)
    weights = torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype)
    return ((flat * weights).sum(dim=1) - targets).square()


class Adapter(nn.Module):
    """A layer that takes and returns something else than one tensor with the examples first."""

    def __init__(self, layer: nn.Module, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.run = layer, run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.layer, x)


Grid = Iterator[tuple[str, str, Callable[[], nn.Module], tuple[int, ...]]]


def options(**choices: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
    for values in product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def named(kind: str, given: Mapping[str, Any]) -> str:
    return ", ".join([kind, *(f"{name} {value}" for name, value in given.items())])


def convolutions() -> Grid:
    for (kind, size), given in product(
        ((nn.Conv1d, (9,)), (nn.Conv2d, (7, 6))),
        options(kernel_size=(2, 3), stride=(1, 2), padding=(0, 2, "same", "valid"),
                dilation=(1, 2), groups=(1, 2)),
    ):  # fmt: skip
        if given["padding"] == "same" and given["stride"] != 1:
            continue
        uneven = given["padding"] == "same" and given["kernel_size"] == 2 and given["dilation"] == 1
        make, shape = _made(kind, 2, 4, **given), (2, *size)
        yield named(kind.__name__, given), "vmap" if uneven else "factored", make, shape
    for given in options(kernel_size=(2, (1, 2, 3)), stride=(1, (1, 2, 3)),
                         padding=(0, (1, 2, 3), "valid"), groups=(1, 2)):  # fmt: skip
        yield named("Conv3d", given), "factored", _made(nn.Conv3d, 2, 4, **given), (2, 3, 4, 5)


def _made(kind: Any, *arguments: Any, **given: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        layer: nn.Module = kind(*arguments, **given)
        return layer

    return make


def lookups() -> Grid:
    for given in options(padding_idx=(None, 0)):
        yield named("Embedding", given), "factored", _made(nn.Embedding, TOKENS, 5, **given), (6,)
    for given in options(mode=("sum", "mean", "max")):
        make = _made(nn.EmbeddingBag, TOKENS, 5, **given)
        yield named("EmbeddingBag", given), "factored", make, (6,)


def linear_and_norms() -> Grid:
    for given, shape in product(options(bias=(True, False)), ((5,), (3, 5), (2, 3, 5))):
        yield f"Linear, {given}, {shape}", "factored", _made(nn.Linear, 5, 4, **given), shape
    for groups, shape in product((1, 2, 4), ((4,), (4, 5), (4, 3, 5))):
        if groups == 4 and len(shape) == 1:  # nothing to normalise
            continue
        yield f"GroupNorm, {groups}, {shape}", "factored", _made(nn.GroupNorm, groups, 4), shape
    for kind, last in product((nn.LayerNorm, nn.RMSNorm), ((5,), (3, 5), (2, 3, 5))):
        shape = (2, 3, 5)
        yield f"{kind.__name__}, {last}", "factored", _made(kind, last), shape
    kinds = {nn.InstanceNorm1d: (5,), nn.InstanceNorm2d: (3, 5), nn.InstanceNorm3d: (2, 3, 5)}
    for kind, size in kinds.items():
        yield kind.__name__, "factored", _made(kind, 4, affine=True), (4, *size)


def recurrent() -> Grid:
    kinds = {nn.RNN: "one by one", nn.GRU: "one by one", nn.LSTM: "factored"}
    for (kind, engine), given in product(
        kinds.items(),
        options(num_layers=(1, 2), bias=(True, False), batch_first=(True, False),
                bidirectional=(True, False)),
    ):  # fmt: skip

        def run(layer: Any, x: Tensor) -> Tensor:
            if layer.batch_first:
                return layer(x)[0]
            return layer(x.transpose(0, 1))[0].transpose(0, 1)

        def make(kind: Any = kind, given: Any = given) -> nn.Module:
            return Adapter(kind(4, 3, **given), run)

        yield named(kind.__name__, given), engine, make, (3, 4)
    for kind, given in product(kinds, options(batch_first=(True, False), enforce_sorted=(False,))):
        yield named(f"packed {kind.__name__}", given), "one by one", _packed(kind, **given), (3, 4)


def _packed(kind: Any, *, batch_first: bool, enforce_sorted: bool) -> Callable[[], nn.Module]:
    def run(layer: Any, x: Tensor) -> Tensor:
        lengths = 1 + (x[:, 0, 0] > 0).long()
        rows = x if batch_first else x.transpose(0, 1)
        packed = pack_padded_sequence(rows, lengths, batch_first, enforce_sorted)
        return pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=3)[0]

    return lambda: Adapter(kind(4, 3, batch_first=batch_first), run)


def attention() -> Grid:
    for given in options(bias=(True, False), add_bias_kv=(True, False),
                         add_zero_attn=(True, False), kdim=(None, 6), batch_first=(True, False),
                         num_heads=(1, 2)):  # fmt: skip
        odd = given["add_bias_kv"] or given["add_zero_attn"] or given["kdim"]

        def run(layer: Any, x: Tensor) -> Tensor:
            query, other = x[..., :4], x[..., : layer.kdim]
            if layer.batch_first:
                return layer(query, other, other)[0]
            rows = (part.transpose(0, 1) for part in (query, other, other))
            return layer(*rows)[0].transpose(0, 1)

        def make(given: Any = given) -> nn.Module:
            return Adapter(nn.MultiheadAttention(4, vdim=given["kdim"], **given), run)

        engine = "vmap" if odd else "factored"
        yield named("MultiheadAttention", given), engine, make, (5, 6)


CASES = {
    name: rest
    for grid in (convolutions, lookups, linear_and_norms, recurrent, attention)
    for name, *rest in grid()
}


def data(name: str, shape: tuple[int, ...], count: int) -> DenseExamples:
    draws = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, *shape, generator=draws, dtype=torch.float64)
    if name.startswith("Embedding"):
        inputs = (inputs.abs() * 4).long().clamp(max=TOKENS - 1)
    return DenseExamples(inputs, torch.randn(count, generator=draws, dtype=torch.float64))


@pytest.mark.parametrize("name", CASES)
def test_sums_are_those_of_one_example_at_a_time(name: str) -> None:
    expected_engine, make, shape = CASES[name]
    examples = data(name, shape, 8)

    def build() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return make().double().train()

    choice = choose_engine(build(), losses, examples)
    assert choice.name == expected_engine, choice.reason
    engine, reference = choice.engine, OneByOne(build(), losses)
    theta = engine.flat.theta.clone()
    scale = torch.linspace(0.5, 2, len(theta), dtype=theta.dtype)
    for count, given in ((1, None), (3, scale), (8, None)):
        clipping = Clipping(0.3, scale=given).at(theta)
        order = torch.arange(count).flip(0)
        sums = [
            one.clipped_sum(examples.inputs[rows], examples.targets[rows], clipping)
            for one, rows in ((engine, order), (reference, order.flip(0)))
        ]
        torch.testing.assert_close(*sums, rtol=1e-9, atol=1e-12)
    rows = examples.inputs[:3], examples.targets[:3], theta
    torch.testing.assert_close(
        engine.per_example_gradients(*rows), reference.per_example_gradients(*rows)
    )
