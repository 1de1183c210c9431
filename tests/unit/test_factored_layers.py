"""The factored engine covers each layer family: its clipped sums equal those of vmap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from gradient_networks import CLASSES, losses
from torch import Tensor, nn
from torch.nn.functional import linear, unfold

from clipnoise.core.clip_rules import HardClip
from clipnoise.core.clipping import Clipping
from clipnoise.gradients.clipping import BLOCK
from clipnoise.gradients.engine import GradientEngine, OneByOne, VmapEngine
from clipnoise.gradients.factored import convolution, uses
from clipnoise.gradients.factored.convolution import FEW_CHANNELS, Geometry, Patches
from clipnoise.gradients.factored.embedding import Lookup
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.factored.linear import Outer
from clipnoise.gradients.factored.uses import Constant, Groups, ParameterGradient

VOCABULARY = 11


class Tokens(nn.Module):
    """A class token, added and multiplied parameters, and positions looked up for all at once."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(5, 6))
        self.gain, self.shift = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(1, 5, 1))
        self.positions, self.last = nn.Embedding(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.place
        x = x + self.positions(torch.arange(5).unsqueeze(0))
        x = torch.tanh(self.gain * x - self.shift)
        return self.last(x.mean(dim=1))


class MaskedTokens(nn.Module):
    """A head whose weight is the embedding's, with a bias of its own, over every position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mix = nn.Embedding(VOCABULARY, 6, padding_idx=0), nn.Linear(6, 6)
        self.bias = nn.Parameter(torch.randn(VOCABULARY))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.mix(self.embedding(x)))
        return linear(hidden, self.embedding.weight, self.bias).mean(dim=1)[:, :CLASSES]


class RowByRow(nn.Module):
    """A layer on the positions of all examples, one below the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.tanh(self.first(x.flatten(0, 1)))
        return self.last(rows.unflatten(0, x.shape[:2]).mean(dim=1))


class InPlace(nn.Module):
    """Activations that overwrite what layers return."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)
        self.second, self.last = nn.Conv2d(4, 4, 1), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.norm(torch.relu_(self.first(x))))
        return self.last(torch.relu_(self.second(x)).mean(dim=(2, 3)))


class Twice(nn.Module):
    """One convolution used at two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(2, 2, 3, padding=1), nn.AvgPool2d(2)
        self.last = nn.Linear(2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.tanh(self.conv(x)))
        return self.last(self.conv(x).mean(dim=(2, 3)))


class Memory(nn.Module):
    """Recurrent layers, of which the states and what is left at the end count."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, **options: Any) -> None:
        super().__init__()
        self.memory = kind(4, 3, **options)
        directions = 2 if self.memory.bidirectional else 1
        self.last = nn.Linear(3 * directions, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        first = 0 if self.memory.batch_first else 1
        states, end = self.memory(x.transpose(0, first))
        h, c = end if isinstance(end, tuple) else (end, end)
        mean = states.transpose(0, first).mean(dim=1)
        return self.last(mean) + h[-1] * c[0]  # as many as classes


class Attending(nn.Module):
    """Attention with a mask of pairs, one of keys, and weights that count."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, **options)
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        first = 0 if self.attention.batch_first else 1
        later = torch.ones(5, 5, dtype=torch.bool).triu(diagonal=1)
        hidden = (x[..., 0] > 1) & (torch.arange(5) > 0)
        rows = x.transpose(0, first)
        mixed, weights = self.attention(
            rows, rows, rows.tanh(), key_padding_mask=hidden, attn_mask=later
        )
        return self.last(mixed.transpose(0, first).mean(dim=1)) + weights[:, 2, :CLASSES]


def encoder() -> nn.Module:
    block = nn.TransformerEncoderLayer(6, 2, 8, dropout=0, batch_first=True)
    return averaged(block, features=6)


def bottom_frozen() -> nn.Module:
    layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, CLASSES))
    layers[0].requires_grad_(False)
    layers[2].weight.requires_grad_(False)
    return layers


def bias_only() -> nn.Module:
    layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    layers[0].weight.requires_grad_(False)
    return layers


def pooled(*layers: nn.Module, channels: int) -> nn.Module:
    """Let convolutions follow an average over all pixels and a linear layer."""
    flat = [nn.Tanh(), nn.Flatten(2), nn.AdaptiveAvgPool1d(1), nn.Flatten()]
    return nn.Sequential(*layers, *flat, nn.Linear(channels, CLASSES))


def memory_of_its_own() -> nn.Module:
    """Return an LSTM that is trained in what it makes of its own state alone."""
    network = Memory(batch_first=True)
    for name, parameter in network.memory.named_parameters():
        parameter.requires_grad_(requires_grad="_hh_" in name)
    return network


