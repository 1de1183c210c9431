"""b-min-sep: what the sampler draws, and that its ε is not below what the noise costs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from budgets import flat_budget
from mechanisms import mechanism
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import binom
from small_samples import misled
from waiting import patterns

from clipnoise.errors import UserError
from clipnoise.privacy.accountants import separated
from clipnoise.privacy.accountants.mixture import log_mean_exp, log_most
from clipnoise.privacy.accountants.patterns import Pattern
from clipnoise.privacy.accountants.poisson import AccountantError
from clipnoise.privacy.accountants.separated import Separated, _Patterns, _tails
from clipnoise.privacy.calibration import TOLERANCE, calibrate
from clipnoise.privacy.claim import claim
from clipnoise.privacy.noise import IndependentNoise, NoiseCorrelation
from clipnoise.privacy.noise.banded import BandedNoise
from clipnoise.privacy.noise.buffered import BufferedNoise
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.samplers import BMinSepSampler

Array = NDArray[np.float64]


def noise_of(bands: int) -> NoiseCorrelation:
    return BandedNoise(bands=bands) if bands > 1 else IndependentNoise()


def spent(
    bands: int, steps: int, rate: float, sigma: float, delta: float, first: int | None = None
) -> float:
    given = Participation(groups=bands, sampling_rate=rate, steps=steps, noise=noise_of(bands))
    return given.epsilon("monte-carlo", noise_multiplier=sigma, delta=delta, steps=first)


def means(bands: int, steps: int, rate: float, sigma: float) -> tuple[Array, Array]:
    """Return what each pattern moves the rows of Cx by, over σ, and its probability."""
    every, chances = patterns(bands, steps, rate)
    strategy = noise_of(bands).strategy(steps, bands)
    c = np.eye(steps) if strategy is None else np.abs(strategy.matrix())
    return every @ c.T / sigma, chances


def mixture(bands: int, steps: int, rate: float, sigma: float) -> Separated:
    pattern = Pattern(noise=noise_of(bands), groups=bands, steps=steps, sampling_rate=rate)
    return Separated(pattern.column() / sigma, rate, steps)


def moves(every: Array, of: Separated) -> Array:
    """Return what each pattern moves, over σ, as the bound takes it: all columns whole."""
    return np.stack([np.convolve(pattern, of.column) for pattern in every])


@pytest.mark.parametrize(("bands", "rate"), [(1, 0.3), (2, 0.4), (3, 0.2), (5, 0.7)])
def test_moments_and_ratios_are_those_of_all_patterns(bands: int, rate: float) -> None:
    steps, of = 6, mixture(bands, 6, rate, 1.3)
    every, chances = patterns(bands, steps, rate)
    assert chances.sum() == pytest.approx(1)
    moved = moves(every, of)
    gram = moved @ moved.T
    pairs = np.exp(gram)
    assert of.log_normaliser(1) == pytest.approx(0, abs=1e-12)
    assert of.log_normaliser(2) == pytest.approx(math.log(chances @ pairs @ chances))
    triples = np.einsum("i,j,k,ij,ik,jk", chances, chances, chances, pairs, pairs, pairs)
    assert of.log_normaliser(3) == pytest.approx(math.log(triples))
    y = np.random.default_rng(0).normal(0.3, 1.5, (moved.shape[1], 20))
    ratios = chances @ np.exp(moved @ y - np.diag(gram)[:, None] / 2)
    np.testing.assert_allclose(of.log_ratios(y), np.log(ratios), rtol=1e-10)


def test_one_pattern_is_drawn_by_the_law_of_the_sampler() -> None:
    every, chances = patterns(3, 6, 0.4)
    random = np.random.default_rng(0)
    drawn = _Patterns(mixture(3, 6, 0.4, 1.3), 1).draw(40_000, random)
    counts = Counter(map(tuple, drawn.T.tolist()))
    found = [counts[tuple(pattern)] / 40_000 for pattern in every.astype(int).tolist()]
    assert sum(counts.values()) == sum(counts[tuple(p)] for p in every.astype(int).tolist())
    assert found == pytest.approx(chances, abs=4 * math.sqrt(0.25 / 40_000))


def test_two_patterns_are_drawn_more_often_together_the_more_they_overlap() -> None:
    every, chances = patterns(3, 6, 0.4)
    of = mixture(3, 6, 0.4, 1.3)
    moved = moves(every, of)
    pairs = chances[:, None] * chances * np.exp(moved @ moved.T)
    expected = 2 * (pairs.sum(axis=1) / pairs.sum()) @ every  # in each step, of two patterns
    drawn = _Patterns(of, 2).draw(40_000, np.random.default_rng(0))
    assert drawn.mean(axis=1) == pytest.approx(expected, abs=4 / math.sqrt(40_000))


def test_as_many_patterns_are_drawn_as_have_few_enough_states() -> None:
    of = mixture(30, 60, 0.1, 1.3)
    few, more = (len(list(separated._states(of.most_tilts + n, 29))) for n in (0, 1))
    assert few <= separated.MOST_STATES < more
    assert mixture(2, 6, 0.1, 1.3).most_tilts == separated.MOST_TILTS


def test_independent_noise_has_a_column_of_one_entry() -> None:
    assert Pattern(noise=IndependentNoise(), groups=3, steps=5).column().tolist() == [1, 0, 0]


def test_what_is_drawn_is_the_same_in_every_call() -> None:
    first, second = (mixture(2, 3, 0.3, 2.0) for _ in range(2))
    assert np.array_equal(first.absent, second.absent)
    assert np.array_equal(first.tilted(2).log_ratios, second.tilted(2).log_ratios)


LINE = np.linspace(-9, 12, 1051)


def divergence(inside: Array, outside: Array, value: float) -> float:
    return float(np.maximum(inside - math.exp(value) * outside, 0).sum())


def quadrature(rate: float, sigma: float) -> tuple[Array, Array]:
    """Return the densities of two released rows with and without the example, for two bands."""
    moved, chances = means(2, 2, rate, sigma)
    width = LINE[1] - LINE[0]

    def density(mean: Array) -> Array:
        each = [np.exp(-((LINE - m) ** 2) / 2) / math.sqrt(2 * math.pi) * width for m in mean]
        return np.outer(*each)

    present = sum(chance * density(mean) for mean, chance in zip(moved, chances, strict=True))
    return np.asarray(present), density(np.zeros(2))


@pytest.mark.parametrize(("sigma", "rate"), [(0.7, 0.3), (1.5, 0.3), (1.5, 0.9)])
def test_two_steps_cost_at_least_what_quadrature_finds(sigma: float, rate: float) -> None:
    present, absent = quadrature(rate, sigma)
    for delta in (1e-2, 1e-5):
        found = spent(2, 2, rate, sigma, delta)
        assert max(divergence(present, absent, found), divergence(absent, present, found)) <= delta
        # The last column counts as whole, so it is above the exact value by a few per cent.
        assert divergence(present, absent, 0.9 * found - 0.01) > delta


@pytest.mark.quick(bands=[4])
@pytest.mark.parametrize(("bands", "rate"), [(1, 0.15), (3, 0.2), (4, 0.6)])
def test_plain_draws_of_whole_runs_agree(bands: int, rate: float) -> None:
    steps, sigma, draws = 12, 2.0, 100_000
    value = spent(bands, steps, rate, sigma, 0.02)
    moved, chances = means(bands, steps, rate, sigma)
    random = np.random.default_rng(0)
    deltas = []
    for sign in (1, -1):
        y = random.standard_normal((draws, steps))
        if sign == 1:
            y += moved[random.choice(len(moved), p=chances, size=draws)]
        losses = np.log(np.exp(y @ moved.T - (moved**2).sum(axis=1) / 2) @ chances)
        costs = np.maximum(0.0, -np.expm1(value - sign * losses))
        deltas.append((costs.mean(), costs.std() / math.sqrt(draws)))
    delta, error = max(deltas)
    assert 0.8 * 0.02 - 5 * error < delta < 0.02 + 5 * error


@pytest.mark.quick(noise=[BandedNoise(bands=2)])
@pytest.mark.parametrize("noise", [IndependentNoise(), BandedNoise(bands=2)])
def test_an_example_may_wait_for_longer_than_the_noise_has_bands(noise: NoiseCorrelation) -> None:
    steps, rate, sigma = 7, 0.4, 1.5
    pattern = Pattern(noise=noise, groups=4, steps=steps, sampling_rate=rate)
    of = Separated(pattern.column() / sigma, rate, steps)
    every, chances = patterns(4, steps, rate)
    moved = moves(every, of)
    pairs = np.exp(moved @ moved.T)
    assert of.log_normaliser(2) == pytest.approx(math.log(chances @ pairs @ chances))
    given = Participation(groups=4, sampling_rate=rate, steps=steps, noise=noise)
    long = given.epsilon("monte-carlo", noise_multiplier=sigma, delta=1e-4)
    assert long < spent(2, steps, rate, sigma, 1e-4)


@pytest.mark.long
@pytest.mark.parametrize("rate", [0.02, 0.2])
def test_one_band_costs_what_poisson_sampling_does(rate: float) -> None:
    poisson = Participation(sampling_rate=rate, steps=50)
    exact = poisson.epsilon("pld", noise_multiplier=1.5, delta=1e-5)
    assert 0.999 * exact < spent(1, 50, rate, 1.5, 1e-5) < 1.02 * exact


@pytest.mark.long
def test_nearly_certain_participation_is_close_to_balls_in_bins() -> None:
    noise = noise_of(3)
    bins = Participation(groups=3, sampling_rate=1.0, steps=30, noise=noise)
    drawn = bins.epsilon("monte-carlo", noise_multiplier=4.0, delta=1e-4)
    assert spent(3, 30, 1 - 1e-9, 4.0, 1e-4) == pytest.approx(drawn, rel=0.1)


@pytest.mark.long
def test_it_costs_less_than_drawing_within_fixed_groups() -> None:
    bands, steps, rate, sigma = 4, 60, 0.1, 1.0
    apart = rate / (1 - (bands - 1) * rate)
    cyclic = Participation(groups=bands, sampling_rate=bands * rate, steps=steps)
    fixed = cyclic.epsilon("pld", noise_multiplier=sigma, delta=1e-5)
    assert spent(bands, steps, apart, sigma, 1e-5) < 0.95 * fixed


@pytest.mark.long
def test_weights_stay_within_their_bound_and_do_not_change_the_mean() -> None:
    of, value, found = mixture(3, 15, 0.2, 1.0), 0.5, []
    for k in (1, 2, 3, 4):
        drawn = of.tilted(k)
        costs = np.exp(drawn.log_weights + drawn.power * drawn.log_ratios) * np.maximum(
            np.exp(drawn.log_ratios) - math.exp(value), 0
        )
        most = drawn.log_most + log_most(1, drawn.power, value)
        assert costs.max() <= math.exp(most) * (1 + 1e-9)
        found.append((costs.mean(), costs.std() / math.sqrt(len(costs))))
    averages, errors = np.array(found).T
    assert (abs(averages - averages[0]) <= 5 * np.hypot(errors, errors[0])).all()


def test_the_tail_of_adding_an_example_is_above_what_quadrature_finds() -> None:
    """Also where no draw reaches; a line through points left of the tail would be below it."""
    rate, sigma = 0.9, 1.0
    present, absent = quadrature(rate, sigma)
    random = np.random.default_rng(1)
    moved, chances = means(2, 2, rate, sigma)
    y = random.standard_normal((50_000, 2))
    ratios = np.sort(np.log(np.exp(y @ moved.T - (moved**2).sum(axis=1) / 2) @ chances))
    tails = list(_tails(ratios, 30.0))
    assert tails
    reached = False
    for value in (1.5, 2.5, 3.5):
        exact, bounds = divergence(absent, present, value), [tail(value) for tail in tails]
        assert all(exact <= one for one in bounds)
        reached |= min(bounds) < 1e-5
    assert reached


def test_the_tail_of_one_normal_is_that_of_the_gaussian_mechanism() -> None:
    """ln R is linear in y for one pattern, so nothing but confidence is lost."""
    mu, draws = 0.8, 200_000
    ratios = np.sort(mu * np.random.default_rng(2).standard_normal(draws) - mu**2 / 2)
    best = min(tail(2.0) for tail in _tails(ratios, 3.0))
    exact = math.erfc((2 / mu - mu / 2) / math.sqrt(2)) / 2 - math.exp(2.0) * (
        math.erfc((2 / mu + mu / 2) / math.sqrt(2)) / 2
    )
    assert exact < best < 1.5 * exact


def test_the_line_of_a_tail_lies_between_confidence_bounds_of_two_quantiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a chance of 1/3, so few of 40 draws are left of the one, and so many of the other."""
    lines: list[tuple[float, float, float]] = []
    monkeypatch.setattr(separated, "_tail", lambda *line: lines.append(line))
    ratios = np.sort(np.random.default_rng(0).standard_normal(40))
    assert len(list(_tails(ratios, math.log(3)))) == len(lines) > 0
    rank = np.arange(1, 41)
    for below, offset, slope in lines:
        share = ndtr(offset + slope * ratios)
        few, many = binom.cdf(rank - 1, 40, share), binom.sf(rank - 1, 40, share)
        assert few[ratios == below] == pytest.approx(1 / 3)
        assert np.isclose(many[ratios > below], 1 / 3).any()


