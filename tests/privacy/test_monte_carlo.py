"""The Monte Carlo accountant: its ε is not below what the noise costs, and close above it."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from budgets import flat_budget
from mechanisms import mechanism
from numpy.typing import NDArray
from small_samples import misled

from clipnoise.cli import main
from clipnoise.errors import UserError
from clipnoise.privacy.accountants import monte_carlo
from clipnoise.privacy.accountants.allocation import allocated_epsilon
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.accountants.mixture import (
    MOST_TILTS,
    Weighted,
    _log_most_remaining,
    bound,
    log_most,
)
from clipnoise.privacy.accountants.monte_carlo import FAILURE, GRIDS, SIGMAS
from clipnoise.privacy.accountants.patterns import Pattern
from clipnoise.privacy.accountants.poisson import AccountantError, Releases
from clipnoise.privacy.accountants.turns import Turns
from clipnoise.privacy.budget import Budget, Privacy
from clipnoise.privacy.calibration import TOLERANCE, calibrate, read_calibration
from clipnoise.privacy.claim import claim, state
from clipnoise.privacy.noise import IndependentNoise, NoiseCorrelation, OwnNoise
from clipnoise.privacy.noise.banded import BandedNoise
from clipnoise.privacy.noise.banded_inverse import BandedInverseNoise
from clipnoise.privacy.noise.buffered import BufferedNoise
from clipnoise.privacy.noise.cancelling import CancellingNoise
from clipnoise.privacy.noise.tree import TreeNoise
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.profile import COARSE, privacy_profile

Array = NDArray[np.float64]
NOISES: list[NoiseCorrelation] = [
    IndependentNoise(), BandedNoise(bands=3), BufferedNoise(buffers=2),
    BandedInverseNoise(bands=3), CancellingNoise(cancelled=0.8), TreeNoise(),
]  # fmt: skip
PATTERN: dict[str, Any] = {
    "groups": 5, "sampling_rate": 1.0, "steps": 30, "noise": BandedInverseNoise(bands=4)
}  # fmt: skip
LINE = np.linspace(-9, 12, 1401)


def takes_part(noise: NoiseCorrelation, groups: int, steps: int) -> Participation:
    return Participation(groups=groups, sampling_rate=1.0, steps=steps, noise=noise)


def spent(noise: NoiseCorrelation, groups: int, steps: int, sigma: float, delta: float) -> float:
    given = takes_part(noise, groups, steps)
    return given.epsilon("monte-carlo", noise_multiplier=sigma, delta=delta)


def divergences(inside: Array, outside: Array, value: float) -> tuple[float, float]:
    """Return δ at ε of two densities on a grid, in both directions."""
    times = math.exp(value)
    return (
        float(np.maximum(inside - times * outside, 0).sum()),
        float(np.maximum(outside - times * inside, 0).sum()),
    )


def normal(x: Array, mean: Any) -> Array:
    return np.asarray(np.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi) * (LINE[1] - LINE[0]))


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.id)
@pytest.mark.parametrize("sigma", [0.7, 1.5])
def test_two_steps_cost_what_quadrature_finds(noise: NoiseCorrelation, sigma: float) -> None:
    strategy = noise.strategy(2, 2)
    c = np.eye(2) if strategy is None else np.abs(strategy.matrix())
    first, second = (
        np.outer(normal(LINE, c[0, s] / sigma), normal(LINE, c[1, s] / sigma)) for s in range(2)
    )
    absent = np.outer(normal(LINE, 0.0), normal(LINE, 0.0))
    for delta in (1e-2, 1e-5):
        found = spent(noise, 2, 2, sigma, delta)
        assert max(divergences((first + second) / 2, absent, found)) <= delta
        assert max(divergences((first + second) / 2, absent, 0.97 * found - 0.01)) > delta


@pytest.mark.parametrize("seed", range(4))
def test_no_adaptive_steps_cost_more_than_equal_ones(seed: int) -> None:
    """An example adds u_1, and u_2 that depends on the first release; C has any signs."""
    random = np.random.default_rng(seed)
    c = np.array([[1.0, 0.0], [random.uniform(-1, 1), 1.0]])
    u1, bend, offset = random.uniform(-1, 1, 3)
    later = np.tanh(4 * bend * LINE + offset)[:, None]  # the second gradient, after release y_1
    absent = np.outer(normal(LINE, 0.0), normal(LINE, 0.0))
    first = normal(LINE, u1)[:, None] * normal(LINE[None], c[1, 0] * u1)
    second = normal(LINE, 0.0)[:, None] * normal(LINE[None], later)
    size = np.abs(c)
    worst = [np.outer(normal(LINE, size[0, s]), normal(LINE, size[1, s])) for s in range(2)]
    for value in (0.0, 0.5, 1.0, 2.0):
        real = divergences((first + second) / 2, absent, value)
        dominating = divergences(sum(worst) / 2, absent, value)
        assert all(a <= b + 1e-9 for a, b in zip(real, dominating, strict=True))


@pytest.mark.quick(noise=[NOISES[0], NOISES[3]])
@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.id)
def test_plain_draws_agree(noise: NoiseCorrelation) -> None:
    """At a δ that needs no weights, runs of 12 steps are drawn whole, in both directions."""
    groups, steps, sigma, draws = 4, 12, 2.0, 100_000
    value = spent(noise, groups, steps, sigma, 0.02)
    strategy = noise.strategy(steps, groups)
    c = np.eye(steps) if strategy is None else np.abs(strategy.matrix())
    means = np.stack([c[:, s::groups].sum(axis=1) / sigma for s in range(groups)])
    random = np.random.default_rng(0)
    deltas = []
    for sign in (1, -1):
        y = random.standard_normal((draws, steps))
        if sign == 1:
            y += means[random.integers(groups, size=draws)]
        losses = np.log(np.exp(y @ means.T - (means**2).sum(axis=1) / 2).mean(axis=1))
        costs = np.maximum(0.0, -np.expm1(value - sign * losses))
        deltas.append((costs.mean(), costs.std() / math.sqrt(draws)))
    delta, error = max(deltas)
    assert 0.85 * 0.02 - 5 * error < delta < 0.02 + 5 * error


@pytest.mark.quick(groups=[10], sigma=[1.0])
@pytest.mark.parametrize(("sigma", "groups"), [(1.0, 10), (2.0, 10), (1.0, 40)])
def test_one_epoch_of_independent_noise_is_random_allocation(sigma: float, groups: int) -> None:
    exact = allocated_epsilon(
        Releases(noise_multiplier=sigma, sampling_rate=1 / groups, steps=1, delta=1e-5)
    )
    assert 0.999 * exact < spent(IndependentNoise(), groups, groups, sigma, 1e-5) < 1.06 * exact


def test_an_epoch_that_a_run_does_not_finish_costs_less_than_a_whole_one() -> None:
    """In 4 of the 8 steps of an epoch half of the turns do not occur."""
    noise = BufferedNoise(buffers=2)
    assert 0 < spent(noise, 8, 4, 1.0, 1e-3) < spent(noise, 8, 8, 1.0, 1e-3)


def test_the_profile_is_not_below_what_quadrature_finds_and_agrees_with_epsilon() -> None:
    given, sigma = takes_part(IndependentNoise(), 2, 2), 1.0
    moved = [np.outer(normal(LINE, 1.0), normal(LINE, 0.0)) for _ in range(2)]
    present, absent = (moved[0] + moved[1].T) / 2, np.outer(normal(LINE, 0.0), normal(LINE, 0.0))
    epsilons = np.array([0.0, 0.5, 1.0, 2.0, 3.0])
    found = given.deltas("monte-carlo", epsilons, noise_multiplier=sigma, least=1e-5)
    assert (np.diff(found) <= 0).all()
    for value, delta in zip(epsilons, found, strict=True):
        exact = max(divergences(present, absent, float(value)))
        assert exact < delta < 1.15 * exact + 1e-5
    assert given.gaussian("monte-carlo", sigma) is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("sigma", "groups"), [(1.0, 2), *(pytest.param(s, 4, marks=pytest.mark.long) for s in (1, 3))]
)
def test_a_profile_is_close_at_every_delta_for_which_epsilon_could_be_stated(
    sigma: float, groups: int
) -> None:
    """Also far from the δ that it is asked for."""
    given = takes_part(BufferedNoise(buffers=2), groups, 5 * groups)
    profile = privacy_profile(given, "monte-carlo", sigma)
    for delta in (1e-3, 1e-6):
        stated = given.epsilon("monte-carlo", noise_multiplier=sigma, delta=delta)
        assert profile.epsilon_at(delta) == pytest.approx(stated, rel=0.03)
    assert profile.mu is not None
    assert profile.regret is not None
    assert profile.regret < 0.01


def test_a_profile_chooses_among_no_more_grids_than_its_confidence_allows() -> None:
    assert COARSE + 2 <= GRIDS  # the first grid, and one for each place where δ may have fallen


def test_one_group_is_the_gaussian_mechanism() -> None:
    exact = gaussian_epsilon(2.0 / math.sqrt(5), 1e-5)
    assert exact < spent(IndependentNoise(), 1, 5, 2.0, 1e-5) < 1.02 * exact


@pytest.mark.quick(noise=[NOISES[0], NOISES[3]])
@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.id)
def test_a_drawn_turn_costs_less_than_a_fixed_one_and_more_than_a_share_of_it(
    noise: NoiseCorrelation,
) -> None:
    fixed = gaussian_epsilon(3.0 / math.sqrt(4), 1e-4)
    drawn = spent(noise, 8, 32, 3.0, 1e-4)
    assert fixed - math.log(8) < drawn < fixed
    assert drawn < spent(noise, 8, 32, 2.5, 1e-4)


def mixture() -> Turns:
    pattern = Pattern(noise=BandedInverseNoise(bands=3), groups=5, steps=15)
    return Turns(pattern.gram(15) / 2.5**2)


def test_weights_stay_within_their_bound_and_do_not_change_the_mean() -> None:
    of, value = mixture(), 0.5
    for sign, drawings in (
        (1, [of.tilted(k) for k in (1, 2, 4, 7)]),
        (-1, [of.shifted(tau) for tau in (0.0, 1.0, 4.0)]),
    ):
        found = []
        for drawn in drawings:
            remaining = np.maximum(sign * (np.exp(drawn.log_ratios) - math.exp(value * sign)), 0)
            if sign == -1:
                remaining = remaining * math.exp(value)
            logs = drawn.log_weights + drawn.power * drawn.log_ratios
            most = drawn.log_most + log_most(sign, drawn.power, value)
            costs = np.exp(logs) * remaining
            if drawn.power != -1:  # unweighted draws of P: at most 1 after division by R
                assert costs.max() <= math.exp(most) * (1 + 1e-9)
            found.append((costs.mean(), costs.std() / math.sqrt(len(costs))))
        means, errors = np.array(found).T
        assert (abs(means - means[-1]) <= 5 * np.hypot(errors, errors[-1])).all()


def test_draws_are_the_same_in_every_call() -> None:
    for first, second in (
        [mixture().tilted(2) for _ in range(2)],
        [mixture().shifted(0.5) for _ in range(2)],
    ):
        np.testing.assert_array_equal(first.log_ratios, second.log_ratios)
        np.testing.assert_array_equal(first.log_weights, second.log_weights)


def test_no_more_patterns_are_drawn_in_turn_than_are_accounted_for() -> None:
    """With so much noise, more of them would always be better."""
    assert Turns(1e-6 * np.eye(3)).tilt(1e-9) == MOST_TILTS


def test_shifted_draws_have_the_mean_of_plain_ones_where_turns_move_unlike_amounts() -> None:
    """The mean of R under Q is 1, and so is that of all weights."""
    drawn = Turns(np.diag([0.3, 2.0])).shifted(1.0)
    weights = np.exp(drawn.log_weights + drawn.power * drawn.log_ratios)
    for values in (weights, weights * np.exp(drawn.log_ratios)):
        assert abs(values.mean() - 1) < 5 * values.std() / math.sqrt(len(values)) < 0.06


def test_draws_that_show_nothing_leave_what_their_number_may_hide() -> None:
    """Of n draws that are all 0, a value of at most 1 has the bound 2 ln(1/ρ)/n."""
    drawn = Weighted(np.full(1000, -5.0), np.zeros(1000), -1.0, 0.0)
    assert bound(drawn, 20.0, sign=1)(0.0) == pytest.approx(2 * 20.0 / 1000)


def test_draws_are_tilted_by_more_than_one_pattern_below_a_delta_of_a_hundredth() -> None:
    of = Turns(1e-6 * np.eye(3))
    assert of.tilt(0.01) == 1 < of.tilt(0.00995)


def test_the_bound_errs_seldom() -> None:
    """At ρ = 0.05 for each of two bounds, fewer than a fifth of small samples mislead."""
    assert misled(mixture().tilted(3), 1.0, size=256) <= 80


def test_epsilon_grows_with_the_steps_that_are_released() -> None:
    given = takes_part(BufferedNoise(buffers=2), 6, 24)
    values = [
        given.epsilon("monte-carlo", noise_multiplier=2.0, delta=1e-4, steps=t)
        for t in (0, 3, 6, 12, 24)
    ]
    assert values[0] == 0
    assert values == sorted(values)
    assert values[-1] == given.epsilon("monte-carlo", noise_multiplier=2.0, delta=1e-4)


def asked(**values: Any) -> Any:
    return mechanism(
        "balls-in-bins", examples=100, expected_batch_size=20, steps=30,
        accountant="monte-carlo", **values,
    )  # fmt: skip


def test_the_chance_that_draws_mislead_is_a_share_of_delta_and_left_out_of_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two bounds a direction err with 4ρ at each σ, and six with 12ρ at each σ, grid and ε."""
    asked: dict[str, tuple[Any, ...]] = {}

    class Asked:
        def epsilon(self, *values: Any) -> float:
            asked["epsilon"] = values
            return 1.0

        def deltas(self, *values: Any) -> Array:
            asked["deltas"] = values
            return np.zeros(3)

    monkeypatch.setattr(monte_carlo, "_mixture", lambda releases: Asked())
    releases = Releases(noise_multiplier=2.0, sampling_rate=1.0, steps=3, delta=1e-5)
    assert monte_carlo.monte_carlo_epsilon(releases) == 1.0
    delta, certainty = asked["epsilon"]
    assert delta + 4 * SIGMAS * math.exp(-certainty) == pytest.approx(1e-5, rel=1e-9)
    found = monte_carlo.monte_carlo_delta(releases, np.array([0.0, 1.0, 2.0]))
    _, least, certainty = asked["deltas"]
    chance = 12 * SIGMAS * GRIDS * 3 * math.exp(-certainty)
    assert (least, chance) == pytest.approx((1e-5, FAILURE * 1e-5), rel=1e-9)
    assert found == pytest.approx([chance] * 3, rel=1e-9)


