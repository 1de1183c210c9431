"""The lower bound on ε: its published formula, its limits, and mechanisms whose ε is known."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from clipnoise.audit.empirical import epsilon_at_least, lower_bound, p_value
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon


def transcribed(m: int, r: int, v: int, odds: int, delta: Fraction) -> Fraction:
    """Compute the theorem's bound in exact arithmetic, term by term, for e^ε = odds."""
    q = Fraction(odds, odds + 1)
    mass = [Fraction(math.comb(r, k)) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
    beta = sum(mass[v:], Fraction(0))
    alphas = [sum(mass[v - i : v], Fraction(0)) / i for i in range(1, v + 1)]
    return min(Fraction(1), beta + 2 * m * delta * max(alphas, default=Fraction(0)))


@pytest.mark.parametrize("case", [(10, 10, 8), (40, 12, 12), (30, 20, 3), (25, 9, 0), (60, 31, 25)])
@pytest.mark.parametrize("odds", [1, 2, 7])
@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 10**5), Fraction(1, 100)])
def test_the_p_value_is_the_published_formula(
    case: tuple[int, int, int], odds: int, delta: Fraction
) -> None:
    m, r, v = case
    expected = float(transcribed(m, r, v, odds, delta))
    assert p_value(m, r, v, math.log(odds), float(delta)) == pytest.approx(expected, rel=1e-9)


def test_without_delta_the_bound_is_that_of_clopper_and_pearson() -> None:
    from scipy.stats import beta

    worst = beta.ppf(0.05, 90, 100 - 90 + 1)
    expected = math.log(worst / (1 - worst))
    found = epsilon_at_least(1000, 100, 90, delta=0.0, significance=0.05)
    assert found == pytest.approx(expected, abs=1e-5)


def test_the_bound_is_zero_for_guesses_no_better_than_chance() -> None:
    assert epsilon_at_least(1000, 1000, 500, delta=1e-5, significance=0.05) == 0.0


def test_a_larger_delta_explains_more_and_bounds_less() -> None:
    values = [
        epsilon_at_least(1000, 200, 190, delta=delta, significance=0.05)
        for delta in (0.0, 1e-5, 1e-4, 1e-3)
    ]
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0]


def randomised_response(epsilon: float, m: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    coins = draw.random(m) < 0.5
    honest = draw.random(m) < math.exp(epsilon) / (1 + math.exp(epsilon))
    return np.where(honest, coins, ~coins) + 0.01 * draw.random(m), coins


def test_randomised_response_is_bounded_closely_and_seldom_too_high() -> None:
    bounds = [
        lower_bound(*randomised_response(1.5, 4000, seed), delta=0.0, shares=(1.0,)).epsilon
        for seed in range(100)
    ]
    assert np.mean(bounds) > 1.35
    assert sum(bound > 1.5 for bound in bounds) <= 12  # 5 expected; more than 12 is 1 in 600


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_a_gaussian_mechanism_is_never_bounded_above_its_epsilon(sigma: float) -> None:
    draw = np.random.default_rng(0)
    coins = draw.random(20_000) < 0.5
    scores = coins + sigma * draw.standard_normal(len(coins))
    bound = lower_bound(scores, coins, delta=1e-5)
    assert 0.3 < bound.epsilon < gaussian_epsilon(sigma, 1e-5)
    assert bound.guesses < bound.canaries


def test_half_the_noise_is_detected() -> None:
    draw = np.random.default_rng(0)
    coins = draw.random(64_000) < 0.5
    scores = coins + 1.0 * draw.standard_normal(len(coins))
    assert lower_bound(scores, coins, delta=1e-5).epsilon > gaussian_epsilon(2.0, 1e-5)
