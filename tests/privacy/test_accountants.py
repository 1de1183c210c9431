"""Accountants against closed forms, published values, each other, and the edges of float64."""

from __future__ import annotations

import math
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from clipnoise.errors import UserError
from clipnoise.privacy.accountants import poisson
from clipnoise.privacy.accountants.gaussian import gaussian_delta, gaussian_epsilon
from clipnoise.privacy.accountants.poisson import (
    ORDERS,
    PLD_INTERVALS,
    POISSON_ACCOUNTANTS,
    PRV_EPSILON_ERROR,
    AccountantError,
    Releases,
    epsilon,
    rdp_curve,
    renyi_epsilon,
    sampled_delta,
)

TRAINING = [
    # σ, q, T, δ: from one epoch on a small set to long runs at large ε
    (1.0, 0.05, 200, 1e-3),
    (4.0, 0.01, 10_000, 1e-5),
    (0.7, 256 / 60_000, 2_000, 1e-5),
    (2.0, 0.5, 50, 1e-6),
    (1.0, 0.001, 5_000, 1e-8),
]


def bound(accountant: str, sigma: float, q: float, steps: int, delta: float) -> float:
    return epsilon(accountant, noise_multiplier=sigma, sampling_rate=q, steps=steps, delta=delta)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("steps", [1, 25])
def test_without_subsampling_the_bounds_sit_on_the_exact_gaussian(sigma: float, steps: int) -> None:
    # T releases at σ are one release at σ/√T.
    exact = gaussian_epsilon(sigma / math.sqrt(steps), 1e-5)
    assert exact <= bound("pld", sigma, 1.0, steps, 1e-5) <= exact + 1e-3
    assert (
        exact <= bound("prv", sigma, 1.0, steps, 1e-5) <= 1.0001 * exact + 1.1 * PRV_EPSILON_ERROR
    )
    assert exact <= bound("rdp", sigma, 1.0, steps, 1e-5) <= 1.15 * exact + 0.01


@pytest.mark.parametrize("accountant", POISSON_ACCOUNTANTS)
def test_composition_without_subsampling_divides_sigma_by_the_root_of_steps(
    accountant: str,
) -> None:
    composed = bound(accountant, 8.0, 1.0, 16, 1e-5)
    assert composed == pytest.approx(bound(accountant, 2.0, 1.0, 1, 1e-5), abs=2e-3)


def test_prv_leaves_room_for_its_errors_where_no_loss_is_left() -> None:
    releases = Releases(noise_multiplier=1.0, sampling_rate=0.1, steps=10, delta=1e-6)
    rounding = poisson._composed_prv(releases)[1]
    assert rounding > 0
    (found,) = sampled_delta("prv", releases, np.array([600.0]))
    assert found == pytest.approx(rounding + 1e-9, rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("sigma", "q", "width"), [(0.5, 0.01, 1e-3), (5, 0.1, 2e-4), (5, 0.3, 1e-3), (50, 0.01, 1e-4)]
)
def test_the_grid_of_losses_is_a_fiftieth_of_their_spread_or_the_finest(
    sigma: float, q: float, width: float
) -> None:
    """The spread is q√(e^(1/σ²) − 1)."""
    spread = q * math.sqrt(math.expm1(sigma**-2))
    fine = [one for one in PLD_INTERVALS if one <= spread / 50]
    assert poisson._interval(sigma, q) == width == max(fine, default=1e-4)


def test_a_curve_that_is_kept_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        rdp_curve(1.0, 0.1)[0] = 0.0


@pytest.mark.parametrize("alpha", [2, 3, 7])
@pytest.mark.parametrize(("sigma", "q"), [(0.5, 0.01), (1.0, 0.2), (4.0, 0.001)])
def test_rdp_at_integer_orders_is_the_binomial_sum(sigma: float, q: float, alpha: int) -> None:
    # Mironov, Talwar, Zhang 2019, Section 3.3: A_α = Σ C(α,k)(1−q)^{α−k} q^k exp((k²−k)/2σ²).
    moment = sum(
        math.comb(alpha, k) * (1 - q) ** (alpha - k) * q**k * math.exp((k * k - k) / (2 * sigma**2))
        for k in range(alpha + 1)
    )
    measured = rdp_curve(sigma, q)[ORDERS.index(alpha)]
    assert measured == pytest.approx(math.log(moment) / (alpha - 1), rel=1e-6, abs=1e-11)
    assert measured >= math.log(moment) / (alpha - 1)