@pytest.mark.long
def test_a_calibration_meets_its_target() -> None:
    budget = flat_budget(
        epsilon=2.0, delta=1e-3, accountant="monte-carlo", sampler="balls-in-bins",
        evaluation_steps=(10, 30), **PATTERN,
    )  # fmt: skip
    found = calibrate(budget)
    assert 2 - TOLERANCE < found.epsilon <= 2
    assert 0 < found.spent[10] < found.spent[30] == found.epsilon


def test_the_options_of_a_budget_describe_its_noise(tmp_path: Path) -> None:
    participation = asked(noise=PATTERN["noise"]).participation
    assert {name: getattr(participation, name) for name in PATTERN} == PATTERN
    budget = Budget(
        noise_multiplier=2.0, delta=1e-3, accountant="monte-carlo", sampler="balls-in-bins",
        participation=participation,
    )  # fmt: skip
    words = shlex.split(budget.options())
    assert words[words.index("--noise") + 1] == '{"bands": 4, "kind": "banded-inverse"}'
    path = tmp_path / "calibration.json"
    assert main(["calibrate", *words, "--out", str(path)]) == 0
    assert read_calibration(path).budget == budget


@pytest.mark.long
def test_the_statement_says_what_was_verified_by_draws() -> None:
    of = asked(noise=BufferedNoise(buffers=2))
    assert (claim(of), of.adjacency) == ("guarantee", "add-remove")
    privacy = Privacy(epsilon=4.0, sampler="balls-in-bins", accountant="monte-carlo")
    calibration = calibrate(of.budget(privacy, None))
    stated = state(of, privacy, calibration, private=True, clip_norm=1.0)
    assert stated.covers is not None
    assert "at most δ/100, that they mislead" in stated.covers


