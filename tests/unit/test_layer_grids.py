"""Layers in all their options: sums are those of one example at a time, by an engine that is named.

The options are those with which Opacus tests the per-example gradients of its layers, and more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from clipnoise.core.clipping import Clipping
from clipnoise.data.base import DenseExamples
from clipnoise.gradients.choice import choose_engine
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.engine import GradientEngine, OneByOne
from clipnoise.gradients.factored.engine import FactoredEngine

TOKENS, CLASSES, KEY = 12, 3, 7
LOSS = nn.CrossEntropyLoss(reduction="none")


class Adapter(nn.Module):
    """A layer that takes and returns something else than one tensor with the examples first."""

    def __init__(self, layer: nn.Module, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.run = layer, run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.layer, x)


Make = Callable[[], nn.Module]
Grid = Iterator[tuple[str, str, Make, tuple[int, ...]]]


def options(**choices: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
    for values in product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def named(kind: str, given: Mapping[str, Any]) -> str:
    return ", ".join([kind, *(f"{name} {value}" for name, value in given.items())])


def made(kind: Any, *arguments: Any, **given: Any) -> Make:
    def make() -> nn.Module:
        layer: nn.Module = kind(*arguments, **given)
        return layer

    return make


def convolutions() -> Grid:
    for (kind, size), given in product(
        ((nn.Conv1d, (9,)), (nn.Conv2d, (7, 6))),
        options(kernel_size=(2, 3), stride=(1, 2), padding=(0, 2, "same", "valid"),
                dilation=(1, 2), groups=(1, 2)),
    ):  # fmt: skip
        if given["padding"] != "same" or given["stride"] == 1:
            yield named(kind.__name__, given), "factored", made(kind, 2, 4, **given), (2, *size)
    for given in options(kernel_size=(2, (1, 2, 3)), stride=(1, (1, 2, 3)), groups=(1, 2),
                         padding=(0, (1, 2, 3), "valid", "same"),
                         dilation=(1, (1, 2, 2))):  # fmt: skip
        if given["padding"] != "same" or given["stride"] == 1:
            yield named("Conv3d", given), "factored", made(nn.Conv3d, 2, 4, **given), (2, 3, 5, 6)


def uneven_convolutions() -> Grid:
    """Yield options that differ between axes, and numbers of channels and groups."""
    for given in options(kernel_size=((3, 2), (1, 4)), stride=((2, 1), (1, 2)),
                         padding=((2, 0), (0, 1)), dilation=((1, 3), (2, 1))):  # fmt: skip
        yield named("Conv2d", given), "factored", made(nn.Conv2d, 2, 3, **given), (2, 7, 11)
    for given in options(kernel_size=((2, 3), (4, 1)), dilation=((1, 2), (3, 1)), groups=(1, 3),
                         padding=("same",)):  # fmt: skip
        yield named("Conv2d", given), "factored", made(nn.Conv2d, 3, 6, **given), (3, 5, 4)
    for kind, (into, out, groups), padding in product(
        (nn.Conv1d, nn.Conv2d),
        ((1, 2, 1), (3, 1, 1), (3, 6, 3), (32, 16, 1), (32, 64, 1), (32, 16, 16), (32, 64, 8)),
        ("same", 0),
    ):
        given = {"kernel_size": 2, "padding": padding, "groups": groups}
        size = (6,) if kind is nn.Conv1d else (4, 4)
        make, shape = made(kind, into, out, **given), (into, *size)
        yield named(f"{kind.__name__}, {into} to {out}", given), "factored", make, shape
    tall = {"kernel_size": (3, 1), "dilation": (3, 1), "bias": False}
    yield named("Conv2d", tall), "factored", made(nn.Conv2d, 1, 1, **tall), (1, 8, 1)
    for given in options(padding_mode=("circular", "reflect", "replicate"), padding=(1, "same")):
        yield named("Conv2d", given), "factored", made(nn.Conv2d, 2, 3, 2, **given), (2, 5, 4)
    kinds = {nn.ConvTranspose1d: (5,), nn.ConvTranspose2d: (4, 3), nn.ConvTranspose3d: (2, 3, 3)}
    for (kind, size), stride in product(kinds.items(), (1, 2)):
        name, make = f"{kind.__name__}, stride {stride}", made(kind, 2, 3, 2, stride)
        yield name, "factored", make, (2, *size)


def lookups() -> Grid:
    for given, shape in product(options(padding_idx=(None, 0)), ((6,), (3, 2), (3, 2, 2))):
        make = made(nn.Embedding, TOKENS, 5, **given)
        yield f"{named('Embedding', given)}, {shape}", "factored", make, shape
    for given in options(mode=("sum", "mean", "max"), padding_idx=(None, 0)):
        make = made(nn.EmbeddingBag, TOKENS, 5, **given)
        yield named("EmbeddingBag", given), "factored", make, (6,)
    for mode in ("sum", "mean"):

        def bags(layer: Any, x: Tensor) -> Tensor:
            starts = torch.tensor([0, 2, 5]) + torch.arange(0, x.numel(), 6).unsqueeze(1)
            return layer(x.flatten(), starts.flatten()).unflatten(0, (len(x), 3))

        make = made(lambda mode=mode: Adapter(nn.EmbeddingBag(TOKENS, 5, mode=mode), bags))
        yield f"EmbeddingBag, offsets, mode {mode}", "factored", make, (6,)


def linear_and_norms() -> Grid:
    shapes = ((5,), (3, 5), (2, 3, 5))
    for given, shape in product(options(bias=(True, False)), shapes):
        yield (
            f"{named('Linear', given)}, {shape}",
            "factored",
            made(nn.Linear, 5, 4, **given),
            shape,
        )
    for groups, shape in product((1, 2, 4), ((4,), (4, 5), (4, 3, 5))):
        if groups < 4 or len(shape) > 1:  # there would be nothing to normalise
            yield f"GroupNorm, {groups}, {shape}", "factored", made(nn.GroupNorm, groups, 4), shape
    for kind, shape, axes in product((nn.LayerNorm, nn.RMSNorm), shapes, (1, 2, 3)):
        if axes <= len(shape):
            name = f"{kind.__name__}, the last {axes} of {shape}"
            yield name, "factored", made(kind, shape[-axes:]), shape
    yield "LayerNorm without bias", "factored", made(nn.LayerNorm, 5, bias=False), (3, 5)
    kinds = {nn.InstanceNorm1d: (5,), nn.InstanceNorm2d: (3, 5), nn.InstanceNorm3d: (2, 3, 5)}
    for (kind, size), channels in product(kinds.items(), (1, 3)):
        make, shape = made(kind, channels, affine=True), (channels, *size)
        yield f"{kind.__name__}, {channels}", "factored", make, shape
    yield "PReLU", "factored", made(nn.PReLU, 3), (3, 5)
    yield "Bilinear", "factored", made(lambda: Adapter(nn.Bilinear(5, 5, 4), twice)), (5,)


def twice(layer: Any, x: Tensor) -> Tensor:
    outputs: Tensor = layer(x, x.tanh())
    return outputs


class SequenceBias(nn.Module):
    """A trained row after the others."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.row, self.axis = nn.Parameter(torch.randn(4)), 0 if batch_first else 1

    def forward(self, x: Tensor) -> Tensor:
        rows = x.transpose(0, self.axis)
        row = self.row.expand(1, len(x), 4).transpose(0, 1 - self.axis)
        return torch.cat([rows, row], dim=1 - self.axis).transpose(0, self.axis)