def averaged(*layers: nn.Module, features: int) -> nn.Module:
    """Let layers on sequences follow an average over positions and a linear layer."""
    flat = [nn.Flatten(1, -2), nn.AdaptiveAvgPool2d((1, features)), nn.Flatten()]
    return nn.Sequential(*layers, *flat, nn.Linear(features, CLASSES))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(9, CLASSES), (9,)),
    "linear without bias": (lambda: nn.Linear(9, CLASSES, bias=False), (9,)),
    "convolution without bias": (
        lambda: nn.Sequential(
            nn.Conv2d(2, CLASSES, 3, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        ),
        (2, 5, 5),
    ),
    "linear on sequences": (
        lambda: averaged(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6), features=6), (7, 4),
    ),
    "linear on grids": (lambda: averaged(nn.Linear(4, 6), features=6), (3, 2, 4)),
    "linear on the rows of all examples": (RowByRow, (5, 4)),
    "wide linear, few rows": (lambda: averaged(nn.Linear(40, 50), features=50), (2, 40)),
    "long rows": (lambda: nn.Linear(5000, CLASSES), (5000,)),
    "conv2d": (lambda: pooled(nn.Conv2d(2, 6, 3, padding=1), channels=6), (2, 6, 5)),
    "conv2d, stride, dilation": (
        lambda: pooled(nn.Conv2d(2, 6, (3, 2), (2, 1), (1, 2), (1, 2)), channels=6), (2, 8, 7),
    ),
    "conv2d, groups": (
        lambda: pooled(nn.Conv2d(4, 8, 3, padding="same", groups=2), channels=8), (4, 5, 5),
    ),
    "conv2d, circular": (
        lambda: pooled(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), channels=3),
        (2, 5, 5),
    ),
    "wide conv2d, few pixels": (
        lambda: pooled(nn.Conv2d(16, 24, 3, padding=1), channels=24), (16, 2, 3),
    ),
    "wide conv2d, stride, few pixels": (
        lambda: pooled(nn.Conv2d(16, 24, 3, 2, padding=1), channels=24), (16, 4, 4),
    ),
    "wide conv2d, one pixel": (
        lambda: pooled(nn.Conv2d(16, 24, 3, 2, padding=1), channels=24), (16, 1, 1),
    ),
    "conv1d": (lambda: pooled(nn.Conv1d(2, 6, 3, 2, 1, 2), channels=6), (2, 12)),
    "wide conv1d": (lambda: pooled(nn.Conv1d(16, 24, 3), channels=24), (16, 5)),
    "group norm": (lambda: pooled(nn.GroupNorm(2, 4), nn.Conv2d(4, 6, 1), channels=6), (4, 5, 5)),
    "group norm of features": (
        lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Linear(4, CLASSES)), (4,),
    ),
    "layer norm": (
        lambda: averaged(nn.LayerNorm((3, 4)), nn.Linear(4, 6), features=6), (2, 3, 4),
    ),
    "rms norm": (lambda: averaged(nn.RMSNorm(4), nn.Linear(4, 6), features=6), (7, 4)),
    "tokens and positions": (Tokens, (4, 6)),
    "tied weights over positions": (MaskedTokens, (5,)),
    "in-place activations": (InPlace, (2, 5, 5)),
    "a convolution used twice": (Twice, (2, 6, 6)),
    "lstm": (lambda: Memory(batch_first=True), (4, 4)),
    "lstm, input weights frozen": (memory_of_its_own, (4, 4)),
    "lstm without biases, time first": (lambda: Memory(bias=False), (5, 4)),
    "lstm of two layers": (lambda: Memory(num_layers=2, batch_first=True), (4, 4)),
    "lstm in both directions": (lambda: Memory(num_layers=2, bidirectional=True), (4, 4)),
    "gru": (lambda: Memory(nn.GRU, batch_first=True), (4, 4)),
    "gru without biases": (lambda: Memory(nn.GRU, bias=False), (5, 4)),
    "rnn of two layers": (lambda: Memory(nn.RNN, num_layers=2, batch_first=True), (4, 4)),
    "attention": (lambda: Attending(batch_first=True), (5, 6)),
    "attention, time first": (lambda: Attending(batch_first=False), (5, 6)),
    "attention to rows of its own": (
        lambda: Attending(batch_first=True, add_bias_kv=True, add_zero_attn=True), (5, 6),
    ),
    "transformer encoder layer": (encoder, (5, 6)),
    "frozen layers": (bottom_frozen, (4,)),
    "only biases": (bias_only, (4,)),
}  # fmt: skip
every_network = pytest.mark.parametrize("name", NETWORKS)

