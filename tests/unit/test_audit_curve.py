"""Audits against a claimed curve: seldom wrong where it is tight, stronger than at one δ."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy.special import expit, ndtr

from clipnoise.audit.curve import (
    Guesses,
    curve_of,
    e_value,
    gaussian_curve,
    impossible,
    looks,
    mu_at_least,
)
from clipnoise.audit.empirical import Refutation, claimed_curve
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.budget import Budget
from clipnoise.privacy.participation import Participation

if TYPE_CHECKING:
    from collections.abc import Callable

    from clipnoise.audit.curve import Curve

PAGE = Path(__file__).parents[2] / "docs" / "auditing.md"
EPSILONS = np.concatenate([np.linspace(0, 12, 121), np.linspace(12.5, 50, 76)])


def of(profile: Callable[[np.ndarray], np.ndarray]) -> Curve:
    return curve_of(EPSILONS, profile(EPSILONS))


def p_value(curve: Curve, *, canaries: int, guesses: int, correct: int) -> float:
    return Guesses(canaries, (guesses,), (correct,)).p_value(curve)


def gaussian(mu: float, m: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores and coins of canaries that are exactly μ-Gaussian DP, each by itself."""
    draw = np.random.default_rng(seed)
    coins = draw.random(m) < 0.5
    return mu * coins + draw.standard_normal(m), coins


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
def test_the_curve_of_a_profile_is_that_of_the_gaussian_mechanism(mu: float) -> None:
    y = np.array([1e-4, 0.01, 0.3, 0.9])

    def profile(epsilon: np.ndarray) -> np.ndarray:
        return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)

    found, exact = of(profile)(y), gaussian_curve(mu)(y)
    assert np.all(found <= exact + 1e-12)  # never stricter than the claim
    assert found[:2] == pytest.approx(exact[:2], rel=0.05)


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_a_tight_claim_is_seldom_refuted(mu: float) -> None:
    curve = gaussian_curve(mu)
    values = [p_value(curve, canaries=200, guesses=20, correct=correct) for correct in range(21)]
    draw, refuted = np.random.default_rng(0), 0
    for _ in range(2000):
        coins = draw.random(200) < 0.5
        order = np.argsort(mu * coins + draw.standard_normal(200))
        refuted += values[coins[order[-10:]].sum() + (~coins[order[:10]]).sum()] < 0.05
    assert refuted / 2000 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


def test_canaries_that_leak_together_are_refuted_no_more_often_than_stated() -> None:
    """With probability δ all coins are released, otherwise none: it is (0, δ)-DP for each."""
    delta, m = 0.03, 30

    def profile(epsilon: np.ndarray) -> np.ndarray:
        return np.full_like(epsilon, delta)

    for guesses in (2, 10, 30):
        for correct in range(guesses + 1):
            chance = sum(math.comb(guesses, k) for k in range(correct, guesses + 1))
            exact = delta + (1 - delta) * chance / 2**guesses
            found = p_value(of(profile), canaries=m, guesses=guesses, correct=correct)
            assert found >= min(1.0, exact) - 1e-12


def test_no_mechanism_of_two_coins_is_right_more_often_than_the_bound() -> None:
    """Enumerate random mechanisms whose releases depend on both coins, and the best guesses."""
    draw = np.random.default_rng(1)
    for _ in range(30):
        table = draw.dirichlet(np.full(4, 0.7), size=(2, 2)) + 1e-9  # by the two coins
        table /= table.sum(axis=-1, keepdims=True)
        pairs = [(table[1, s], table[0, s]) for s in (0, 1)]
        pairs += [(table[s, 1], table[s, 0]) for s in (0, 1)]
        pairs += [(q, p) for p, q in pairs]

        def profile(epsilon: np.ndarray, pairs: list[tuple[np.ndarray, np.ndarray]] = pairs):
            sticks = [np.maximum(p - np.exp(epsilon)[:, None] * q, 0).sum(axis=1) for p, q in pairs]
            return np.max(sticks, axis=0)

        weights = table / 4
        right = [
            max(
                sum(weights[a, b, y] for a in (0, 1) for b in (0, 1) if (a == g) + (b == h) >= v)
                for g, h in itertools.product((0, 1), repeat=2)
            )
            for v, y in itertools.product((1, 2), range(4))
        ]
        for v, exact in ((1, sum(right[:4])), (2, sum(right[4:]))):
            assert p_value(of(profile), canaries=2, guesses=2, correct=v) >= exact - 1e-9


