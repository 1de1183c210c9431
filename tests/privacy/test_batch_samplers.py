"""Samplers beside Poisson: what they draw, what they cost, and what a run with them may claim."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from clipnoise.errors import UserError
from clipnoise.privacy.accountants import ACCOUNTANTS, epsilon
from clipnoise.privacy.binding import claim
from clipnoise.privacy.fixed_size import (
    FixedSizeSampler,
    TruncatedPoissonSampler,
    fixed_size_epsilon,
    truncation_delta,
)
from clipnoise.privacy.participation import gaussian_epsilon, participation
from clipnoise.privacy.shuffling import ShuffledSampler


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def samplers() -> list[Any]:
    return [
        FixedSizeSampler(50, 8, draw()),
        TruncatedPoissonSampler(50, 0.2, 8, draw()),
        ShuffledSampler(50, 8, draw()),
    ]


def test_fixed_size_batches_have_their_size_and_each_example_its_chance() -> None:
    sampler, counts = FixedSizeSampler(20, 5, draw()), torch.zeros(20)
    for _ in range(2000):
        batch = sampler.sample()
        assert len(set(batch.tolist())) == 5
        counts[batch] += 1
    assert (counts - 500).abs().max() < 5 * math.sqrt(2000 * 0.25 * 0.75)


def test_truncated_batches_are_poisson_up_to_their_largest_size() -> None:
    sampler = TruncatedPoissonSampler(200, 0.1, 22, draw())
    sizes = torch.tensor([len(sampler.sample()) for _ in range(2000)])
    assert sizes.max() == 22
    share = float((sizes == 22).double().mean())
    from scipy.stats import binom

    expected = binom.sf(21, 200, 0.1)
    assert abs(share - expected) < 5 * math.sqrt(expected / 2000)
    assert (sizes < 10).any()


def test_truncation_that_never_happens_costs_nothing() -> None:
    loose: dict[str, Any] = {"examples": 1000, "sampling_rate": 0.1, "steps": 100}
    assert truncation_delta(1.0, largest=1000, **loose) == 0.0
    assert truncation_delta(1.0, largest=160, **loose) < 1e-5
    assert truncation_delta(1.0, largest=100, **loose) > 1


def test_an_epoch_of_shuffled_batches_is_everyone_once() -> None:
    sampler = ShuffledSampler(50, 8, draw())
    for _ in range(3):
        epoch = [sampler.sample() for _ in range(7)]
        assert [len(batch) for batch in epoch] == [8] * 6 + [2]
        assert torch.equal(torch.cat(epoch).sort().values, torch.arange(50))


@pytest.mark.parametrize("number", range(3))
def test_a_stream_goes_on_where_it_was_saved(number: int) -> None:
    first, second = samplers()[number], samplers()[number]
    for _ in range(3):
        first.sample()
    second.set_state(first.get_state())
    for _ in range(9):
        assert torch.equal(first.sample(), second.sample())


def test_a_fixed_size_of_all_is_the_gaussian_mechanism_under_replacement() -> None:
    found = fixed_size_epsilon(
        noise_multiplier=4.0, examples=100, batch_size=100, steps=1, delta=1e-5
    )
    exact = gaussian_epsilon(2.0, 1e-5)
    assert exact <= found < 1.2 * exact


def test_smaller_batches_of_fixed_size_cost_less() -> None:
    values = [
        fixed_size_epsilon(
            noise_multiplier=4.0, examples=1000, batch_size=size, steps=10, delta=1e-5
        )
        for size in (10, 100, 1000)
    ]
    assert values == sorted(values)
    poisson = epsilon("rdp", noise_multiplier=2.0, sampling_rate=0.01, steps=10, delta=1e-5)
    assert values[0] > poisson  # replacing is removing and adding


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize(
    ("sampler", "expected"),
    [("full", "guarantee"), ("shuffled", "nominal"), ("fixed-size", "nominal")],
)
def test_only_what_is_analysed_is_a_guarantee(sampler: str, expected: str, accountant: str) -> None:
    found = claim(private=True, sampler=sampler, accountant=accountant, adjacency="add-remove")
    assert found == expected


def test_full_participation_is_every_example_in_every_step() -> None:
    turns = participation("full", examples=100, expected_batch_size=100, steps=4)
    found = turns.epsilon("rdp", noise_multiplier=2.0, delta=1e-5)
    assert found == pytest.approx(gaussian_epsilon(1.0, 1e-5))
    with pytest.raises(UserError, match="must be 100"):
        participation("full", examples=100, expected_batch_size=99, steps=4)


@pytest.mark.parametrize("sampler", ["full", "shuffled", "fixed-size"])
def test_banded_noise_needs_turns(sampler: str) -> None:
    with pytest.raises(UserError, match="bands"):
        participation(sampler, examples=100, expected_batch_size=100, steps=4, bands=2)