@pytest.mark.parametrize("alpha", [1.25, 2.0, 64.0])
def test_where_a_release_costs_nothing_the_rounding_of_its_log_moment_is_left(alpha: float) -> None:
    assert rdp_curve(1e6, 1e-9)[ORDERS.index(alpha)] == pytest.approx(1e-12 / (alpha - 1), rel=0.01)


def test_rdp_grows_with_the_order() -> None:
    for sigma, q in [(0.3, 0.01), (1.0, 0.01), (1.0, 0.9), (20.0, 0.1)]:
        curve = rdp_curve(sigma, q)
        past_rounding = np.diff(curve[20:]) >= -1e-9 * curve[20:-1]
        assert past_rounding.all()


@pytest.mark.parametrize(
    ("sigma", "q", "steps", "delta"),
    [
        *TRAINING,
        (0.01, 0.3, 1, 0.1),
        (0.2, 0.2, 10, 1e-5),
        (30.0, 1.0, 1, 1e-9),
        (6.0, 1e-5, 3, 0.5),
    ],
)
def test_epsilon_by_rdp_is_the_least_of_all_orders_of_which_few_are_looked_at(
    sigma: float, q: float, steps: int, delta: float
) -> None:
    poisson._divergence.cache_clear()
    found = bound("rdp", sigma, q, steps, delta)
    assert poisson._divergence.cache_info().misses < len(ORDERS) / 5
    assert found == renyi_epsilon(rdp_curve(sigma, q) * steps, delta)


def test_the_epsilon_of_an_order_falls_up_to_its_least_value_and_rises_behind_it() -> None:
    orders = np.array(ORDERS)
    for sigma, q, steps, delta in TRAINING:
        divergences = rdp_curve(sigma, q) * steps
        by_order = divergences + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
        changes = np.diff(by_order)
        best = int(by_order.argmin())
        assert 0 < best < len(ORDERS) - 1
        assert (changes[:best] < 0).all()
        assert (changes[best:] > 0).all()