def test_each_example_keeps_one_step_of_every_epoch() -> None:
    counts = torch.zeros(5)
    for seed in range(200):
        stream = asked().batches(torch.Generator().manual_seed(seed))
        first, second = ([stream.sample().tolist() for _ in range(5)] for _ in range(2))
        assert first == second
        assert sorted(index for batch in first for index in batch) == list(range(100))
        counts += torch.tensor([len(batch) for batch in first])
    assert (counts / 20_000 - 0.2).abs().max() < 5 * math.sqrt(0.2 * 0.8 / 20_000)


class Unknown(OwnNoise):
    """A user's kind of noise."""

    id = "unknown-of-monte-carlo"

    def entries(self, steps: int) -> list[float]:
        return [1.0, 0.5]


def test_what_is_not_covered_is_refused() -> None:
    with pytest.raises(UserError, match="'pld' is for independent noise"):
        _ = replace(asked(noise=BandedNoise(bands=2)), accountant="pld").participation
    with pytest.raises(UserError, match="noise of the package"):
        _ = asked(noise=Unknown()).participation
    with pytest.raises(UserError, match="'monte-carlo' assumes"):
        _ = mechanism(
            "poisson", examples=10, expected_batch_size=1, steps=1, accountant="monte-carlo"
        ).participation
    for steps in (5001, 6000):
        with pytest.raises(AccountantError, match="at most 5000 steps"):
            spent(IndependentNoise(), 100, steps, 1.0, 1e-5)
    monte_carlo._refuse_long(Pattern(noise=IndependentNoise(), groups=250, steps=5000))
    with pytest.raises(AccountantError, match="epochs of at most 250"):
        spent(IndependentNoise(), 300, 600, 1.0, 1e-5)
    with pytest.raises(AccountantError, match="too small"):
        spent(IndependentNoise(), 10, 10, 0.005, 1e-5)
    with pytest.raises(UserError, match="noise: required for the accountant"):
        flat_budget(
            epsilon=1.0, delta=1e-5, groups=10, sampling_rate=1.0, steps=100,
            sampler="balls-in-bins", accountant="monte-carlo",
        )  # fmt: skip