CLIPPINGS: dict[str, Callable[[Tensor], Clipping]] = {
    "plain": lambda u: Clipping(0.3),
    "scaled": lambda u: Clipping(0.3, scale=0.2 + u),
    "moved": lambda u: Clipping(0.3, offset=0.3 * (u - 0.5)),
    "scaled and moved": lambda u: Clipping(0.3, scale=0.2 + u, offset=0.3 * (u - 0.5)),
    "two iterates": lambda u: Clipping(0.3, weights=(0.9, -0.2)),
    "micro-batches": lambda u: Clipping(0.1, group_size=3),
    "per layer": lambda u: Clipping(0.1, (0.9, -0.2), 0.2 + u, rule=HardClip(per="layer")),
    "everything": lambda u: Clipping(0.1, (0.7, 0.3), 0.2 + u, 0.3 * (u - 0.5), group_size=3),
}
EXAMPLES = 9
MICRO_BATCHES = torch.tensor([0, 0, 0, 1, 2, 2, 2, 4, 4])


def build(name: str, dtype: torch.dtype) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return NETWORKS[name][0]().to(dtype)


def examples(name: str, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(1)
    targets = torch.randint(CLASSES, (count,), generator=draws)
    shape = (count, *NETWORKS[name][1])
    if name.startswith("tied"):
        return torch.randint(VOCABULARY, shape, generator=draws), targets
    return torch.randn(shape, generator=draws, dtype=torch.float64).to(dtype), targets


def reference(name: str, dtype: torch.dtype) -> GradientEngine:
    """Return vmap's engine, or for an LSTM, which vmap takes in no dtype but float32, another."""
    recurrent = name.startswith(("lstm", "gru", "rnn"))
    return (OneByOne if recurrent else VmapEngine)(build(name, dtype), losses)


def difference(name: str, clipping_name: str, dtype: torch.dtype, count: int = EXAMPLES) -> float:
    """Return how far the two engines' clipped sums are apart, relative to the larger entry."""
    factored = FactoredEngine(build(name, dtype), losses)
    expecting = reference(name, dtype)
    theta = factored.flat.theta.clone()
    draws = torch.Generator().manual_seed(2)
    u = torch.rand(theta.shape, generator=draws, dtype=torch.float64).to(dtype)
    clipping = CLIPPINGS[clipping_name](u)
    if clipping.group_size > 1:
        clipping = replace(clipping, groups=MICRO_BATCHES[:count])
    thetas = [theta, theta * (1 + 0.2 * u)][: len(clipping.weights)]
    inputs, targets = examples(name, count, dtype)
    expected = expecting.clipped_sum(inputs, targets, clipping.at(*thetas))
    assert expected.any()
    actual = factored.clipped_sum(inputs, targets, clipping.at(*thetas))
    assert actual.dtype == dtype
    return float((actual - expected).abs().max() / expected.abs().max())


@every_network
@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_clipped_sums_are_those_of_vmap(name: str, clipping: str) -> None:
    assert difference(name, clipping, torch.float64) < 1e-12
    assert difference(name, clipping, torch.float32) < 2e-5


@every_network
def test_a_batch_of_one_is_as_good_as_any(name: str) -> None:
    assert difference(name, "everything", torch.float64, count=1) < 1e-12


@every_network
def test_a_batch_size_equal_to_another_axis_is_not_confused_with_it(name: str) -> None:
    for count in (2, 4, 5, 6, 7):
        assert difference(name, "plain", torch.float64, count=count) < 1e-12


@every_network
def test_per_example_gradients_are_those_of_vmap(name: str) -> None:
    factored = FactoredEngine(build(name, torch.float64), losses)
    expecting = reference(name, torch.float64)
    theta = factored.flat.theta.clone()
    data = examples(name, 4, torch.float64)
    expected = expecting.per_example_gradients(*data, theta)
    torch.testing.assert_close(factored.per_example_gradients(*data, theta), expected)


def test_a_shared_weight_goes_by_inner_products_only_where_they_pay_for_each_use() -> None:
    """Scaled, the products of a decoder's rows would hold 24 × 24 × 4000 numbers an example."""
    tokens, width, length = 4000, 64, 12
    draws = torch.Generator().manual_seed(0)
    ids = torch.randint(tokens, (2, length), generator=draws)
    given, taken, into = (
        torch.randn(2, length, size, generator=draws) for size in (tokens, width, width)
    )
    looked_up, decoded = Lookup(ids, into, tokens), Outer(given, taken)
    assert looked_up.pays(2 * length, scaled=True, keeps=False)
    assert not decoded.pays(2 * length, scaled=True, keeps=False)
    both = ParameterGradient([looked_up, decoded], Groups.single(2))
    assert both._in_products(scaled=True, keeps=True) is None
    assert both._in_products(scaled=False, keeps=True) is not None


def test_an_offset_is_no_reason_to_form_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(use: Outer, piece: object) -> Tensor:
        raise AssertionError("formed")

    monkeypatch.setattr(Outer, "by_rows", refused)
    rows = Outer(torch.ones(4, 2, 5), torch.ones(4, 2, 30))  # a weight of twos
    moved = ParameterGradient([rows, Constant(torch.ones(5, 30))], Groups.single(4))
    values, _ = moved.squared_norms(None)
    assert values.tolist() == pytest.approx([9 * 5 * 30] * 4)


def test_a_convolution_goes_by_inner_products_on_small_images_alone() -> None:
    small, large = (
        Patches(
            torch.ones(2, 4, side, side),
            torch.ones(2, 8, side, side),
            torch.Size((8, 4, 3, 3)),
            Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1),
        )
        for side in (2, 32)
    )
    for keeps in (False, True):
        assert small.pays(small.rows, scaled=False, keeps=keeps)
        assert not large.pays(large.rows, scaled=False, keeps=keeps)
    assert (small.elements, large.elements) == (4 * (4 + 8), 1024 * (4 + 8))