@pytest.mark.parametrize(
    ("sigma", "q", "steps", "delta", "published"),
    [
        # Abadi et al. 2016, Section 5.1: moments accountant, E = 100 epochs.
        (4.0, 0.01, 10_000, 1e-5, 1.26),
        # Bu, Dong, Long, Su 2020, Figure 4 (bottom): MNIST, 70 epochs at batch 256.
        (0.7, 256 / 60_000, 70 * 60_000 // 256, 1e-5, 8.68),
        # TensorFlow Privacy, tutorials, MNIST: 15, 60 and 45 epochs at batch 256.
        (1.3, 256 / 60_000, 15 * 60_000 // 256, 1e-5, 1.19),
        (1.1, 256 / 60_000, 60 * 60_000 // 256, 1e-5, 3.01),
        (0.7, 256 / 60_000, 45 * 60_000 // 256, 1e-5, 7.10),
    ],
)
def test_published_moments_accountant_values(
    sigma: float, q: float, steps: int, delta: float, published: float
) -> None:
    # They convert by ε = min RDP(α) + ln(1/δ)/(α−1); the conversion used here is tighter.
    orders = np.array(ORDERS)
    classic = float(np.min(rdp_curve(sigma, q) * steps + math.log(1 / delta) / (orders - 1)))
    assert classic == pytest.approx(published, abs=0.01)
    assert bound("rdp", sigma, q, steps, delta) < published


def test_adadps_pair_of_mnist_values_follows_from_one_number_of_epochs() -> None:
    # AdaDPS, Table 1: batches of 64, δ = 1/60000; σ = 1 gives 1.6 and σ = 0.75 gives 3. The number
    # of epochs is not printed; 50 gives both, to the digits printed.
    orders, delta = np.array(ORDERS), 1 / 60_000
    for sigma, published in [(1.0, 1.6), (0.75, 3.0)]:
        curve = rdp_curve(sigma, 64 / 60_000) * 46_875
        classic = float(np.min(curve + math.log(1 / delta) / (orders - 1)))
        assert classic == pytest.approx(published, abs=0.051)


@pytest.mark.long
def test_rdp_agrees_with_opacus_where_its_fewer_orders_suffice() -> None:
    from opacus.accountants import RDPAccountant

    for sigma, q, steps, delta in TRAINING:
        opacus = RDPAccountant()
        opacus.history = [(sigma, q, steps)]
        reference = opacus.get_epsilon(delta)
        assert reference - 0.02 <= bound("rdp", sigma, q, steps, delta) <= reference + 1e-6


def test_prv_agrees_with_opacus_where_opacus_is_sound() -> None:
    from opacus.accountants import PRVAccountant

    for sigma, q, steps, delta in TRAINING[:3]:
        opacus = PRVAccountant()
        opacus.history = [(sigma, q, steps)]
        assert bound("prv", sigma, q, steps, delta) == pytest.approx(
            opacus.get_epsilon(delta), abs=2e-4
        )


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ((1.1, 0.02, 100, 1e-5), (1.0, 0.02, 100, 1e-5)),
        ((1.0, 0.02, 100, 1e-5), (1.0, 0.03, 100, 1e-5)),
        ((1.0, 0.02, 100, 1e-5), (1.0, 0.02, 120, 1e-5)),
        ((1.0, 0.02, 100, 1e-5), (1.0, 0.02, 100, 1e-6)),
    ],
)
@pytest.mark.parametrize("accountant", POISSON_ACCOUNTANTS)
def test_epsilon_grows_with_less_noise_more_sampling_more_steps_and_smaller_delta(
    accountant: str, better: Any, worse: Any
) -> None:
    assert bound(accountant, *better) < bound(accountant, *worse)


@pytest.mark.parametrize("accountant", POISSON_ACCOUNTANTS)
def test_no_steps_spend_nothing(accountant: str) -> None:
    assert bound(accountant, 0.1, 0.5, 0, 1e-5) == 0.0


@pytest.mark.parametrize("accountant", POISSON_ACCOUNTANTS)
def test_huge_noise_costs_next_to_nothing_and_never_less_than_zero(accountant: str) -> None:
    assert 0.0 <= bound(accountant, 1e4, 0.01, 100, 1e-5) <= 0.0101
    assert bound(accountant, 10.0, 0.1, 1, 0.3) == 0.0


def test_tiny_noise_is_bounded_by_rdp_and_refused_by_the_others() -> None:
    assert math.isfinite(bound("rdp", 1e-3, 0.1, 10, 1e-5))
    for accountant in ("prv", "pld"):
        with pytest.raises(AccountantError, match=r"noise_multiplier 0\.001.*Try rdp"):
            bound(accountant, 1e-3, 0.1, 10, 1e-5)


@pytest.mark.parametrize("accountant", POISSON_ACCOUNTANTS)
def test_noise_so_small_that_series_need_not_end_is_refused(accountant: str) -> None:
    with pytest.raises(AccountantError, match="noise_multiplier: 1e-160 is below"):
        bound(accountant, 1e-160, 0.5, 10, 1e-5)


def test_prv_refuses_a_delta_its_rounding_errors_rival() -> None:
    # Without the check, PRV returns 3.913 here, below the pessimistic PLD bound of 3.916.
    with pytest.raises(AccountantError, match="rounding errors"):
        bound("prv", 1.0, 0.01, 1_000, 1e-12)


def test_prv_refuses_a_grid_beyond_memory() -> None:
    with pytest.raises(AccountantError, match="points, limit"):
        bound("prv", 4.0, 0.001, 10**9, 1e-5)


@pytest.mark.long
def test_prv_stays_above_the_limit_of_many_steps() -> None:
    # Bu, Dong, Long, Su 2020: T steps tend to one Gaussian release with 1/σ = q√(T(e^{1/σ²} − 1)).
    q, sigma, steps = 0.001, 2.0, 200_000
    limit = gaussian_epsilon(1 / (q * math.sqrt(steps * math.expm1(sigma**-2))), 1e-5)
    assert limit <= bound("prv", sigma, q, steps, 1e-5) <= limit + 0.02


def test_the_mean_of_the_privacy_loss_is_exact_for_the_plain_gaussian() -> None:
    releases = poisson.Releases(noise_multiplier=3.0, sampling_rate=1.0, steps=1, delta=1e-5)
    with np.errstate(divide="ignore"):
        prv = poisson._truncated_prv(releases, poisson._prv_domain(releases, 1e-8))
        assert prv.mean() == pytest.approx(1 / (2 * 3.0**2), rel=1e-12)


@pytest.mark.parametrize(("sigma", "q", "steps"), [(1.0, 0.1, 100), (0.4, 0.01, 1), (50.0, 0.1, 1)])
def test_the_grid_of_prv_is_that_of_its_theorem(sigma: float, q: float, steps: int) -> None:
    """It reaches 3 beyond the ε of all releases, and of each, at shares of its error of δ."""
    error = 1e-8
    releases = Releases(noise_multiplier=sigma, sampling_rate=q, steps=steps, delta=1e-5)
    domain = poisson._prv_domain(releases, error)
    every = bound("rdp", sigma, q, steps, error / 4)
    one = bound("rdp", sigma, q, 1, error / (8 * steps))
    reach = 3 + max(every, one, poisson.PRV_EPSILON_ERROR)
    width = poisson.PRV_EPSILON_ERROR / math.sqrt(steps * math.log(12 / error) / 2)
    assert domain.dt == pytest.approx(width, rel=1e-7)
    assert reach <= domain.t_max <= reach + 2 * width
    assert -reach - width <= domain.t_min <= -reach


def test_only_the_warning_that_the_last_order_is_the_best_is_silenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Analysis:
        @staticmethod
        def get_privacy_spent(**_: object) -> tuple[float, float]:
            warnings.warn("Optimal order is the largest alpha.", stacklevel=1)
            warnings.warn("Something else.", stacklevel=1)
            return 1.0, 2.0

    monkeypatch.setattr(poisson, "_opacus", lambda analysis: Analysis)
    with pytest.warns(UserWarning, match="Something else") as seen:
        assert poisson.renyi_epsilon(np.ones(len(ORDERS)), 1e-5) == 1
    assert [str(one.message) for one in seen] == ["Something else."]


def test_no_failure_of_the_gaussian_mechanism_is_more_than_certain() -> None:
    assert gaussian_delta(1e3, np.array([0.0, 1.0])).tolist() == [1, 1]


def test_noise_beyond_all_rounding_makes_the_gaussian_mechanism_cost_nothing() -> None:
    assert gaussian_epsilon(1e20, 1e-5) == 0


def test_results_that_are_not_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poisson, "_rdp", lambda releases: float("nan"))
    with pytest.raises(AccountantError, match="not a finite number"):
        bound("rdp", 1.0, 0.1, 10, 1e-5)


def test_an_unknown_accountant_is_named_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown accountant 'prb'\. Did you mean 'prv'\?"):
        bound("prb", 1.0, 0.1, 10, 1e-5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("noise_multiplier", 0.0),
        ("noise_multiplier", math.nan),
        ("noise_multiplier", math.inf),
        ("sampling_rate", 0.0),
        ("sampling_rate", 1.5),
        ("steps", -1),
        ("steps", 2.5),
        ("delta", 0.0),
        ("delta", 1.0),
    ],
)
def test_a_value_out_of_range_is_named(key: str, value: float) -> None:
    values = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 10, "delta": 1e-5}
    with pytest.raises(UserError, match=f"^{key}: "):
        epsilon("rdp", **{**values, key: value})  # type: ignore[arg-type]


def test_orders_are_sorted_distinct_and_include_those_of_opacus() -> None:
    from opacus.accountants import RDPAccountant

    assert all(low < high for low, high in pairwise(ORDERS))
    assert all(
        min(abs(order - own) for own in ORDERS) < 1e-12 for order in RDPAccountant.DEFAULT_ALPHAS
    )
