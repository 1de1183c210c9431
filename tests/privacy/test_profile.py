"""Privacy profiles against closed forms and quadrature: never below the truth, and close to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from clipnoise.privacy.accountants import ACCOUNTANTS, AccountantName
from clipnoise.privacy.accountants.gaussian import gaussian_delta, gaussian_epsilon
from clipnoise.privacy.noise.buffered import BufferedNoise
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.profile import (
    DELTAS,
    EPSILONS,
    MARGIN,
    RATES,
    SLACK,
    PrivacyProfile,
    _Hull,
    _hull,
    _sampled,
    privacy_profile,
    rounded_up,
)

Array = NDArray[np.float64]
FPR = np.geomspace(1e-7, 0.5, 40)
SAMPLED: tuple[AccountantName, ...] = ("pld", "prv", "rdp")


# Each accountant with participations that it covers.
COVERED: list[tuple[AccountantName, dict[str, Any]]] = [
    ("pld", {"sampling_rate": 0.05, "steps": 100}),
    ("prv", {"sampling_rate": 0.05, "steps": 100}),
    ("rdp", {"sampling_rate": 0.05, "steps": 100}),
    ("pld", {"sampling_rate": 0.2, "groups": 4, "steps": 100}),
    ("pld-allocation", {"sampling_rate": 0.05, "groups": 20, "steps": 100}),
    ("per-epoch", {"sampling_rate": 1.0, "groups": 20, "steps": 100}),
    ("rdp", {"sampling_rate": 0.05, "steps": 100, "affected_examples": 4}),
    ("rdp-replace", {"sampling_rate": 0.05, "steps": 100, "examples": 1000}),
    ("pld", {"sampling_rate": 0.05, "steps": 100, "truncation_probability": 1e-12}),
]
QUICK = ["pld", "prv", "rdp", "per-epoch", "rdp-replace"]  # the others take seconds
DRAWN: dict[str, Any] = {
    "sampling_rate": 1.0,
    "groups": 4,
    "steps": 12,
    "noise": BufferedNoise(buffers=2),
}


def profile(accountant: AccountantName, sigma: float, **takes_part: Any) -> PrivacyProfile:
    return privacy_profile(Participation(**takes_part), accountant, sigma)


def rates(found: PrivacyProfile, false: Array = FPR) -> Array:
    return np.array([found.true_positive_rate(rate) for rate in false])


@pytest.mark.parametrize(("sigma", "releases"), [(0.5, 1), (1.0, 1), (20.0, 25)])
@pytest.mark.parametrize("accountant", ["pld", "rdp", "per-epoch"])
def test_without_sampling_mu_and_true_positive_rates_are_those_of_one_gaussian(
    accountant: AccountantName, sigma: float, releases: int
) -> None:
    found = profile(accountant, sigma, sampling_rate=1.0, steps=releases)
    mu = releases**0.5 / sigma
    assert found.mu == pytest.approx(mu, rel=1e-12)
    assert (found.slack, found.regret) == (0, 0)
    assert rates(found) == pytest.approx(ndtr(ndtri(FPR) + mu), rel=1e-9)
    assert found.delta_at(1.0) == pytest.approx(gaussian_delta(mu, np.array([1.0]))[0], rel=1e-9)


@pytest.mark.parametrize("sigma", [0.7, 2.0])
@pytest.mark.parametrize(("accountant", "above"), [("pld", 0.01), ("prv", 0.05), ("rdp", 0.7)])
def test_numerical_profiles_of_nearly_no_sampling_are_just_above_the_gaussian(
    accountant: AccountantName, above: float, sigma: float
) -> None:
    found = profile(accountant, sigma, sampling_rate=1 - 1e-12, steps=1)
    assert found.mu is not None
    assert 1 / sigma <= found.mu * (1 + 1e-6) <= (1 + above) / sigma
    exact = ndtr(ndtri(FPR) + 1 / sigma)
    assert (rates(found) >= exact * (1 - 1e-9)).all()


def sampled_release(sigma: float, rate: float, epsilons: Array) -> Array:
    """Return δ at each ε of one release, by quadrature of (p − e^ε q)₊ in both directions."""
    x = np.linspace(-12 * sigma, 1 + 12 * sigma, 400_001)
    without = np.exp(-((x / sigma) ** 2) / 2)
    member = np.exp(-(((x - 1) / sigma) ** 2) / 2)
    mixed = (1 - rate) * without + rate * member
    scale = (x[1] - x[0]) / (sigma * np.sqrt(2 * np.pi))
    return np.array(
        [
            max(
                np.maximum(mixed - np.exp(epsilon) * without, 0).sum(),
                np.maximum(without - np.exp(epsilon) * mixed, 0).sum(),
            )
            * scale
            for epsilon in epsilons
        ]
    )


def best_test(sigma: float, rate: float) -> Array:
    """Return the true positive rates of the likelihood ratio test, of a member in the batch."""
    return (1 - rate) * FPR + rate * ndtr(ndtri(FPR) + 1 / sigma)


@pytest.mark.parametrize(("sigma", "rate"), [(0.6, 0.1), (1.0, 0.01), (2.0, 0.5)])
@pytest.mark.parametrize("accountant", SAMPLED)
def test_one_sampled_release_is_never_below_quadrature(
    accountant: AccountantName, sigma: float, rate: float
) -> None:
    found = profile(accountant, sigma, sampling_rate=rate, steps=1)
    epsilons = np.array(found.epsilons)
    exact = sampled_release(sigma, rate, epsilons)
    assert (np.array(found.deltas) >= exact - 1e-10).all()
    assert (rates(found) >= best_test(sigma, rate) * (1 - 1e-6)).all()
    if accountant == "pld":
        assert np.array(found.deltas) == pytest.approx(exact, rel=0.02, abs=1e-6)
        assert rates(found) == pytest.approx(best_test(sigma, rate), rel=0.1, abs=2 * SLACK)


@pytest.mark.quick(sigma=[0.6])
@pytest.mark.parametrize(("sigma", "rate"), [(0.6, 0.1), (1.0, 0.01), (2.0, 0.5)])
def test_a_gaussian_with_mu_and_the_slack_dominates_and_one_with_a_smaller_mu_does_not(
    sigma: float, rate: float
) -> None:
    found = profile("pld", sigma, sampling_rate=rate, steps=1)
    epsilons = np.linspace(0, 12, 400)
    exact = sampled_release(sigma, rate, epsilons)
    assert found.mu is not None
    assert found.slack == SLACK

    def dominating(mu: float) -> Array:
        return SLACK + (1 - SLACK) * gaussian_delta(mu, epsilons)

    assert (dominating(found.mu) >= exact - 1e-12).all()
    assert (dominating(0.97 * found.mu) < exact - 1e-12).any()


@pytest.mark.parametrize(("accountant", "takes_part"), COVERED)
def test_every_accountant_gives_the_profile_that_goes_with_its_epsilon(
    accountant: AccountantName, takes_part: dict[str, Any]
) -> None:
    sigma = 3.0
    found = profile(accountant, sigma, **takes_part)
    for delta in DELTAS:
        epsilon = Participation(**takes_part).epsilon(
            accountant, noise_multiplier=sigma, delta=delta
        )
        known = found.epsilon_at(delta)
        assert known is not None
        assert epsilon * (1 - 1e-3) - 1e-3 <= known <= 1.02 * epsilon + 0.01
    assert found.mu is not None
    assert found.mu > 0


def test_an_epsilon_beyond_all_floats_says_nothing_of_true_positive_rates() -> None:
    found = privacy_profile(Participation(sampling_rate=0.05, steps=9), "rdp", 1e-2, (1e5, 1e-5))
    with np.errstate(all="raise"):
        assert found.true_positive_rate(0.0) <= 1
        assert found.true_positive_rate(0.01) <= 1


def test_every_accountant_has_a_case() -> None:
    assert {name for name, _ in COVERED} | {"monte-carlo"} == {*ACCOUNTANTS}


@pytest.mark.quick(accountant=QUICK)
@pytest.mark.parametrize(("accountant", "takes_part"), [*COVERED, ("monte-carlo", DRAWN)])
@pytest.mark.parametrize(("sigma", "delta"), [(0.9, 3e-5), (3.0, 1e-5), (9.0, 1e-3)])
def test_no_bound_of_a_profile_contradicts_the_epsilon_that_is_stated(
    accountant: AccountantName, takes_part: dict[str, Any], sigma: float, delta: float
) -> None:
    given = Participation(**takes_part)
    epsilon = given.epsilon(accountant, noise_multiplier=sigma, delta=delta)
    found = privacy_profile(given, accountant, sigma, (epsilon, delta))
    assert len(found.epsilons) < 160
    for larger in (delta, 1.5 * delta, 30 * delta):
        known = found.epsilon_at(larger)
        assert known is not None
        assert known <= epsilon
    for further in (0, 0.1, 3):
        assert found.delta_at(epsilon + further) <= delta
    for rate in RATES:
        assert found.true_positive_rate(rate) <= delta + np.exp(epsilon) * rate
    deltas = [found.delta_at(value) for value in np.linspace(0, 2 * epsilon, 50)]
    assert deltas == sorted(deltas, reverse=True)


@pytest.mark.quick(accountant=QUICK)
@pytest.mark.parametrize(("accountant", "takes_part"), COVERED)
def test_the_curve_of_a_profile_alone_is_close_to_the_epsilon_at_any_delta(
    accountant: AccountantName, takes_part: dict[str, Any]
) -> None:
    given = Participation(**takes_part)
    for sigma in (0.9, 3.0):
        found = profile(accountant, sigma, **takes_part)
        for delta in (1e-2, 3e-4, 3e-6):
            epsilon = given.epsilon(accountant, noise_multiplier=sigma, delta=delta)
            known = found.epsilon_at(delta)
            assert known is not None
            assert known <= 1.03 * epsilon + 0.02


def test_profiles_are_monotone() -> None:
    def of(sigma: float, steps: int) -> PrivacyProfile:
        return profile("pld", sigma, sampling_rate=0.05, steps=steps)

    weak, strong, short = of(1.0, 100), of(2.0, 100), of(1.0, 50)
    for found in (weak, strong, short):
        assert list(found.epsilons) == sorted(found.epsilons)
        assert list(found.deltas) == sorted(found.deltas, reverse=True)
        assert set(EPSILONS) & set(found.epsilons)
        assert (np.diff(rates(found)) > 0).all()
        assert (rates(found) >= FPR).all()
        assert found.regret is not None
        assert 0 < found.regret < 0.1
        assert found.slack == SLACK
    for less in (strong, short):
        assert weak.mu is not None
        assert less.mu is not None
        assert less.mu < weak.mu
        assert (rates(less) < rates(weak)).all()
        assert all(less.delta_at(epsilon) <= weak.delta_at(epsilon) for epsilon in EPSILONS)


def test_an_attack_is_bounded_from_both_sides_of_a_pair_of_epsilon_and_delta() -> None:
    """Of two lines, δ + e^ε α holds for small α and 1 − (1 − δ − α)/e^ε for large ones."""
    one = PrivacyProfile(epsilons=(1.0,), deltas=(0.1,), mu=None, slack=0.0)
    found = rates(one, np.array([0.0, 0.1, 0.3, 0.8]))
    small, large = 0.1 + np.e * 0.1, 1 - (1 - 0.1 - np.array([0.3, 0.8])) / np.e
    assert found == pytest.approx([0.1, small, *large])


def test_the_regret_of_pure_privacy_is_the_gap_to_the_gaussian_through_its_kink() -> None:
    """Its trade-off function is max(1 − eα, (1 − α)/e), so that α − β = d at (1 + d)/(1 + e)."""
    hull = _Hull(np.array([0.0, 1.0]), np.array([np.tanh(0.5), 0.0]))
    mu = hull.mu(0.0)
    assert mu == pytest.approx(2 * ndtri(np.e / (1 + np.e)) * (1 + MARGIN), rel=1e-12)

    def gap(d: float) -> float:
        alpha = brentq(lambda a: a - ndtr(-ndtri(a) - mu) - d, 1e-15, 0.5)
        return float((1 + d) / (1 + np.e) - alpha)

    expected = max(gap(d) for d in np.linspace(-0.999, -0.001, 2000))
    assert hull.regret(mu, 0.0) == pytest.approx(expected, rel=1e-3)
    kept, alike = 0.9, ndtr(-mu / 2)  # where both errors are the same
    assert hull.regret(mu, 0.1) >= 1 / (1 + np.e) - kept * alike
    assert hull.regret(mu, 0.1) < 0.1


def test_the_regret_is_that_of_what_is_seen_where_not_all_is_revealed() -> None:
    """With a slack, both trade-off curves shrink towards 0 by the same factor."""
    places, deltas = np.array([0.0, 0.5, 1.0]), np.array([0.5, 0.3, 0.0])
    hull = _Hull(places, deltas)
    mu = hull.mu(0.0)
    assert mu is not None
    revealing = _Hull(places, 0.1 + 0.9 * deltas)
    assert revealing.regret(mu, 0.1) == pytest.approx(0.9 * hull.regret(mu, 0.0), rel=1e-6)


def test_no_mu_is_given_where_the_profile_does_not_fall_to_the_slack() -> None:
    found = profile("rdp", 3.0, sampling_rate=0.05, steps=100, truncation_probability=1e-9)
    assert (found.mu, found.regret) == (None, None)
    assert found.unavailable == "δ does not fall to 1e-09 at any ε"
    assert found.epsilon_at(1e-9) is None
    assert RATES[0] < found.true_positive_rate(RATES[0]) < 0.01


def test_an_accountant_that_cannot_bound_the_profile_says_so() -> None:
    found = profile("pld", 1e-3, sampling_rate=0.05, steps=100)
    assert found.mu is None
    assert found.unavailable is not None
    assert found.unavailable.startswith("accountant: pld cannot bound epsilon")
    assert (found.delta_at(1.0), found.true_positive_rate(0.01)) == (1, 1)


def test_without_steps_nothing_can_be_found_out() -> None:
    found = profile("pld", 1.0, sampling_rate=0.05, steps=0)
    assert (found.mu, found.delta_at(0.0), found.epsilon_at(1e-6)) == (0, 0, 0)
    assert rates(found) == pytest.approx(FPR)


def test_a_point_that_is_stated_bounds_epsilon_by_itself() -> None:
    found = PrivacyProfile(epsilons=(0.0, 2.0), deltas=(0.5, 0.0), point=(1.0, 1e-3))
    assert found.epsilon_at(1e-3) == 1.0
    assert found.delta_at(1.0) == 1e-3


def test_what_is_stated_says_of_each_number_what_it_bounds() -> None:
    found = profile("pld", 2.0, sampling_rate=1.0, steps=1)
    lines, false = found.lines(nominal=False), [f"{rate:g}" for rate in RATES]
    assert lines["Gaussian DP"] == "μ = 0.5, exact"
    assert [found.stated().get(name) for name in ("mu", "slack", "regret")] == [0.5, 0, 0]
    assert lines["TPR at FPR"] == ", ".join(
        f"{at}: {rounded_up(found.true_positive_rate(rate))}"
        for at, rate in zip(false, RATES, strict=True)
    )
    assert [*found.lines(nominal=True)] == [f"{name}, nominal" for name in lines]


def test_a_gaussian_that_is_one_but_for_a_slack_is_stated_with_its_slack_and_gap() -> None:
    found = PrivacyProfile(epsilons=(1.0,), deltas=(0.1,), mu=1.2341, slack=1e-9, regret=0.01234)
    stated = "μ = 1.24, but for a probability of 1e-09; gap Δ = 0.013"
    assert found.lines(nominal=False)["Gaussian DP"] == stated
    without = PrivacyProfile(epsilons=(1.0,), deltas=(0.1,), unavailable="why")
    assert without.lines(nominal=False)["Gaussian DP"] == "not available: why"


def test_bounds_of_a_gaussian_with_a_slack_are_those_of_both_together() -> None:
    """With probability δ₀ all is seen, and with the rest an attack errs α/(1 − δ₀) as often."""
    found = PrivacyProfile(epsilons=(0.0, 50.0), deltas=(1.0, 0.2), mu=1.0, slack=0.2)
    assert found.epsilon_at(0.28) == pytest.approx(gaussian_epsilon(1.0, 0.1))
    assert found.delta_at(0.5) == pytest.approx(0.2 + 0.8 * gaussian_delta(1.0, np.array([0.5]))[0])
    small = 0.2 + 0.8 * ndtr(ndtri(0.1 / 0.8) + 1)
    assert rates(found, np.array([0.1, 0.9])) == pytest.approx([small, 1.0])


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1.2301, "1.24"), (1.23, "1.23"), (2e-7, "2e-07")]
)
def test_bounds_are_rounded_up(value: float, text: str) -> None:
    assert rounded_up(value) == text


def test_mu_is_that_of_the_gaussian_which_is_seen_where_not_all_is_revealed() -> None:
    places = np.linspace(0, 9, 2000)
    found = _Hull(places, 0.1 + 0.9 * gaussian_delta(1.0, places)).mu(0.1 + 1e-12)
    assert found == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("seed", range(8))
def test_a_hull_is_convex_and_below_all_points_with_some_of_which_it_agrees(seed: int) -> None:
    places = np.linspace(1, 20, 60)
    deltas = 1 / places + np.random.default_rng(seed).uniform(0, 0.2, 60)
    hull = _hull(np.log(places), deltas)
    corners = np.exp(hull.epsilons)
    assert (np.diff(np.diff(hull.deltas) / np.diff(corners)) > 0).all()
    assert (np.interp(places, corners, hull.deltas) <= deltas + 1e-12).all()
    assert set(hull.deltas) <= set(deltas)
    assert (hull.deltas[0], hull.deltas[-1]) == (deltas[0], deltas.min())


def test_a_profile_that_says_nothing_at_some_epsilon_has_no_mu() -> None:
    assert _Hull(np.array([0.0, 1.0]), np.array([1.0, 0.0])).mu(0.0) is None


def sampled(sigma: float) -> tuple[Participation, _Hull]:
    given = Participation(sampling_rate=0.05, steps=100)
    found = _sampled(lambda at: given.deltas("rdp", at, noise_multiplier=sigma, least=SLACK))
    return given, _hull(*found)


@pytest.mark.parametrize("sigma", [0.9, 3.0])
def test_between_its_points_a_profile_is_close_to_what_the_accountant_finds(sigma: float) -> None:
    given, hull = sampled(sigma)
    between = np.linspace(0, 0.8 * hull.epsilons[-1], 333)
    true = given.deltas("rdp", between, noise_multiplier=sigma, least=SLACK)
    chords = np.interp(np.exp(between), np.exp(hull.epsilons), hull.deltas)
    seen = true > 10 * SLACK
    assert (chords[seen] < 1.01 * true[seen]).all()


def test_the_points_that_are_kept_bound_what_is_stated_as_all_of_them_do() -> None:
    places = np.linspace(0.013, 9.0, 400)
    hull = _Hull(places, gaussian_delta(1.3, places))
    kept = hull.thinned()
    assert len(kept.epsilons) < len(places) / 2
    for epsilon in EPSILONS:
        bounds = [
            np.interp(np.exp(epsilon), np.exp(one.epsilons), one.deltas) for one in (hull, kept)
        ]
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-12)
    for delta in DELTAS:
        bounds = [
            np.interp(delta, one.deltas[::-1], np.exp(one.epsilons)[::-1]) for one in (hull, kept)
        ]
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-12)