GEOMETRIES = {
    "3×3, padded": Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1),
    "3×2, unpadded": Geometry((3, 2), (1, 1), (0, 0), (1, 1), 1),
    "5×5, strided": Geometry((5, 5), (2, 3), (2, 2), (1, 1), 1),
    "3×3, dilated": Geometry((3, 3), (1, 2), (2, 1), (2, 3), 1),
    "1×1": Geometry((1, 1), (1, 1), (0, 0), (1, 1), 1),
    "1×1, strided": Geometry((1, 1), (2, 2), (0, 0), (1, 1), 1),
}


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("memory", ["contiguous", "channels last", "transposed"])
def test_patches_are_those_of_unfold(name: str, memory: str) -> None:
    geometry = GEOMETRIES[name]
    images = torch.randn(2, 3, 9, 8, generator=torch.Generator().manual_seed(0))
    if memory == "channels last":
        images = images.contiguous(memory_format=torch.channels_last)
    elif memory == "transposed":
        images = images.mT
    expected = unfold(images, geometry.kernel, geometry.dilation, geometry.padding, geometry.stride)
    assert torch.equal(geometry.patches(images), expected)
    by_channel = expected.view(2, 3, -1, expected.shape[2])
    assert torch.equal(geometry.patches_as_rows(images), by_channel.permute(0, 3, 2, 1).flatten(2))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("channels", [2, 3 * FEW_CHANNELS])
@pytest.mark.parametrize("side", [1, 2, 4, 5])
@pytest.mark.parametrize("at_once", [1, 2**22])
def test_norms_and_sums_of_a_convolution_are_those_of_its_gradients(
    monkeypatch: pytest.MonkeyPatch, channels: int, scaled: bool, side: int, at_once: int
) -> None:
    """With few channels the patches are held; with many, their pixels are multiplied.

    Sums over small maps and scaled norms of the smallest take products of patches, in pieces.
    """
    monkeypatch.setattr(uses, "CACHED", min(uses.CACHED, at_once))
    monkeypatch.setattr(convolution, "HELD", min(convolution.HELD, at_once))
    monkeypatch.setattr(convolution, "FORMED", at_once)
    draws = torch.Generator().manual_seed(0)
    shape = torch.Size((5, channels, 3, 3))
    inputs, grad = (torch.randn(6, c, side, side, generator=draws) for c in (channels, 5))
    scale = torch.rand(shape, generator=draws) if scaled else None
    factors = torch.rand(6, generator=draws)
    patches = unfold(inputs.double(), 3, padding=1)
    gradients = (grad.double().flatten(2) @ patches.mT).view(6, *shape)
    if scale is not None:
        gradients = gradients * scale
    whole = ParameterGradient(
        [Patches(inputs, grad, shape, GEOMETRIES["3×3, padded"])], Groups.single(6)
    )
    values, slack = whole.squared_norms(scale)
    true = gradients.square().flatten(1).sum(dim=1)
    assert torch.allclose(values, true, rtol=1e-5)
    assert (values + (0 if slack is None else slack) >= true * (1 - 1e-6)).all()
    total = torch.zeros(shape)
    whole.add_weighted(factors, scale, total)
    expected = (gradients * factors.view(-1, 1, 1, 1, 1)).sum(dim=0)
    assert torch.allclose(total.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(300, 1000), (130, 1024), (70_000, 3), (3, 100_000), (9, 7)])