def test_any_noise_may_be_accounted_without_amplification() -> None:
    of = replace(asked(noise=BufferedNoise(buffers=2)), accountant="per-epoch")
    assert claim(of) == "guarantee"
    found = of.participation.epsilon("per-epoch", noise_multiplier=2.0, delta=1e-3)
    assert found == pytest.approx(gaussian_epsilon(2.0 / math.sqrt(6), 1e-3))


@pytest.mark.parametrize("sign", [1, -1])
def test_draws_outside_the_divergence_count_nothing_however_large_their_weights(sign: int) -> None:
    ratios = sign * np.array([-300.0, 5.0])
    power = -20.0 if sign == 1 else 20.0
    both = Weighted(ratios, np.array([0.0, -30.0]), power, 0.0)
    outside = Weighted(ratios, np.array([-np.inf, -30.0]), power, 0.0)
    for value in (0.0, 1.0, 50.0):
        with np.errstate(over="raise", invalid="raise"):
            assert bound(both, 20.0, sign=sign)(value) == bound(outside, 20.0, sign=sign)(value)


@pytest.mark.parametrize(("sign", "power"), [(1, -3.0), (1, -1.5), (-1, 2.0), (-1, 0.5)])
def test_the_largest_value_is_where_the_divergence_and_the_weight_balance(
    sign: int, power: float
) -> None:
    epsilon, ratios = 0.7, np.exp(np.linspace(-12, 12, 400_001))
    excess = ratios - math.exp(epsilon) if sign == 1 else 1 - math.exp(epsilon) * ratios
    largest = (np.maximum(excess, 0) * ratios**power).max()
    assert log_most(sign, power, epsilon) == pytest.approx(math.log(largest), abs=1e-8)


def test_what_remains_of_a_weight_is_its_largest_value_at_an_epsilon_of_0() -> None:
    for k in range(2, 9):
        assert _log_most_remaining(k) == pytest.approx(log_most(1, -k, 0.0))