class Given(nn.Module):
    """A layer one of whose inputs is a trained parameter."""

    def __init__(
        self, layer: nn.Module, shape: tuple[int, ...], run: Callable[..., Tensor]
    ) -> None:
        super().__init__()
        self.layer, self.given, self.run = layer, nn.Parameter(torch.randn(shape)), run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.layer, self.given, x)


def trained_inputs() -> Grid:
    """Yield layers that are handed a parameter as it is: it has one row, as an example under vmap.

    One example at a time, it is the row of that example.
    """
    attention = made(nn.MultiheadAttention, 4, 2)
    runs: dict[str, tuple[Make, tuple[int, ...], Callable[..., Tensor]]] = {
        "Linear": (made(nn.Linear, 4, 4), (1, 4), lambda f, given, x: f(given) * x.sum(1)),
        "LayerNorm": (made(nn.LayerNorm, 4), (1, 4), lambda f, given, x: f(given) * x.sum(1)),
        "Conv1d": (made(nn.Conv1d, 2, 3, 2), (1, 2, 4), lambda f, given, x: f(given) * x[..., :3]),
        "GRUCell": (made(nn.GRUCell, 4, 3), (1, 3), lambda f, given, x: f(x[:, 0], given)),
        "RNN": (
            made(nn.RNN, 4, 3, batch_first=True), (1, 1, 3), lambda f, given, x: f(x, given)[0]
        ),
        "LSTM": (
            made(nn.LSTM, 4, 3, batch_first=True),
            (1, 1, 3),
            lambda f, given, x: f(x, (torch.zeros(1, 1, 3, dtype=x.dtype), given))[0],
        ),
        "LSTMCell": (
            made(nn.LSTMCell, 4, 3),
            (1, 3),
            lambda f, given, x: f(x[:, 0], (torch.zeros(1, 3, dtype=x.dtype), given))[0],
        ),
        "attention to pairs": (
            attention, (3, 3), lambda f, given, x: f(*[x.transpose(0, 1)] * 3, attn_mask=given)[0]
        ),
        "attention by a query": (
            attention, (1, 1, 4), lambda f, given, x: f(given, *[x.transpose(0, 1)] * 2)[0]
        ),
        "attention to a key": (
            attention, (3, 1, 4), lambda f, given, x: f(x.transpose(0, 1), given, given)[0]
        ),
    }  # fmt: skip
    for name, (layer, shape, run) in runs.items():

        def make(layer: Make = layer, shape: Any = shape, run: Any = run) -> nn.Module:
            return Given(layer(), shape, lambda *given: run(*given).reshape(len(given[2]), -1))

        yield f"trained input of {name}", "factored", make, (3, 4)


