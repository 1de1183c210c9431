"""Poisson sampling: each example with probability q, independently, reproducible from a seed.

Statistics are held to bounds that a right sampler breaks with probability below 1e-6; seeds are
fixed, so a test that passes once passes always.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch

from clipnoise.privacy.samplers import (
    BMinSepSampler,
    CyclicPoissonSampler,
    PoissonSampler,
    Sampler,
)
from clipnoise.seeds import generator


def sampler(examples: int, rate: float, seed: int = 0) -> PoissonSampler:
    return PoissonSampler(examples, rate, generator("sampling", seed))


def inclusions(examples: int, rate: float, steps: int) -> torch.Tensor:
    """Return which examples took part in which step, (steps, examples)."""
    stream = sampler(examples, rate)
    taken = torch.zeros(steps, examples, dtype=torch.float64)
    for row in taken:
        row[stream.sample()] = 1
    return taken


def test_batches_are_distinct_sorted_int64_indices() -> None:
    batch = sampler(1_000, 0.3).sample()
    assert batch.dtype == torch.int64
    assert batch.ndim == 1
    assert (batch[1:] > batch[:-1]).all()
    assert batch[0] >= 0
    assert batch[-1] < 1_000


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.7])
def test_every_example_is_taken_at_the_sampling_rate(rate: float) -> None:
    steps, examples = 4_000, 50
    frequency = inclusions(examples, rate, steps).mean(dim=0)
    deviation = math.sqrt(rate * (1 - rate) / steps)
    assert (frequency - rate).abs().max() < 6 * deviation


def test_examples_and_steps_are_independent() -> None:
    rate = 0.3
    taken = (inclusions(20, rate, 5_000) - rate) / math.sqrt(rate * (1 - rate))
    between_examples = taken.T @ taken / len(taken) - torch.eye(20)
    between_steps = (taken[1:] * taken[:-1]).mean(dim=0)
    assert between_examples.abs().max() < 6 / math.sqrt(5_000) + 0.02
    assert between_steps.abs().max() < 6 / math.sqrt(5_000)


def test_batch_size_varies_as_the_binomial() -> None:
    sizes = inclusions(200, 0.1, 5_000).sum(dim=1)
    mean, variance = 20.0, 200 * 0.1 * 0.9
    assert abs(float(sizes.mean()) - mean) < 6 * math.sqrt(variance / 5_000)
    assert abs(float(sizes.var()) / variance - 1) < 6 * math.sqrt(2 / 5_000)


@pytest.mark.long
def test_rare_rates_are_met_without_the_grid_of_float32() -> None:
    # 0.15 examples are expected. float32 uniforms are exactly 0 with probability 6e-8: 9 examples.
    stream = sampler(1_000_000, 1e-9)
    assert sum(len(stream.sample()) for _ in range(150)) <= 4


def test_empty_batches_are_yielded() -> None:
    stream = sampler(10, 0.01)
    sizes = [len(stream.sample()) for _ in range(200)]
    assert sizes.count(0) > 100
    empty = PoissonSampler(0, 0.5, generator("sampling", 0)).sample()
    assert (empty.shape, empty.dtype) == ((0,), torch.int64)


def test_rate_one_takes_all_and_rate_zero_none() -> None:
    assert torch.equal(sampler(7, 1.0).sample(), torch.arange(7))
    assert len(sampler(7, 0.0).sample()) == 0


@pytest.mark.parametrize(
    "stream",
    [PoissonSampler, partial(CyclicPoissonSampler, groups=1), partial(BMinSepSampler, groups=1)],
)
def test_of_all_numbers_that_can_be_drawn_a_share_of_exactly_q_takes_an_example(
    stream: Callable[..., Sampler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They begin with 0, so one that equals q takes none."""
    drawn = stream(examples=8, sampling_rate=0.5, generator=None)
    monkeypatch.setattr(drawn, "uniform", lambda count: torch.arange(count) / count)
    assert drawn.sample().tolist() == [0, 1, 2, 3]


def test_a_seed_gives_the_same_batches_and_another_seed_others() -> None:
    first, again, other = sampler(500, 0.1, 3), sampler(500, 0.1, 3), sampler(500, 0.1, 4)
    torch.rand(1)  # the global stream has no part in it
    batches = [first.sample() for _ in range(5)]
    assert all(torch.equal(batch, again.sample()) for batch in batches)
    assert not all(torch.equal(batch, other.sample()) for batch in batches)


def test_a_restored_stream_continues_bit_for_bit() -> None:
    stream = sampler(500, 0.1)
    for _ in range(3):
        stream.sample()
    saved = {name: value.clone() for name, value in stream.get_state().items()}
    expected = [stream.sample() for _ in range(4)]
    resumed = sampler(500, 0.1, seed=99)
    resumed.set_state(saved)
    assert all(torch.equal(batch, resumed.sample()) for batch in expected)


@pytest.mark.parametrize(("examples", "rate"), [(-1, 0.5), (5, -0.1), (5, 1.1), (5, math.nan)])
def test_impossible_arguments_are_refused(examples: int, rate: float) -> None:
    with pytest.raises(ValueError, match=r"examples|sampling_rate"):
        sampler(examples, rate)
