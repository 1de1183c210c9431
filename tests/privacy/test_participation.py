"""The cost of participation patterns: closed forms, published values, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mechanisms import participation_under

from clipnoise.errors import UserError
from clipnoise.privacy.accountants import poisson as accountants
from clipnoise.privacy.accountants.gaussian import gaussian_delta, gaussian_epsilon
from clipnoise.privacy.noise_strategies import optimal_toeplitz, prefix_sum_rmse
from clipnoise.privacy.participation import Participation


def test_a_gaussian_within_delta_costs_nothing() -> None:
    assert gaussian_epsilon(1e6, 0.5) == 0.0


@pytest.mark.parametrize(("sigma", "delta"), [(0.0, 0.1), (-1.0, 0.1), (1.0, 0.0), (1.0, 1.0)])
def test_values_out_of_range_are_refused(sigma: float, delta: float) -> None:
    with pytest.raises(UserError, match=r"noise_multiplier|delta"):
        gaussian_epsilon(sigma, delta)


def test_three_participations_without_amplification_have_the_published_epsilons() -> None:
    """Published: 149.1, 10.0 and 10.0 at δ = 1e-7 (the first at the exact σ of equal error)."""
    participation = participation_under(
        "cyclic", examples=1_700_000, expected_batch_size=2048, steps=2000, bands=128
    )
    assert participation.releases() == 3
    independent = prefix_sum_rmse(optimal_toeplitz(2000, 1))
    sigma = prefix_sum_rmse(optimal_toeplitz(2000, 128)) / independent
    assert round(participation.epsilon("rdp", noise_multiplier=sigma, delta=1e-7), 1) == 149.1
    assert round(participation.epsilon("rdp", noise_multiplier=1.0, delta=1e-7), 1) == 10.0


def test_the_exact_value_is_below_every_accountant() -> None:
    participation = participation_under("cyclic", examples=100, expected_batch_size=10, steps=35)
    exact = participation.epsilon("rdp", noise_multiplier=1.0, delta=1e-5)
    for accountant in accountants.POISSON_ACCOUNTANTS:
        bound = accountants.epsilon(
            accountant, noise_multiplier=1.0, sampling_rate=1.0, steps=4, delta=1e-5
        )
        assert exact <= bound + 1e-9


def test_one_group_is_poisson_sampling() -> None:
    poisson = participation_under("poisson", examples=1000, expected_batch_size=50, steps=30)
    cyclic = participation_under("cyclic-poisson", examples=1000, expected_batch_size=50, steps=30)
    assert poisson == cyclic
    assert poisson.epsilon("rdp", noise_multiplier=1.0, delta=1e-5) == accountants.epsilon(
        "rdp", noise_multiplier=1.0, sampling_rate=0.05, steps=30, delta=1e-5
    )


@pytest.mark.parametrize(("steps", "releases"), [(0, 0), (1, 1), (8, 1), (9, 2), (100, 13)])
def test_cyclic_poisson_is_one_subsampled_release_per_round(steps: int, releases: int) -> None:
    participation = participation_under(
        "cyclic-poisson", examples=1000, expected_batch_size=10, steps=100, bands=8
    )
    assert participation.releases(steps) == releases
    assert participation.epsilon("rdp", noise_multiplier=1.0, delta=1e-5, steps=steps) == (
        accountants.epsilon(
            "rdp", noise_multiplier=1.0, sampling_rate=0.08, steps=releases, delta=1e-5
        )
    )


def test_dense_noise_over_one_epoch_is_one_release() -> None:
    for sampler in ("cyclic", "cyclic-poisson"):
        participation = participation_under(
            sampler, examples=500, expected_batch_size=10, steps=50, bands=50
        )
        assert (participation.groups, participation.sampling_rate, participation.releases()) == (
            50,
            1.0,
            1,
        )
        spent = participation.epsilon("prv", noise_multiplier=2.0, delta=1e-5)
        assert spent == gaussian_epsilon(2.0, 1e-5)


def test_one_release_has_the_deltas_of_the_gaussian_mechanism_and_none_has_none() -> None:
    epsilons = np.array([0.0, 0.5, 2.0])
    one, none = (
        Participation(sampling_rate=1.0, steps=steps).deltas(
            "per-epoch", epsilons, noise_multiplier=2.0, least=1e-9
        )
        for steps in (1, 0)
    )
    assert one == pytest.approx(gaussian_delta(0.5, epsilons), rel=1e-6)
    assert (none == 0).all()


def test_epsilon_grows_with_the_steps_taken() -> None:
    participation = participation_under("cyclic", examples=100, expected_batch_size=30, steps=12)
    spent = [
        participation.epsilon("rdp", noise_multiplier=1, delta=1e-5, steps=t) for t in range(13)
    ]
    assert spent[0] == 0
    assert spent == sorted(spent)
    assert len(set(spent)) == 4


def test_first_steps_cost_more_by_the_factor_of_their_prefixes_and_all_steps_do_not() -> None:
    given = Participation(sampling_rate=1.0, steps=12, groups=2, prefix_cost=1.5)
    assert [given.releases(steps) for steps in (0, 1, 2, 3, 6, 8, 12)] == [0, 2, 2, 3, 5, 6, 6]


def test_cut_batches_add_to_delta_what_they_add_to_that_of_epsilon() -> None:
    epsilons, accounted = np.array([0.0, 1.0, 3.0]), {"noise_multiplier": 1.0, "least": 1e-9}
    whole = Participation(sampling_rate=0.05, steps=100, groups=2)
    cut = replace(whole, truncation_probability=1e-7)
    added = cut.deltas("rdp", epsilons, **accounted) - whole.deltas("rdp", epsilons, **accounted)
    assert added == pytest.approx((1 + np.exp(epsilons)) * 50 * 1e-7)


def test_only_whole_groups_in_a_fixed_order_are_one_gaussian_mechanism() -> None:
    """Not so where an example is replaced, nor where its turn is drawn."""
    order = Participation(sampling_rate=1.0, steps=12, groups=3)
    assert order.gaussian("pld", 6.0) == pytest.approx(2 / 6)
    assert order.gaussian("rdp-replace", 6.0) is None
    assert order.gaussian("monte-carlo", 6.0) is None
    sampled, cut = replace(order, sampling_rate=0.9), replace(order, truncation_probability=1e-9)
    assert sampled.gaussian("pld", 6.0) is cut.gaussian("pld", 6.0) is None


@pytest.mark.parametrize(
    ("sampler", "bands", "message"),
    [
        ("poisson", 2, "Allowed: balls-in-bins, b-min-sep, cyclic-poisson, cyclic"),
        ("cyclic-poisson", 11, "at most n/B = 10"),
        ("fixed-size", 40, "Allowed: balls-in-bins, b-min-sep, cyclic-poisson, cyclic, full"),
        ("ciclyc", 1, "Did you mean 'cyclic'"),
    ],
)
def test_noise_that_does_not_fit_the_participation_is_refused(
    sampler: str, bands: int, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        participation_under(sampler, examples=100, expected_batch_size=10, steps=40, bands=bands)