def test_pure_dp_gives_the_binomial_tail() -> None:
    def profile(epsilon: np.ndarray) -> np.ndarray:
        return np.maximum(0, (math.exp(1.5) - np.exp(epsilon)) / (1 + math.exp(1.5)))

    found = p_value(of(profile), canaries=500, guesses=60, correct=58)
    q = expit(1.5)
    tail = sum(math.comb(60, k) * q**k * (1 - q) ** (60 - k) for k in range(58, 61))
    assert tail <= found <= 20 * tail  # coins that are drawn apart from each other are less exact


@pytest.mark.quick(mu=[1.0])
@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_it_shows_more_than_the_bound_at_one_delta(mu: float) -> None:
    shown, before, claim = [], [], gaussian_epsilon(1 / mu, 1e-5)
    for seed in range(3):
        scores, coins = gaussian(mu, 3000, seed)
        shown.append(gaussian_epsilon(1 / max(mu_at_least(scores, coins), 1e-3), 1e-5))
        before.append(Guesses.by(scores, coins).epsilon_at_least(1e-5))
    assert max(shown) <= claim
    assert np.mean(shown) > 1.1 * np.mean(before)


def test_half_the_noise_is_refuted_and_the_claimed_noise_is_not() -> None:
    scores, coins = gaussian(2.0, 2000, 0)
    assert Guesses.by(scores, coins).p_value(gaussian_curve(1.0)) < 0.01
    assert Guesses.by(scores, coins).p_value(gaussian_curve(2.0)) > 0.05


def test_the_example_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (code,) = (block for block in blocks if "audit.curve" in block)
    exec(code, {})
    mu, p_value, *seen = capsys.readouterr().out.split("\n")
    assert 1 < float(mu) < 2
    assert float(p_value) < 0.05
    assert "refuted=True" in seen[2]


def test_scores_without_information_refute_nothing() -> None:
    scores, coins = gaussian(0.0, 1000, 0)
    assert mu_at_least(scores, coins) == 0.0


def test_the_mean_of_the_e_value_is_one_and_it_falls() -> None:
    places = (np.arange(200_000) + 0.5) / 200_000
    values = [e_value(p) for p in places]
    assert np.mean(values) == pytest.approx(1, abs=0.1)  # its tail is long
    assert np.mean(values) <= 1
    assert values == sorted(values, reverse=True)


def test_looking_after_every_run_is_seldom_wrong_and_finds_a_false_claim_early() -> None:
    draw = np.random.default_rng(0)
    wrong = [list(looks(draw.random(50).tolist()))[-1].refuted for _ in range(1000)]
    assert np.mean(wrong) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)
    rows = list(looks([0.02, 0.02, 0.02, 0.9, 0.9, 1.0]))
    assert [row.refuted for row in rows] == [False, False, True, True, True, True]
    assert rows[-1].evidence < rows[2].evidence


def test_all_ways_to_guess_share_one_error() -> None:
    scores, coins = gaussian(1.0, 2000, 3)
    every, curve = Guesses.by(np.vstack([scores, scores[::-1]]), coins), gaussian_curve(0.8)
    each = [
        p_value(curve, canaries=2000, guesses=r, correct=v)
        for r, v in zip(every.made, every.right, strict=True)
    ]
    assert len(each) == 6
    assert every.p_value(curve) == pytest.approx(min(1.0, 6 * min(each)))
    for confidence in (0.5, 0.9, 0.99):
        refuted = [value <= (1 - confidence) / 6 for value in each]
        assert list(every.refute(curve, confidence=confidence)) == refuted


def test_what_is_impossible_with_a_probability_is_impossible_with_a_larger_one() -> None:
    for curve in (gaussian_curve(1.0), curve_of([1.0], [1e-3]), curve_of([0.2, 3], [0.005, 1e-6])):
        found = [
            bool(impossible(curve, tau, canaries=300, guesses=30, correct=30))
            for tau in np.geomspace(1e-9, 1, 30)
        ]
        assert found == sorted(found)
        assert True in found


