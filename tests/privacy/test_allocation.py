"""Random allocation: its ε is not below what it costs, and close above it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from budgets import flat_budget
from mechanisms import mechanism
from scipy.special import ndtr, ndtri

from clipnoise.errors import UserError
from clipnoise.privacy.accountants.allocation import (
    _differences,
    _likelihood_ratios,
    _sums,
    _window,
    allocated_epsilon,
    epoch_loss,
)
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.accountants.poisson import PLD_ROUNDING, AccountantError, Releases, epsilon
from clipnoise.privacy.calibration import TOLERANCE, calibrate
from clipnoise.privacy.samplers import RandomAllocationSampler

DIRECTIONS = ("_pmf_remove", "_pmf_add")


def exact_of_two_steps(sigma: float, value: float) -> tuple[float, float]:
    """Return δ at ε of one epoch of two steps in both directions, by quadrature in the plane."""
    x = np.linspace(-9, 9 + 2 / sigma, 2001)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    ratio = np.exp(x / sigma - 1 / (2 * sigma**2))
    mean = (ratio[:, None] + ratio) / 2
    weight = density[:, None] * density
    removing = (weight * np.maximum(mean - math.exp(value), 0)).sum()
    adding = (weight * np.maximum(1 - math.exp(value) * mean, 0)).sum()
    return float(removing), float(adding)


@pytest.mark.quick(sigma=[2.0, 5.0])
@pytest.mark.parametrize("sigma", [0.8, 1.0, 2.0, 5.0])
def test_two_steps_cost_what_quadrature_finds(sigma: float) -> None:
    loss = epoch_loss(sigma, 2, 2.0**-40)
    for value in (0.1 / sigma, 1 / sigma, 2 / sigma):
        for direction, least in zip(DIRECTIONS, exact_of_two_steps(sigma, value), strict=True):
            found = getattr(loss, direction).get_delta_for_epsilon(value)
            assert least * (1 - 1e-6) - 1e-12 <= found <= 1.05 * least + 1e-9


@pytest.mark.parametrize(
    ("sigma", "steps", "epochs", "value"),
    [(1.0, 10, 3, 1.5), (3.0, 10, 10, 0.5), (2.0, 40, 4, 0.2)],
)
def test_random_draws_agree(sigma: float, steps: int, epochs: int, value: float) -> None:
    random, draws = np.random.default_rng(0), 40_000
    loss = epoch_loss(sigma, steps, 2.0**-40).self_compose(epochs)
    for sign, direction in zip((1, -1), DIRECTIONS, strict=True):
        losses = np.zeros(draws)
        for _ in range(epochs):
            x = sigma * random.standard_normal((draws, steps))
            if sign == 1:
                x[np.arange(draws), random.integers(steps, size=draws)] += 1
            losses += sign * np.log(np.exp(x / sigma**2 - 1 / (2 * sigma**2)).mean(axis=1))
        costs = np.maximum(0.0, -np.expm1(value - losses))
        found = getattr(loss, direction).get_delta_for_epsilon(value)
        assert abs(costs.mean() - found) <= 5 * costs.std() / math.sqrt(draws)


def test_random_draws_agree_where_delta_is_small() -> None:
    """Draws are more likely where losses are large, and are weighted for it."""
    sigma, steps, epochs, further, draws = 3.36, 10, 20, 4.0, 60_000
    random, rows = np.random.default_rng(0), np.arange(draws)
    value = allocated(sigma, steps, epochs)
    losses, weights = np.zeros((2, draws))
    for _ in range(epochs):
        x = sigma * random.standard_normal((draws, steps))
        x[rows, random.integers(steps, size=draws)] += further
        loss, drawn = (
            np.log(np.exp((a * x - a**2 / 2) / sigma**2).mean(axis=1)) for a in (1, further)
        )
        losses, weights = losses + loss, weights + loss - drawn
    costs = np.exp(weights) * np.maximum(0.0, -np.expm1(value - losses))
    assert abs(costs.mean() - 1e-5) <= 5 * costs.std() / math.sqrt(draws) < 0.4e-5


def allocated(sigma: float, steps: int, epochs: int, delta: float = 1e-5) -> float:
    return allocated_epsilon(
        Releases(noise_multiplier=sigma, sampling_rate=1 / steps, steps=epochs, delta=delta)
    )


def test_one_step_an_epoch_is_a_gaussian_mechanism_each() -> None:
    assert allocated(2.0, 1, 4) == gaussian_epsilon(1.0, 1e-5)


@pytest.mark.parametrize(
    ("sigma", "steps", "epochs"), [(1.0, 10, 5), (3.36, 10, 20), (2.0, 1000, 5), (20.0, 50, 40)]
)
def test_an_epoch_costs_less_than_poisson_sampling_and_more_than_a_share_of_it(
    sigma: float, steps: int, epochs: int
) -> None:
    poisson = epsilon(
        "pld", noise_multiplier=sigma, sampling_rate=1 / steps, steps=epochs * steps, delta=1e-5
    )
    assert 0.8 * poisson < allocated(sigma, steps, epochs) < 1.01 * poisson


def test_epsilon_falls_with_noise_and_with_steps_and_rises_with_epochs() -> None:
    found = allocated(1.5, 20, 5)
    assert allocated(1.6, 20, 5) < found
    assert allocated(1.5, 25, 5) < found
    assert allocated(1.5, 20, 6) > found
    assert allocated(1.5, 20, 0) == 0


def test_beyond_the_grids_of_many_epochs_lies_little_of_delta() -> None:
    assert allocated(5.0, 10, 100) < gaussian_epsilon(5.0 / 10, 1e-5)


def test_too_little_noise_is_refused() -> None:
    with pytest.raises(AccountantError, match="too small for the accountant pld-allocation"):
        allocated(0.01, 10, 1)


def test_a_loss_at_whose_square_floats_end_is_refused() -> None:
    with pytest.raises(AccountantError, match="too small for the accountant pld-allocation"):
        epoch_loss(0.035, 2, 2.0**-30)  # losses of up to 600


def test_a_delta_that_rounding_errors_rival_is_refused() -> None:
    one = {"noise_multiplier": 5.0, "sampling_rate": 0.1, "steps": 1}
    with pytest.raises(AccountantError, match="rivals delta"):
        allocated_epsilon(Releases(**one, delta=1.5 * PLD_ROUNDING))  # type: ignore[arg-type]


def test_a_calibration_meets_its_target_and_counts_begun_epochs_whole() -> None:
    values: dict[str, Any] = {"sampler": "random-allocation", "accountant": "pld-allocation"}
    asked = flat_budget(
        epsilon=1.0, delta=1e-5, groups=10, sampling_rate=0.1, steps=195, **values,
        evaluation_steps=(0, 10, 11, 20),
    )  # fmt: skip
    found = calibrate(asked)
    assert 1 - TOLERANCE < found.epsilon <= 1
    assert found.spent[0] == 0
    assert found.spent[10] < found.spent[11] == found.spent[20]
    assert found.epsilon == allocated(found.noise_multiplier, 10, 20)


def test_a_rate_that_the_sampler_cannot_have_is_refused() -> None:
    with pytest.raises(UserError, match="sampling_rate: must be 1/groups"):
        flat_budget(
            epsilon=1.0, delta=1e-5, groups=10, sampling_rate=0.05, steps=100,
            sampler="random-allocation", accountant="pld-allocation",
        )  # fmt: skip


def test_each_example_is_in_one_step_of_each_epoch_and_all_steps_are_as_likely() -> None:
    of = mechanism(
        "random-allocation", examples=30, expected_batch_size=7, steps=10,
        accountant="pld-allocation",
    )  # fmt: skip
    drawn = of.participation
    assert (drawn.groups, drawn.sampling_rate, drawn.releases()) == (5, 0.2, 2)
    counts = torch.zeros(5, 30)
    for seed in range(400):
        stream = of.batches(torch.Generator().manual_seed(seed))
        first, second = ([stream.sample() for _ in range(5)] for _ in range(2))
        for epoch in (first, second):
            assert torch.cat(epoch).sort().values.tolist() == list(range(30))
            for row, batch in zip(counts, epoch, strict=True):
                row[batch] += 1
    assert (counts / 800 - 0.2).abs().max() < 5 * math.sqrt(0.2 * 0.8 / 800)


def test_it_is_proved_by_its_own_accountant_alone() -> None:
    assert RandomAllocationSampler.proves("pld-allocation", "add-remove")
    for name in ("rdp", "prv", "pld"):
        assert not RandomAllocationSampler.proves(name, "zero-out")  # type: ignore[arg-type]


def test_probabilities_of_cells_are_exact_in_both_tails() -> None:
    found = _differences(np.array([-26.0, -25.0, 0.0, 25.0, 26.0]), ndtr)
    assert found[0] == found[-1] == pytest.approx(ndtr(-25.0), rel=1e-9, abs=0)
    assert found[1] == found[2] == pytest.approx(0.5)


@pytest.mark.parametrize("sigma", [0.8, 1.1])
def test_the_grid_of_a_ratio_ends_where_its_tail_begins_and_is_fine_beside_the_smallest(
    sigma: float,
) -> None:
    steps, tail = 2, 2.0**-20
    absent, present, width = _likelihood_ratios(sigma, steps, tail)
    end = math.exp(-float(ndtri(tail / 4)) / sigma + 1 / (2 * sigma**2))  # of all but tail/4
    assert width * (len(absent) - 2) < end <= width * (len(absent) - 1)
    assert 1 - present.sum() == pytest.approx(tail / 4, rel=0.01)
    assert present.sum() > absent.sum() - tail
    below = ndtr(sigma * math.log(4 * width) + 1 / (2 * sigma))  # of four cells
    assert below**steps == pytest.approx(tail, rel=1e-6)


def test_a_loss_whose_square_floats_can_hold_is_not_refused() -> None:
    absent, present, _ = _likelihood_ratios(0.05, 2, 2.0**-30)  # losses of up to 326
    assert np.isfinite([absent, present]).all()


@pytest.mark.parametrize("steps", [1, 7, 60, 1000])
def test_outside_of_a_window_lies_no_more_than_the_tail_and_inside_little_else(steps: int) -> None:
    absent, present, tail = np.array([0.02, 0.96, 0.02]), np.array([0.0, 0.98, 0.02]), 1e-6
    first, size = _window(absent, present, steps, tail)
    place = present
    for _ in range(steps - 1):
        place = np.convolve(place, absent)
    assert place[:first].sum() + place[first + size :].sum() <= tail
    assert size <= 6 + 20 * math.sqrt(0.04 * steps)
    for factor in (2, 3, 5):  # a size of real transforms that are fast
        while size % factor == 0:
            size //= factor
    assert size == 1


def test_a_window_ends_with_what_a_single_step_can_be() -> None:
    assert _window(np.array([0.5, 0.5]), np.array([0.0, 1.0]), 1, 1e-6) == (0, 2)


@pytest.mark.parametrize("tail", [2.0**-10, 2.0**-38])
def test_what_lies_beyond_the_grids_or_may_be_misplaced_counts_as_an_infinite_loss(
    tail: float,
) -> None:
    sigma, steps = 1.0, 3
    absent, present, width = _likelihood_ratios(sigma, steps, tail)
    first, size = _window(absent, present, steps, tail)
    loss = epoch_loss(sigma, steps, tail)
    for one, direction in zip((present, absent), DIRECTIONS, strict=True):
        sums, noise = _sums(one, absent, steps, first, size)
        never = sums[0] if one is absent and first == 0 else 0.0
        beyond = 1 - one.sum() * absent.sum() ** 2 + noise * size + steps * 2.0**-49 / width
        found = getattr(loss, direction)._infinity_mass
        assert found == pytest.approx(beyond + tail + never, rel=1e-3, abs=0)
        assert getattr(loss, direction)._pessimistic_estimate  # where it is composed, too