def test_bands_cover_a_parameter_and_all_but_the_last_are_whole_blocks(
    shape: tuple[int, int],
) -> None:
    bands = uses.bands_of(torch.Size(shape))
    assert [i for band in bands for i in range(shape[0])[band]] == list(range(shape[0]))
    assert all(band.stop * shape[1] % BLOCK == 0 for band in bands[:-1])


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("examples_of_a_group", [1, 2])
@pytest.mark.parametrize("points", [1, 2])
def test_norms_by_bands_are_to_the_bit_those_of_whole_gradients(
    monkeypatch: pytest.MonkeyPatch, points: int, examples_of_a_group: int, scaled: bool
) -> None:
    draws = torch.Generator().manual_seed(0)
    shape = torch.Size((192, 96, 3, 3))
    inputs = torch.randn(6, 96, 6, 6, generator=draws)
    grads = torch.randn(points, 6, 192, 6, 6, generator=draws)
    scale = torch.rand(shape, generator=draws) if scaled else None
    geometry = GEOMETRIES["3×3, padded"]
    groups = Groups(((examples_of_a_group, 6 // examples_of_a_group),))
    monkeypatch.setattr(Patches, "pays", lambda *_, **__: False)
    norms = []
    for band in (shape.numel(), 2**12):
        monkeypatch.setattr(uses, "BAND", band)
        assert (len(uses.bands_of(shape)) == 1) == (band == shape.numel())
        of_points = [Patches(inputs, grad, shape, geometry) for grad in grads]
        gradient = ParameterGradient([*of_points], groups)
        norms.append(gradient.squared_norms(scale).values)
        assert gradient.kept is None
    assert torch.equal(*norms)
    patches = unfold(inputs.double(), 3, padding=1)
    gradients = (grads.double().sum(dim=0).flatten(2) @ patches.mT).view(-1, *shape)
    if scale is not None:
        gradients *= scale
    of_groups = gradients.unflatten(0, (-1, examples_of_a_group)).sum(dim=1)
    assert torch.allclose(norms[0], of_groups.square().flatten(1).sum(dim=1), rtol=1e-5)


@pytest.mark.parametrize(("side", "examples_of_a_group"), [(1, 1), (2, 1), (1, 4)])
def test_scaled_gradients_of_few_pixels_are_never_formed_for_their_norms(
    monkeypatch: pytest.MonkeyPatch, side: int, examples_of_a_group: int
) -> None:
    def refused(use: Patches, piece: object) -> Tensor:
        raise AssertionError("formed")

    monkeypatch.setattr(Patches, "by_rows", refused)
    shape = torch.Size((8, 64, 3, 3))
    inputs, grad = torch.ones(8, 64, side, side), torch.ones(8, 8, side, side)
    use = Patches(inputs, grad, shape, GEOMETRIES["3×3, padded"])
    groups = Groups(((examples_of_a_group, 8 // examples_of_a_group),))
    values, _ = ParameterGradient([use], groups).squared_norms(torch.full(shape, 2.0))
    # With ones everywhere, an entry of the weight counts the pixels where it meets no padding.
    met = {1: [0, 1, 0], 2: [1, 2, 1]}[side]
    squares = sum((down * across) ** 2 for down in met for across in met)
    expected = 8 * 64 * 4 * squares * examples_of_a_group**2
    assert values.tolist() == pytest.approx([expected] * groups.count, rel=1e-5)


@pytest.mark.parametrize("scaled", [False, True])
def test_rounding_never_makes_the_norm_of_cancelling_rows_too_low(scaled: bool) -> None:
    """Successive rows of an example are almost opposite, so nearly all of its square cancels."""
    draws = torch.Generator().manual_seed(0)
    rows, right = torch.randn(50, 2, 30, generator=draws), torch.randn(50, 2, 40, generator=draws)
    left = torch.stack([rows, -rows * (1 + 1e-4)], dim=2).flatten(1, 2)
    right = right.repeat_interleave(2, dim=1)
    scale = torch.rand(30, 40, generator=draws) + 0.5 if scaled else None
    gradients = left.double().mT @ right.double()
    true = (gradients if scale is None else gradients * scale).square().sum(dim=(1, 2))
    values, slack = ParameterGradient([Outer(left, right)], Groups.single(50)).squared_norms(scale)
    assert slack is not None
    assert (values < true).any(), "rounding makes no norm too low here: the test shows nothing"
    assert (values + slack >= true).all()
