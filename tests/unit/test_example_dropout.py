"""Dropout: masks depend on the key, the example and the layer, and on nothing else in the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from clipnoise.core.clipping import Clipping
from clipnoise.data.base import DenseExamples, Examples
from clipnoise.errors import UserError
from clipnoise.gradients.checks import check_model
from clipnoise.gradients.dropout import ExampleDropout, Masks, _mixed
from clipnoise.gradients.engine import GradientEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.units import PhysicalBatch, PrivateUnits

KEY = 0x0123456789ABCDEF


def active(key: int, examples: Tensor) -> ExampleDropout:
    return Masks(key, examples).active()


def masks(examples: Tensor, shape: tuple[int, ...], rate: float = 0.3, key: int = KEY) -> Tensor:
    with active(key, examples):
        return functional.dropout(torch.ones(len(examples), *shape), rate) != 0


def test_a_mask_does_not_depend_on_who_else_is_in_the_batch() -> None:
    whole = masks(torch.arange(8), (5, 7))
    assert torch.equal(masks(torch.tensor([6, 2]), (5, 7)), whole[[6, 2]])


def test_padding_an_axis_leaves_the_masks_before_it_unchanged() -> None:
    short, long = masks(torch.arange(4), (3, 5, 7)), masks(torch.arange(4), (3, 9, 11))
    assert torch.equal(long[:, :, :5, :7], short)


def test_masks_under_vmap_are_those_of_the_batch() -> None:
    examples, values = torch.tensor([3, 9, 4]), torch.ones(3, 6, 2)

    def alone(value: Tensor, example: Tensor) -> Tensor:
        with active(KEY, example.unsqueeze(0)):
            return functional.dropout(value.unsqueeze(0), 0.3).squeeze(0)

    assert torch.equal(vmap(alone)(values, examples) != 0, masks(examples, (6, 2)))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_share_that_stays_is_one_minus_the_rate(rate: float) -> None:
    kept = masks(torch.arange(64), (200, 20), rate).double()
    deviation = (rate * (1 - rate) / kept.numel()) ** 0.5
    assert abs(float(kept.mean()) - (1 - rate)) < 5 * deviation
    assert float(kept.mean((1, 2)).std()) == pytest.approx(deviation * 8, rel=0.4)


def test_masks_of_examples_layers_steps_and_neighbouring_elements_are_uncorrelated() -> None:
    examples = torch.arange(64)
    with active(KEY, examples):
        first, second = (functional.dropout(torch.ones(64, 50, 40), 0.5) - 1 for _ in range(2))
    with active(KEY + 1, examples):
        other = functional.dropout(torch.ones(64, 50, 40), 0.5) - 1
    pairs = {
        "layers": (first, second),
        "keys": (first, other),
        "examples": (first[1:], first[:-1]),
        "rows": (first[:, 1:], first[:, :-1]),
        "columns": (first[:, :, 1:], first[:, :, :-1]),
    }
    for name, (a, b) in pairs.items():
        assert abs(float((a * b).mean())) < 5 / a.numel() ** 0.5, name


def test_the_mean_stays_and_a_rate_of_one_drops_everything() -> None:
    with active(KEY, torch.arange(2)):
        assert set(functional.dropout(torch.ones(2, 99), 0.75).unique().tolist()) == {0.0, 4.0}
        assert not functional.dropout(torch.ones(2, 99), 1.0).any()
        assert functional.dropout(torch.ones(2, 99), 0.5, training=False).all()


def test_whole_channels_drop_together() -> None:
    with active(KEY, torch.arange(16)):
        values = functional.dropout2d(torch.ones(16, 8, 3, 3), 0.5)
    assert torch.equal(values.amax((2, 3)), values.amin((2, 3)))
    assert 0 < float((values == 0).double().mean()) < 1


def test_attention_written_out_equals_the_fused_kernel_where_nothing_is_dropped() -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 6).unbind()
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    expected = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    with active(KEY, torch.arange(2)):
        for options in ({"is_causal": True}, {"attn_mask": mask}):
            taken = functional.scaled_dot_product_attention(q, k, v, dropout_p=1e-9, **options)  # type: ignore[arg-type]
            torch.testing.assert_close(taken, expected)


def test_attention_whose_heads_share_keys_equals_the_fused_kernel_where_nothing_is_dropped() -> (
    None
):
    q, (k, v) = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 2, 5, 6).unbind()
    expected = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    with active(KEY, torch.arange(2)):
        taken = functional.scaled_dot_product_attention(q, k, v, dropout_p=1e-9, enable_gqa=True)
    torch.testing.assert_close(taken, expected)


@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_that_drops_all_its_weights_leaves_the_last_bias(need_weights: bool) -> None:
    attention = nn.MultiheadAttention(4, 2, dropout=1.0, batch_first=True)
    nn.init.normal_(attention.out_proj.bias)
    with active(KEY, torch.arange(2)):
        mixed, _ = attention(*[torch.ones(2, 5, 4)] * 3, need_weights=need_weights)
    torch.testing.assert_close(mixed, attention.out_proj.bias.expand(2, 5, 4))


@pytest.mark.parametrize("axes", [2, 3])
def test_a_mask_that_examples_share_hides_the_same_from_each_under_vmap(axes: int) -> None:
    q, k, v = torch.randn(3, 3, 2, 5, 6).unbind()  # three examples, two heads
    mask = torch.ones((1, 5, 5)[3 - axes :], dtype=torch.bool).tril()

    def alone(q: Tensor, k: Tensor, v: Tensor, index: Tensor) -> Tensor:
        with Masks(KEY, torch.arange(3)).active(hidden=index):
            return functional.scaled_dot_product_attention(q, k, v, mask)

    expected = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(vmap(alone)(q, k, v, torch.arange(3)), expected)


def test_the_hash_is_lowbias32_with_shifts_that_copy_the_sign() -> None:
    def signed(word: int) -> int:
        return (word + 2**31) % 2**32 - 2**31

    def hashed(x: int) -> int:
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = signed((x ^ x >> shift) * factor)
        return x ^ x >> 16

    words = [0, 1, -1, 12345, -98765, 2**31 - 1, -(2**31)]
    assert _mixed(torch.tensor(words, dtype=torch.int32)).tolist() == [hashed(x) for x in words]


def test_the_global_stream_is_neither_read_nor_moved() -> None:
    before = torch.get_rng_state()
    masks(torch.arange(4), (9,))
    assert torch.equal(torch.get_rng_state(), before)


class Noisy(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.randn_like(inputs)


def test_a_layer_that_draws_from_the_global_stream_is_refused_by_name() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Sequential(Noisy()))
    with pytest.raises(UserError, match=r"2\.0 draws random numbers"):
        check_model(network, torch.ones(2, 3))
    check_model(network[:2], torch.ones(2, 3))


class Attentive(nn.Module):
    """An embedding, attention, an LSTM of two layers and dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True)
        self.memory = nn.LSTM(4, 4, 2, batch_first=True, dropout=0.3)
        self.last = nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        words = functional.dropout(self.words(ids), 0.3, self.training)
        mixed, _ = self.attention(words, words, words, need_weights=False)
        states, _ = self.memory(mixed)
        outputs: Tensor = self.last(states.mean(dim=1))
        return outputs


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