def computed_weights() -> Grid:
    for batch_first in (True, False):
        make = made(SequenceBias, batch_first=batch_first)
        yield f"sequence bias, batch_first {batch_first}", "factored", make, (3, 4)
    layers: dict[str, tuple[Make, tuple[int, ...]]] = {
        "Linear": (made(nn.Linear, 5, 4), (3, 5)),
        "Conv1d": (made(nn.Conv1d, 2, 3, 3), (2, 6)),
        "Conv2d": (made(nn.Conv2d, 2, 3, 2, padding="same"), (2, 4, 4)),
    }
    for name, (make, shape) in layers.items():
        yield f"{name} of normed weights", "factored", made(lambda m=make: weight_norm(m())), shape


RECURRENT = (nn.RNN, nn.GRU, nn.LSTM)


def states_of(layer: Any, x: Tensor) -> Tensor:
    """Return all states, with those left at the end as further rows."""
    first = 0 if layer.batch_first else 1
    states, ends = layer(x.transpose(0, first))
    ends = torch.cat(ends) if isinstance(ends, tuple) else ends
    return torch.cat([states.transpose(0, first).flatten(1), ends.transpose(0, 1).flatten(1)], 1)


def recurrent() -> Grid:
    for kind, given in product(
        RECURRENT,
        options(num_layers=(1, 2), bias=(True, False), batch_first=(True, False),
                bidirectional=(True, False)),
    ):  # fmt: skip
        make = made(lambda kind=kind, given=given: Adapter(kind(4, 3, **given), states_of))
        yield named(kind.__name__, given), "factored", make, (3, 4)
    more = product(RECURRENT, options(dropout=(0.4,), batch_first=(True, False)))
    for kind, given in (*more, (nn.RNN, {"nonlinearity": "relu"})):
        layer = made(kind, 4, 3, 2, bidirectional=True, **given)
        make = made(lambda layer=layer: Adapter(layer(), states_of))
        yield named(kind.__name__, given), "factored", make, (3, 4)
    for kind, frozen in product(RECURRENT, ("weight_ih", "weight_hh", "bias_ih", "_hh", "_ih")):

        def partly(kind: Any = kind, frozen: str = frozen) -> nn.Module:
            layer = kind(4, 3, batch_first=True)
            for name, parameter in layer.named_parameters():
                parameter.requires_grad_(frozen not in name)
            return Adapter(layer, states_of)

        yield f"{kind.__name__}, {frozen} frozen", "factored", partly, (3, 4)
    for kind in RECURRENT:
        layer = made(kind, 4, 3, 2, batch_first=True, dropout=0.4)
        make = made(lambda layer=layer: Adapter(layer(), continued))
        yield f"{kind.__name__}, two layers, run twice", "factored", make, (3, 4)
    for kind, given in product((nn.RNNCell, nn.GRUCell, nn.LSTMCell), options(bias=(True, False))):
        make = made(lambda kind=kind, given=given: Adapter(kind(4, 3, **given), by_cell))
        yield named(kind.__name__, given), "factored", make, (3, 4)
    relu = made(nn.RNNCell, 4, 3, nonlinearity="relu")
    yield "RNNCell, relu", "factored", made(lambda: Adapter(relu(), by_cell)), (3, 4)
    for kind in (*RECURRENT, nn.GRUCell, nn.LSTMCell):
        yield f"{kind.__name__}, learned start", "factored", made(LearnedStart, kind), (3, 4)
    projected = made(nn.LSTM, 4, 3, proj_size=2, batch_first=True)
    make = made(lambda: Adapter(projected(), lambda layer, x: layer(x)[0]))
    yield "LSTM, projected", "one by one", make, (3, 4)


