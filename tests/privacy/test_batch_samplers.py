"""Samplers other than Poisson: what they draw, what they cost, and what a run may claim."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from mechanisms import mechanism, participation_under
from scipy.stats import norm

from clipnoise.errors import UserError
from clipnoise.privacy.accountants.fixed_size import (
    _curve,
    _log_even_moments,
    fixed_size_epsilon,
    shuffled_epsilon_at_least,
)
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.accountants.poisson import (
    ORDERS,
    POISSON_ACCOUNTANTS,
    Releases,
    epsilon,
    truncated_epsilon,
    truncation_probability,
)
from clipnoise.privacy.claim import claim
from clipnoise.privacy.samplers import (
    SAMPLERS,
    FixedSizeSampler,
    ShuffledSampler,
    TruncatedPoissonSampler,
)


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


def test_a_batch_of_fixed_size_may_be_everyone_or_nobody_and_no_more() -> None:
    assert FixedSizeSampler(50, 0, draw()).sample().tolist() == []
    assert FixedSizeSampler(5, 5, draw()).sample().tolist() == list(range(5))
    with pytest.raises(ValueError, match="must lie in 0 … 5, got 6"):
        FixedSizeSampler(5, 6, draw())


def test_examples_of_a_batch_ascend_so_that_memory_is_read_in_order() -> None:
    for sampler in samplers():
        for _ in range(20):
            batch = sampler.sample()
            assert (batch.diff() > 0).all(), type(sampler)


def test_truncated_batches_are_poisson_up_to_their_largest_size() -> None:
    sampler = TruncatedPoissonSampler(200, 0.1, 22, draw())
    sizes = torch.tensor([len(sampler.sample()) for _ in range(2000)])
    assert sizes.max() == 22
    share = float((sizes == 22).double().mean())
    from scipy.stats import binom

    expected = binom.sf(21, 200, 0.1)
    assert abs(share - expected) < 5 * math.sqrt(expected / 2000)
    assert (sizes < 10).any()


def added_delta(epsilon: float, largest_batch: int, steps: int) -> float:
    """Return (1 + e^ε)·T·P[Binomial(1001, 0.1) > K], what truncation adds to δ."""
    return (1 + math.exp(epsilon)) * steps * truncation_probability(1000, 0.1, largest_batch)


def test_the_larger_of_two_neighbouring_datasets_is_truncated_no_more_often_than_accounted() -> (
    None
):
    from scipy.stats import binom

    smaller, larger = (float(binom.sf(190, n, 130 / 1300)) for n in (1300, 1301))
    assert larger == pytest.approx(1.056 * smaller, rel=1e-3)
    assert truncation_probability(1300, 130 / 1300, 190) >= larger


def test_truncation_that_never_happens_costs_nothing() -> None:
    assert added_delta(1.0, 1000, 100) == 0.0
    assert added_delta(1.0, 160, 100) < 1e-5
    assert added_delta(1.0, 100, 100) > 1


def test_an_epoch_of_shuffled_batches_is_everyone_once() -> None:
    sampler = ShuffledSampler(50, 8, draw())
    for _ in range(3):
        epoch = [sampler.sample() for _ in range(7)]
        assert [len(batch) for batch in epoch] == [8] * 6 + [2]
        assert torch.equal(torch.cat(epoch).sort().values, torch.arange(50))


@pytest.mark.parametrize("number", range(3))
def test_a_stream_continues_where_it_was_saved(number: int) -> None:
    first, second = samplers()[number], samplers()[number]
    for _ in range(3):
        first.sample()
    second.set_state(first.get_state())
    for _ in range(9):
        assert torch.equal(first.sample(), second.sample())


@pytest.mark.parametrize("sigma", [0.7, 2.0, 9.0])
def test_even_moments_of_a_ratio_of_normals_are_binomial_sums(sigma: float) -> None:
    """E[(P/Q)^j] = e^(j(j−1)/2σ²), and (P/Q − 1)^l is a sum of such powers, which cancel."""

    def moment(order: int) -> float:
        powers = [Fraction(math.exp(j * (j - 1) / (2 * sigma**2))) for j in range(order + 1)]
        signed = (math.comb(order, j) * (-1) ** (order - j) * p for j, p in enumerate(powers))
        return math.log(sum(signed))

    found = _log_even_moments(sigma, 6)
    assert found == pytest.approx([moment(order) for order in (0, 2, 4, 6)], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("sigma", "rate"), [(0.7, 0.05), (3.0, 0.2), (0.7, 1.0)])
def test_divergences_of_a_fixed_size_are_those_of_its_theorem(sigma: float, rate: float) -> None:
    """1 + Σ C(α, j) q^j min(4 √(B(j) B(j + 1)), 2 e^(j(j − 1)/2σ²)), B of the next lower even j."""
    even = [math.exp(one) for one in _log_even_moments(sigma, 10)]  # of the orders 0, 2, …
    for order in (2, 3, 5, 8):
        total = 1.0
        for j in range(2, order + 1):
            by_moments = 4 * math.sqrt(even[j // 2] * even[(j + 1) // 2])
            direct = 2 * math.exp(j * (j - 1) / (2 * sigma**2))
            total += math.comb(order, j) * rate**j * min(by_moments, direct)
        expected = min(math.log(total) / (order - 1), order / (2 * sigma**2))
        found = _curve(sigma, rate)[ORDERS.index(order)]
        assert found == pytest.approx(expected, rel=1e-9)


def test_a_fixed_size_of_all_is_the_gaussian_mechanism_under_replacement() -> None:
    found = fixed_size_bound(examples=100, batch_size=100, steps=1)
    exact = gaussian_epsilon(2.0, 1e-5)
    assert exact <= found < 1.2 * exact


def fixed_size_bound(examples: int, batch_size: int, steps: int) -> float:
    """Return ε for replacing an example at σ = 4 and δ = 1e-5."""
    rate = batch_size / examples
    return fixed_size_epsilon(
        Releases(
            noise_multiplier=4.0, sampling_rate=rate, steps=steps, delta=1e-5, examples=examples
        )
    )


def test_smaller_batches_of_fixed_size_cost_less() -> None:
    values = [
        fixed_size_bound(examples=1000, batch_size=size, steps=10) for size in (10, 100, 1000)
    ]
    assert values == sorted(values)
    poisson = epsilon("rdp", noise_multiplier=2.0, sampling_rate=0.01, steps=10, delta=1e-5)
    assert values[0] > poisson  # replacing is removing and adding


@pytest.mark.parametrize("accountant", POISSON_ACCOUNTANTS)
@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        ("full", "guarantee"),
        ("truncated-poisson", "guarantee"),
        ("shuffled", "nominal"),
        ("fixed-size", "nominal"),
    ],
)
def test_only_what_is_analysed_is_a_guarantee(sampler: str, expected: str, accountant: str) -> None:
    sizes = {"examples": 100, "expected_batch_size": 100, "steps": 4, "accountant": accountant}
    largest = 100 if sampler == "truncated-poisson" else None
    assert claim(mechanism(sampler, largest_batch=largest, **sizes)) == expected


def test_full_participation_is_every_example_in_every_step() -> None:
    participation = participation_under("full", examples=100, expected_batch_size=100, steps=4)
    found = participation.epsilon("rdp", noise_multiplier=2.0, delta=1e-5)
    assert found == pytest.approx(gaussian_epsilon(1.0, 1e-5))
    with pytest.raises(UserError, match="must be 100"):
        participation_under("full", examples=100, expected_batch_size=99, steps=4)


@pytest.mark.parametrize("sampler", ["poisson", "shuffled", "fixed-size"])
def test_banded_noise_needs_a_participation_pattern(sampler: str) -> None:
    with pytest.raises(UserError, match="bands"):
        participation_under(sampler, examples=100, expected_batch_size=100, steps=4, bands=2)


MECHANISM = {"noise_multiplier": 1.0, "delta": 1e-5}


@pytest.mark.parametrize("accountant", POISSON_ACCOUNTANTS)
def test_a_cut_of_batches_is_paid_for(accountant: str) -> None:
    def spent(largest: int) -> float:
        sampler, sizes = "truncated-poisson", {"examples": 1000, "expected_batch_size": 100}
        participation = participation_under(sampler, **sizes, steps=20, largest_batch=largest)
        return participation.epsilon(accountant, **MECHANISM)

    poisson = epsilon(accountant, sampling_rate=0.1, steps=20, **MECHANISM)
    values = [spent(largest) for largest in (500, 175, 170)]
    assert values[0] == pytest.approx(poisson, rel=1e-6)
    assert poisson <= values[0] <= values[1] < values[2]


def test_what_a_cut_costs_leaves_room_for_it_in_delta() -> None:
    participation = participation_under(
        "truncated-poisson",
        examples=1000,
        expected_batch_size=100,
        steps=20,
        largest_batch=170,
    )
    found = participation.epsilon("rdp", **MECHANISM)
    added = added_delta(found, 170, 20)
    without = epsilon("rdp", sampling_rate=0.1, steps=20, noise_multiplier=1.0, delta=1e-5 - added)
    assert without <= found < without * (1 + 1e-6)


def test_a_cut_that_costs_more_than_delta_is_refused() -> None:
    participation = participation_under(
        "truncated-poisson", examples=1000, expected_batch_size=100, steps=20, largest_batch=110
    )
    with pytest.raises(UserError, match="largest_batch: batches are truncated so often"):
        participation.epsilon("rdp", **MECHANISM)


def test_a_cut_that_costs_all_of_delta_is_refused() -> None:
    with pytest.raises(UserError, match="this alone costs more than delta"):
        truncated_epsilon(lambda delta: 0.0, 1e-5, 0.5e-5)  # (1 + e⁰) of them


@pytest.mark.parametrize(("sampler", "largest"), [("truncated-poisson", None), ("poisson", 200)])
def test_a_largest_batch_goes_with_its_sampler(sampler: str, largest: int | None) -> None:
    with pytest.raises(UserError, match="largest_batch: required for the sampler"):
        participation_under(
            sampler, examples=1000, expected_batch_size=100, steps=20, largest_batch=largest
        )


def test_shuffled_epochs_are_covered_by_the_per_epoch_accountant() -> None:
    participation = participation_under(
        "shuffled", examples=1000, expected_batch_size=100, steps=20, accountant="per-epoch"
    )
    found = participation.epsilon("per-epoch", noise_multiplier=2.0, delta=1e-5)
    assert found == pytest.approx(gaussian_epsilon(2.0 / 2**0.5, 1e-5))  # two epochs
    epoch = participation.epsilon("per-epoch", noise_multiplier=2.0, delta=1e-5, steps=10)
    assert epoch >= shuffled_epsilon_at_least(2.0, 10, 1e-5)
    proves = SAMPLERS["shuffled"].proves
    assert proves("per-epoch", "zero-out")
    assert not proves("per-epoch", "add-remove")
    assert not proves("per-epoch", "add-remove-user")


def test_fixed_sizes_have_a_bound_for_replacing_an_example() -> None:
    chosen = mechanism(
        "fixed-size", examples=1000, expected_batch_size=10, steps=20, accountant="rdp-replace"
    )
    found = chosen.participation.epsilon("rdp-replace", noise_multiplier=4.0, delta=1e-5)
    assert found == fixed_size_bound(examples=1000, batch_size=10, steps=20)
    assert (chosen.adjacency, claim(chosen)) == ("replace", "guarantee")
    with pytest.raises(
        UserError,
        match=r"'rdp-replace' assumes batches of a fixed size.*: fixed-size",
    ):
        participation_under(
            "poisson", examples=1000, expected_batch_size=10, steps=20, accountant="rdp-replace"
        )


def test_epochs_are_counted_only_where_there_are_some() -> None:
    with pytest.raises(UserError, match=r"once an epoch.*'poisson'.*bins, cyclic, full, shuffled"):
        participation_under(
            "poisson", examples=1000, expected_batch_size=100, steps=20, accountant="per-epoch"
        )


@pytest.mark.parametrize(("sigma", "batches", "delta"), [(1.0, 1, 1e-5), (0.8, 4, 1e-3)])
def test_shuffled_batches_are_told_apart_by_the_largest_of_their_sums(
    sigma: float, batches: int, delta: float
) -> None:
    t = np.linspace(-2, 2 + 9 * sigma, 50_001)
    there, absent = (
        1 - norm.cdf(t / sigma) ** (batches - 1) * norm.cdf((t - shift) / sigma) for shift in (2, 1)
    )
    seen = there > delta
    expected = np.log((there[seen] - delta) / absent[seen]).max()
    assert shuffled_epsilon_at_least(sigma, batches, delta) == pytest.approx(expected, rel=1e-5)


def test_one_shuffled_batch_costs_at_most_the_gaussian_mechanism_and_hardly_less() -> None:
    """With one batch the attack is on N(2, σ²) against N(1, σ²): the exact ε is known."""
    exact = gaussian_epsilon(1.0, 1e-5)
    assert (1 - 1e-5) * exact < shuffled_epsilon_at_least(1.0, 1, 1e-5) <= exact


def test_batches_of_which_nothing_shows_more_than_delta_may_cost_nothing() -> None:
    assert shuffled_epsilon_at_least(100.0, 1, 0.99) == 0