@pytest.fixture
def population() -> Examples:
    draws = torch.Generator().manual_seed(0)
    ids = torch.randint(9, (12, 5), generator=draws)
    return DenseExamples(ids, torch.randint(3, (12,), generator=draws))


def engine(kind: type[GradientEngine]) -> GradientEngine:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(Attentive().double(), losses)


def total(engine: GradientEngine, examples: Examples, batch: list[int], **options: Any) -> Tensor:
    theta = engine.flat.theta.clone()
    clipping = Clipping(clip_norm=0.1, key=KEY, weights=(0.7, 0.3))
    iterates, size = [theta, 1.1 * theta], options.get("size", 100)
    return PrivateUnits(engine, examples, PhysicalBatch(size)).clipped_sum(
        torch.tensor(batch), clipping.at(*iterates)
    )


@pytest.mark.parametrize("kind", [FactoredEngine])
def test_one_example_moves_the_sum_by_at_most_the_clip_norm(
    kind: type[GradientEngine], population: Examples
) -> None:
    with_it = total(engine(kind), population, list(range(12)))
    for gone in (0, 5, 11):
        rest = [i for i in range(12) if i != gone]
        moved = float((with_it - total(engine(kind), population, rest)).norm())
        assert 0 < moved <= 0.1 * (1 + 1e-9)


def test_physical_batches_do_not_change_the_masks(population: Examples) -> None:
    whole = total(engine(FactoredEngine), population, list(range(12)))
    for size in (1, 5):
        pieces = total(engine(FactoredEngine), population, list(range(12)), size=size)
        torch.testing.assert_close(pieces, whole, rtol=1e-9, atol=1e-12)


def test_plain_autograd_and_the_factored_engine_draw_the_same_masks(population: Examples) -> None:
    taken = engine(FactoredEngine)
    theta, masks = taken.flat.theta.clone(), Masks(KEY, torch.tensor([7, 2, 4]))
    inputs, targets = population.take(masks.examples)
    rows = taken.per_example_gradients(inputs, targets, theta, masks)
    summed = taken.summed_gradient(inputs, targets, theta, masks)
    torch.testing.assert_close(rows.sum(dim=0), summed, rtol=1e-9, atol=1e-12)


def test_what_one_example_computes_without_an_axis_has_masks_of_that_example() -> None:
    values, alone = torch.ones(50, 4), []
    for index in (1, 2):
        with active(KEY, torch.tensor([index])):
            alone.append(functional.dropout(values, 0.5))
    assert not torch.equal(*alone)

    def drop(index: Tensor) -> Tensor:
        with Masks(KEY, torch.tensor([1, 2])).active(hidden=index):
            return functional.dropout(values, 0.5)

    assert torch.equal(torch.vmap(drop)(torch.tensor([1, 2])), torch.stack(alone))


@pytest.mark.parametrize("draw", [torch.rand, lambda *shape: torch.empty(*shape).bernoulli_(0.3)])
def test_other_draws_follow_from_the_example_as_well(draw: Callable[..., Tensor]) -> None:
    with active(KEY, torch.arange(4)):
        together = draw(4, 20_000)
    with active(KEY, torch.tensor([2])):
        assert torch.equal(draw(1, 20_000)[0], together[2])
    assert float(together.mean()) == pytest.approx(0.5 if draw is torch.rand else 0.3, abs=0.01)
    assert 0 <= float(together.min()) <= float(together.max()) <= 1


def test_draws_from_a_generator_of_one_s_own_are_left_alone() -> None:
    def draw() -> list[Tensor]:
        own = torch.Generator().manual_seed(3)
        return [torch.rand(4, generator=own), torch.empty(4).bernoulli_(0.5, generator=own)]

    expected = draw()
    with active(KEY, torch.arange(4)):
        assert all(map(torch.equal, draw(), expected))