class LearnedStart(nn.Module):
    """A recurrent layer or cell that starts from a trained state."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell = issubclass(kind, nn.RNNCellBase)
        self.layer = kind(4, 3) if self.cell else kind(4, 3, batch_first=True)
        self.start = nn.Parameter(torch.randn(2, 1, 3))

    def forward(self, x: Tensor) -> Tensor:
        h, c = (one if self.cell else one[None] for one in self.start.expand(-1, len(x), -1))
        state = (h, c) if isinstance(self.layer, nn.LSTM | nn.LSTMCell) else h + c
        return by_cell(self.layer, x, state) if self.cell else self.layer(x, state)[0]


def continued(layer: Any, x: Tensor) -> Tensor:
    """Run a layer again on what it returned, from the state it ended in."""
    states, end = layer(x)
    states, _ = layer(torch.cat([states, x[..., :1]], dim=2), end)
    return states


def by_cell(cell: Any, x: Tensor, state: Any = None) -> Tensor:
    for step in x.unbind(1):
        state = cell(step, state)
    outputs: Any = state
    return torch.cat(outputs, dim=1) if isinstance(outputs, tuple) else outputs


def packed_sequences() -> Grid:
    deep = {"num_layers": 2, "bidirectional": True, "bias": False}
    for kind, given, more in product(
        RECURRENT, ({}, deep), options(batch_first=(True, False), enforce_sorted=(True, False))
    ):
        name, make = named(f"packed {kind.__name__}", given | more), packed(kind, **given, **more)
        yield name, "one by one", make, (3, 4)


def packed(kind: Any, *, enforce_sorted: bool, **given: Any) -> Make:
    def run(layer: Any, x: Tensor) -> Tensor:
        lengths = 1 + (x[:, 0, 0] > 0).long() + (x[:, 0, 1] > 0)
        rows = x if layer.batch_first else x.transpose(0, 1)
        rows = pack_padded_sequence(rows, lengths, layer.batch_first, enforce_sorted)
        return pad_packed_sequence(layer(rows)[0], batch_first=True, total_length=3)[0]

    return lambda: Adapter(kind(4, 3, **given), run)


def attention() -> Grid:
    for given, (heads, batch_first) in product(
        options(bias=(True, False), add_bias_kv=(True, False), add_zero_attn=(True, False),
                widths=((None, None), (3, 5))),
        ((1, True), (2, False)),
    ):  # fmt: skip
        given |= {"num_heads": heads, "batch_first": batch_first}
        yield named("MultiheadAttention", given), "factored", attending(**given), (5, 6)
    for given in options(add_bias_kv=(True, False), add_zero_attn=(True, False),
                         widths=((None, None), (3, 5)), batch_first=(True, False)):  # fmt: skip
        make = attending(dropout=0.4, num_heads=2, **given)
        yield named("MultiheadAttention, dropout", given), "factored", make, (5, 6)


def attending(*, widths: tuple[int | None, int | None], num_heads: int, **given: Any) -> Make:
    """Let layers of two heads hide keys and pairs, and those of one return no weights."""

    def run(layer: Any, x: Tensor) -> Tensor:
        first = 0 if layer.batch_first else 1
        sizes = (4, widths[0] or 4, widths[1] or 4)
        rows = [x[..., :size].transpose(0, first) for size in sizes]
        if layer.num_heads == 1:
            return layer(*rows, need_weights=False)[0].transpose(0, first)
        hidden = (x[..., 0] > 1) & (torch.arange(5) > 0)
        later = torch.ones(5, 5, dtype=torch.bool).triu(diagonal=1)
        mixed, weights = layer(*rows, key_padding_mask=hidden, attn_mask=later)
        return torch.cat([mixed.transpose(0, first), weights], dim=2)

    def make() -> nn.Module:
        layer = nn.MultiheadAttention(4, num_heads, kdim=widths[0], vdim=widths[1], **given)
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if name.endswith("bias"):  # these start at zero
                    parameter.copy_(torch.randn_like(parameter))
        return Adapter(layer, run)

    return make


CASES = {
    name: rest
    for grid in (
        convolutions,
        uneven_convolutions,
        lookups,
        linear_and_norms,
        trained_inputs,
        computed_weights,
        recurrent,
        packed_sequences,
        attention,
    )
    for name, *rest in grid()
}
# Of each layer and engine, one set of options stands for the others in `make test`.
ONE_OF_EACH = {(name.partition(",")[0], engine): name for name, (engine, *_) in CASES.items()}


def data(name: str, shape: tuple[int, ...], count: int) -> DenseExamples:
    draws = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, *shape, generator=draws, dtype=torch.float64)
    if name.startswith("Embedding"):
        inputs = (inputs.abs() * 4).long().clamp(max=TOKENS - 1)
    return DenseExamples(inputs, torch.arange(count) % CLASSES)


def network(make: Make, example: Tensor, *, lowest: bool = False) -> nn.Module:
    """Put a layer between two others, of which the first is frozen where it is the lowest."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        below: list[nn.Module] = []
        if example.is_floating_point():
            width = example.shape[-1]
            below = [nn.Linear(width, width).requires_grad_(not lowest), nn.Tanh()]
        above = [nn.Tanh(), nn.Flatten(), nn.LazyLinear(CLASSES)]
        whole = nn.Sequential(*below, make(), *above).double().train()
        with torch.no_grad():
            whole(example)
        return whole


