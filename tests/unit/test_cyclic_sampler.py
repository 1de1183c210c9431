"""Cyclic Poisson sampling: groups, participation, rates, and resuming."""

from __future__ import annotations

import pytest
import torch

from clipnoise.privacy.samplers import CyclicPoissonSampler


def sampler(
    examples: int = 100, groups: int = 4, rate: float = 0.5, seed: int = 0
) -> CyclicPoissonSampler:
    return CyclicPoissonSampler(examples, groups, rate, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("examples", "groups"), [(100, 4), (10, 3), (7, 7), (2, 5), (0, 2)])
def test_the_groups_partition_the_examples_evenly(examples: int, groups: int) -> None:
    drawn = sampler(examples, groups)
    parts = [drawn.group(index) for index in range(groups)]
    assert torch.cat(parts).sort().values.tolist() == list(range(examples))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_groups_are_shuffled_by_the_seed() -> None:
    assert sampler(seed=1).group(0).tolist() != sampler(seed=2).group(0).tolist()
    assert sampler(seed=1).group(0).tolist() == sampler(seed=1).group(0).tolist()


def test_each_step_draws_sorted_indices_from_its_group_only() -> None:
    drawn = sampler()
    for step in range(12):
        batch = drawn.sample()
        assert batch.dtype == torch.int64
        assert batch.tolist() == sorted(set(batch.tolist()))
        assert set(batch.tolist()) <= set(drawn.group(step % 4).tolist())


def test_participations_of_an_example_are_multiples_of_the_groups_apart() -> None:
    drawn = sampler()
    seen: dict[int, int] = {}
    for step in range(40):
        for index in drawn.sample().tolist():
            assert (step - seen.get(index, step)) % 4 == 0
            seen[index] = step
    assert len(seen) == 100


def test_probability_one_is_a_fixed_order_and_zero_is_empty() -> None:
    full, empty = sampler(rate=1.0), sampler(rate=0.0)
    first = [full.sample().tolist() for _ in range(4)]
    assert [full.sample().tolist() for _ in range(4)] == first
    assert sorted(index for batch in first for index in batch) == list(range(100))
    assert all(len(empty.sample()) == 0 for _ in range(4))


def test_each_example_participates_with_the_given_probability() -> None:
    drawn, rounds = sampler(examples=1000, groups=5, rate=0.3), 400
    counts = torch.zeros(1000)
    for _ in range(5 * rounds):
        counts[drawn.sample()] += 1
    error = (rounds * 0.3 * 0.7) ** 0.5
    assert float((counts - rounds * 0.3).abs().max()) < 5 * error
    assert abs(float(counts.mean()) - rounds * 0.3) < 5 * error / 1000**0.5


@pytest.mark.parametrize("stop", [0, 1, 3, 4, 9])
def test_resumed_equals_uninterrupted(stop: int) -> None:
    whole = sampler()
    expected = [whole.sample() for _ in range(15)]
    first = sampler()
    for _ in range(stop):
        first.sample()
    saved = first.get_state()
    first.sample()
    resumed = sampler(seed=9)
    resumed.set_state(saved)
    for batch in expected[stop:]:
        assert torch.equal(resumed.sample(), batch)


def test_a_state_of_other_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="10 examples, not 100"):
        sampler().set_state(sampler(examples=10).get_state())


@pytest.mark.parametrize(
    ("examples", "groups", "rate"), [(10, 0, 0.5), (-1, 2, 0.5), (10, 2, 1.5), (10, 2, -0.1)]
)
def test_values_out_of_range_are_refused(examples: int, groups: int, rate: float) -> None:
    with pytest.raises(ValueError, match=r"examples|groups|sampling_rate"):
        sampler(examples, groups, rate)