def test_quantiles_that_are_equal_give_no_tail() -> None:
    assert not list(_tails(np.zeros(20_000), 5.0))


@pytest.mark.long
def test_no_number_is_made_of_a_tiny_delta() -> None:
    values = [spent(2, 4, 0.2, 1.0, delta) for delta in (1e-5, 1e-100, 1e-300)]
    assert values == sorted(values)
    assert values[-1] > 40
    with pytest.raises(AccountantError, match="too small"):
        spent(2, 4, 0.2, 1.0, 5e-324)


def test_the_bound_errs_seldom() -> None:
    assert misled(mixture(3, 15, 0.2, 1.0).tilted(2), 0.5, size=128) <= 80


@pytest.mark.long
def test_epsilon_grows_with_the_steps_that_are_released() -> None:
    values = [spent(4, 24, 0.3, 2.0, 1e-4, t) for t in (0, 3, 6, 12, 24)]
    assert values[0] == 0
    assert values == sorted(values)


@pytest.mark.long
def test_the_profile_agrees_with_epsilon() -> None:
    given = Participation(groups=3, sampling_rate=0.2, steps=20, noise=noise_of(3))
    epsilons = np.array([0.0, 1.0, 2.0, 4.0])
    found = given.deltas("monte-carlo", epsilons, noise_multiplier=1.0, least=1e-5)
    assert (np.diff(found) < 0).all()
    stated = given.epsilon("monte-carlo", noise_multiplier=1.0, delta=float(found[2]))
    assert stated == pytest.approx(2.0, rel=0.05)