def compare(engine: GradientEngine, reference: GradientEngine, examples: DenseExamples) -> None:
    """Compare per-example gradients, and sums of 1, 3 and 8 examples and of parts, reordered."""
    inputs, targets = examples.inputs, examples.targets
    theta, every = engine.flat.theta.clone(), Masks(KEY, torch.arange(len(inputs)))
    gradients = reference.per_example_gradients(inputs, targets, theta, every)
    assert gradients.any(dim=1).all()
    order = torch.tensor([6, 0, 3, 7, 1, 5, 2, 4])
    order = order[order < len(inputs)]
    taken = engine.per_example_gradients(inputs[order], targets[order], theta, Masks(KEY, order))
    torch.testing.assert_close(taken, gradients[order])
    median = float(gradients.norm(dim=1).median())
    scale = torch.linspace(0.5, 2, len(theta), dtype=theta.dtype)
    for clipping in (Clipping(median, key=KEY), Clipping(median, scale=scale, key=KEY)):
        sums = {}
        some = (order[:1], order[:3], order[3:], order)
        for rows in {len(rows): rows for rows in some if len(rows)}.values():
            of_rows = replace(clipping.at(theta), examples=rows)
            sums[len(rows)] = engine.clipped_sum(inputs[rows], targets[rows], of_rows)
            expected = clipped_sum([gradients[rows]], clipping)
            torch.testing.assert_close(sums[len(rows)], expected, rtol=1e-9, atol=1e-11)
        if len(order) == 8:
            torch.testing.assert_close(sums[3] + sums[5], sums[8], rtol=1e-9, atol=1e-11)


@pytest.mark.quick(name=[*ONE_OF_EACH.values()])
@pytest.mark.parametrize("name", CASES, ids=list(CASES))
def test_every_sum_is_that_of_one_example_at_a_time(name: str) -> None:
    """The layer stands above a trained one, and then, for fewer examples, is the lowest trained."""
    expected_engine, make, shape = CASES[name]
    examples = data(name, shape, 8)
    alone = examples.inputs[:1]
    choice = choose_engine(network(make, alone), LOSS, examples)
    assert choice.name == expected_engine, choice.reason
    compare(choice.engine, OneByOne(network(make, alone), LOSS), examples)
    if expected_engine == "factored":
        few = DenseExamples(examples.inputs[:2], examples.targets[:2])
        kinds = (FactoredEngine, OneByOne)
        compare(*(kind(network(make, alone, lowest=True), LOSS) for kind in kinds), few)