def randomised_response(epsilon: float, m: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    coins = draw.random(m) < 0.5
    honest = draw.random(m) < math.exp(epsilon) / (1 + math.exp(epsilon))
    return np.where(honest, coins, ~coins) + 0.01 * draw.random(m), coins


@pytest.mark.long
def test_randomised_response_is_bounded_closely_and_seldom_too_high() -> None:
    bounds = [
        Guesses.by(*randomised_response(1.5, 400, seed), shares=(1.0,)).epsilon_at_least(0.0)
        for seed in range(30)
    ]
    assert np.mean(bounds) > 1.15
    assert sum(bound > 1.5 for bound in bounds) <= 6  # 1.5 expected; more than 6 is 1 in 1000


def test_the_bound_at_one_delta_is_zero_by_chance_and_falls_with_delta() -> None:
    assert Guesses(1000, (1000,), (500,)).epsilon_at_least(1e-5) == 0.0
    values = [
        Guesses(1000, (200,), (190,)).epsilon_at_least(delta) for delta in (0.0, 1e-5, 1e-3, 1e-2)
    ]
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0]


def budget(rate: float) -> Budget:
    """Return that of two steps at σ = 1."""
    return Budget(
        noise_multiplier=1.0,
        delta=1e-5,
        accountant="pld",
        sampler="poisson",
        participation=Participation(sampling_rate=rate, steps=2),
    )


def releases(sigma: float, rate: float, m: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the best scores, and the coins, of canaries in two steps of Poisson sampling."""
    draw = np.random.default_rng(seed)
    coins = draw.random(m) < 0.5
    taken = coins[:, None] & (draw.random((m, 2)) < rate)
    y = taken + sigma * draw.standard_normal((m, 2))
    ratios = np.exp((2 * y - 1) / (2 * sigma**2))
    return np.log(1 - rate + rate * ratios).sum(axis=1), coins


def test_a_claim_that_is_true_is_refuted_no_more_often_than_stated() -> None:
    """Two scores with three numbers of guesses each are looked at; the error is that of all."""
    curve, draw, wrong = claimed_curve(budget(0.5), 1.0), np.random.default_rng(5), 0
    for seed in range(200):
        scores, coins = releases(1.0, 0.5, 200, seed)
        both = np.vstack([scores, scores + draw.standard_normal(200)])
        wrong += bool(Guesses.by(both, coins).refute(curve, confidence=0.8).any())
    assert wrong / 200 < 0.2 + 3 * math.sqrt(0.2 * 0.8 / 200)


def test_what_half_the_noise_shows_is_above_the_claim_and_below_what_it_costs() -> None:
    scores, coins = releases(1.0, 1.0, 3000, 0)
    guesses, claim, claimed = Guesses.by(scores, coins), budget(1.0), 2.0
    bound = Refutation(guesses, claim, claimed, 0.95).bound(np.ones(3, dtype=bool))
    assert claim.spent(claimed) < bound.epsilon < claim.spent(1.0)
    assert bound.noise_multiplier is not None
    assert bound.epsilon == claim.spent(bound.noise_multiplier)
    assert guesses.refute(claimed_curve(claim, claimed), confidence=0.95).any()
    assert bound.epsilon > guesses.epsilon_at_least(1e-5)  # the whole curve shows more


def test_a_bound_follows_from_its_own_guesses_at_the_error_of_all() -> None:
    scores, coins = releases(1.0, 1.0, 1000, 1)
    every, claim = Guesses.by(np.vstack([scores, np.zeros(1000)]), coins), budget(1.0)
    first = np.arange(6) < 3
    single = Refutation(Guesses.by(scores, coins), claim, 1.0, 0.95)
    alone = single.bound(np.ones(3, dtype=bool))
    both = Refutation(every, claim, 1.0, 0.95)
    of_all, useless = both.bound(first), both.bound(~first)
    assert 0 < of_all.epsilon <= alone.epsilon
    assert (useless.epsilon, useless.noise_multiplier) == (0.0, None)