def asked(bands: int, **values: Any) -> Any:
    return mechanism(
        "b-min-sep", examples=100, expected_batch_size=10, steps=30,
        accountant="monte-carlo", noise=noise_of(bands), **values,
    )  # fmt: skip


def test_who_may_take_part_does_so_more_often_so_that_batches_have_their_size() -> None:
    """With three bands, the 20 of 100 examples that were in the last two batches wait."""
    of = asked(3)
    assert (claim(of), of.adjacency) == ("guarantee", "add-remove")
    assert of.participation.sampling_rate == pytest.approx(0.1 / 0.8)


@pytest.mark.long
def test_a_calibration_meets_its_target() -> None:
    budget = flat_budget(
        epsilon=2.0, delta=1e-3, accountant="monte-carlo", sampler="b-min-sep",
        groups=3, sampling_rate=0.125, steps=30, noise=noise_of(3), evaluation_steps=(10, 30),
    )  # fmt: skip
    found = calibrate(budget)
    assert 2 - TOLERANCE < found.epsilon <= 2
    assert 0 < found.spent[10] < found.spent[30] == found.epsilon


@pytest.mark.parametrize(("bands", "rate"), [(1, 0.3), (3, 0.25), (4, 0.25)])
def test_batches_have_the_law_that_is_accounted_for(bands: int, rate: float) -> None:
    """Of 20,000 examples; in each step as many are expected, in the first as in any other."""
    examples, steps = 20_000, 6
    apart = rate / (1 - (bands - 1) * rate)
    stream = BMinSepSampler(examples, bands, apart, torch.Generator().manual_seed(3))
    drawn = torch.zeros(examples, steps, dtype=torch.int64)
    for step in range(steps):
        batch = stream.sample()
        assert (batch.diff() > 0).all()
        drawn[batch, step] = 1
    spread = math.sqrt(examples * rate * (1 - rate))
    assert (drawn.sum(0) - examples * rate).abs().max() < 5 * spread
    every, chances = patterns(bands, steps, apart)
    counts = Counter(map(tuple, drawn.tolist()))
    assert counts.keys() <= {tuple(pattern) for pattern in every.astype(int).tolist()}
    for pattern, chance in zip(every.astype(int).tolist(), chances, strict=True):
        expected = examples * chance
        assert abs(counts[tuple(pattern)] - expected) < 5 * math.sqrt(expected) + 5


def test_a_stream_goes_on_where_it_was_saved() -> None:
    stream = asked(4).batches(torch.Generator().manual_seed(1))
    for _ in range(5):
        stream.sample()
    saved = stream.get_state()
    expected = [stream.sample().tolist() for _ in range(8)]
    other = asked(4).batches(torch.Generator().manual_seed(2))
    other.set_state(saved)
    assert [other.sample().tolist() for _ in range(8)] == expected
    with pytest.raises(ValueError, match="not 7"):
        BMinSepSampler(7, 4, 0.1, None).set_state(saved)


@pytest.mark.parametrize("sigma", [0.5, 1e3])
def test_no_ratio_is_lost_to_the_range_of_float64_without_an_error(sigma: float) -> None:
    """Waiting nearly always ends at once, so products of 1 − p are as small as they can be."""
    of = mixture(30, 60, 1 - 1e-12, sigma)
    drawn = np.random.default_rng(0).standard_normal((89, 500))
    assert np.isfinite(of.log_ratios(drawn)).all()
    with pytest.raises(AccountantError, match="too small"):
        of.log_ratios(drawn * np.nan)


def test_what_is_not_covered_is_refused() -> None:
    with pytest.raises(UserError, match="'pld' is for independent noise"):
        _ = replace(asked(2), accountant="pld").participation
    with pytest.raises(UserError, match="at most n/B = 10 bands"):
        _ = asked(11).participation
    with pytest.raises(UserError, match="at most n/B = 10 bands"):
        _ = replace(asked(2), noise=BufferedNoise(buffers=2)).participation
    with pytest.raises(UserError, match="at least the 3 bands"):
        flat_budget(
            epsilon=1.0, delta=1e-5, groups=2, sampling_rate=0.1, steps=10, noise=noise_of(3),
            sampler="b-min-sep", accountant="monte-carlo",
        )  # fmt: skip
    with pytest.raises(UserError, match="sampling_rate: must be 1"):
        flat_budget(
            epsilon=1.0, delta=1e-5, groups=3, sampling_rate=0.1, steps=10, noise=noise_of(3),
            sampler="balls-in-bins", accountant="monte-carlo",
        )  # fmt: skip
    with pytest.raises(AccountantError, match="at most 2000 steps"):
        spent(2, 2001, 0.1, 1.0, 1e-5)
    with pytest.raises(AccountantError, match="at most 125 bands"):
        spent(126, 200, 0.001, 1.0, 1e-5)
    with pytest.raises(AccountantError, match="too small"):
        spent(2, 10, 0.1, 0.02, 1e-5)


def test_the_mean_of_exponentials_neither_overflows_nor_vanishes() -> None:
    found = log_mean_exp(np.array([[800.0, -2000.0], [800.0, -2000.0 + math.log(3)]]))
    np.testing.assert_allclose(found, [800.0, -2000.0 + math.log(2)], rtol=1e-12)
