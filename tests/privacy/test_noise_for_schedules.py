"""Noise whose strategy is optimised for a schedule of the learning rate."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from clipnoise.core.schedule import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    Schedule,
    StepSchedule,
)
from clipnoise.errors import UserError
from clipnoise.fields import parse, to_plain
from clipnoise.privacy.accountants.patterns import Pattern
from clipnoise.privacy.noise import NoiseCorrelation
from clipnoise.privacy.noise.banded import BandedNoise
from clipnoise.privacy.noise.buffered import BufferedNoise
from clipnoise.privacy.noise.dense import DenseNoise
from clipnoise.privacy.noise.optimised import LONGEST, OptimisedNoise, in_run
from clipnoise.privacy.noise_strategies import (
    Array,
    Strategy,
    Toeplitz,
    _log_error,
    _response_gram,
    fitted,
    optimal_buffers,
    optimal_dense,
    optimal_toeplitz,
    prefix_sum_rmse,
)
from clipnoise.run.spec import RunSpec, from_mapping, to_mapping

SCHEDULES: dict[str, Schedule] = {
    "linear": LinearSchedule(peak=1.0),
    "cosine": CosineSchedule(peak=1.0, final=0.01),
    "exponential": ExponentialSchedule(peak=1.0, final=0.1),
    "step": StepSchedule(peak=1.0),
    "warm-up": ConstantSchedule(peak=1.0, warmup=0.3),
}
EVERY_SCHEDULE = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
OPTIMISED: dict[str, Callable[[int, Array | None], Strategy]] = {
    "banded": lambda steps, rates: optimal_toeplitz(steps, 5, rates),
    "all bands": lambda steps, rates: optimal_toeplitz(steps, steps, rates),
    "buffered": lambda steps, rates: optimal_buffers(steps, 2, None, rates),
    "dense": lambda steps, rates: optimal_dense(steps, 1e-9, rates=rates),
}
EVERY_KIND = pytest.mark.parametrize("kind", OPTIMISED)


def rates_of(schedule: Schedule, steps: int) -> Array:
    return np.array([schedule.at(step, steps) for step in range(1, steps + 1)])


def squared_error(workload: Array, strategy: Strategy) -> float:
    return float((np.asarray(workload @ np.linalg.inv(strategy.matrix())) ** 2).sum())


def workload_of(rates: Array) -> Array:
    """What training sums up: after step t, η_s y_s of the steps s ≤ t."""
    return np.array([np.where(np.arange(len(rates)) <= t, rates, 0.0) for t in range(len(rates))])


def is_the_error_of_the_gram(rates: Array, workload: Array) -> bool:
    response = np.random.default_rng(0).standard_normal(len(rates))
    strategy = Toeplitz(np.abs(response) + 0.1, len(rates), inverse=True)
    found = strategy.response @ _response_gram(rates) @ strategy.response
    return bool(np.isclose(found, squared_error(workload, strategy), rtol=1e-10))


@EVERY_SCHEDULE
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_what_is_minimised_is_the_error_of_the_workload(schedule: Schedule, steps: int) -> None:
    rates = rates_of(schedule, steps)
    assert is_the_error_of_the_gram(rates, workload_of(rates))
    if steps > 2:  # rates on the wrong side, which weight whole sums and not their terms
        assert not is_the_error_of_the_gram(
            rates, np.diag(rates) @ np.tril(np.ones((steps, steps)))
        )


@EVERY_SCHEDULE
def test_the_error_that_is_stated_is_the_mean_square_of_weighted_sums(schedule: Schedule) -> None:
    rates, strategy = rates_of(schedule, 20), fitted(optimal_toeplitz(20, 5), 20)
    expected = np.sqrt(squared_error(workload_of(rates), strategy) / 20)
    assert prefix_sum_rmse(strategy, None, rates) == pytest.approx(expected, rel=1e-12)


@EVERY_SCHEDULE
def test_the_gradient_is_that_of_the_error(schedule: Schedule) -> None:
    gram = _response_gram(rates_of(schedule, 30))
    at = optimal_toeplitz(30, 6).coefficients * 1.3

    def log_error(nudge: Array) -> float:
        return _log_error(at + np.append(0.0, nudge), 30, gram)[0]

    steps = 1e-5 * np.eye(5)
    differences = [(log_error(step) - log_error(-step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(_log_error(at, 30, gram)[1], differences, rtol=1e-6, atol=1e-8)


@EVERY_KIND
@EVERY_SCHEDULE
def test_a_schedule_never_adds_to_the_error(kind: str, schedule: Schedule) -> None:
    rates = rates_of(schedule, 40)
    errors = [prefix_sum_rmse(OPTIMISED[kind](40, of), None, rates) for of in (rates, None)]
    assert errors[0] <= errors[1] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("kind", "less"),
    [("banded", 0.001), ("all bands", 0.008), ("buffered", 0.007), ("dense", 0.008)],
)
def test_a_linear_schedule_lowers_the_error_of_100_steps(kind: str, less: float) -> None:
    rates = rates_of(SCHEDULES["linear"], 100)
    errors = [prefix_sum_rmse(OPTIMISED[kind](100, of), None, rates) for of in (rates, None)]
    assert errors[0] < errors[1] * (1 - less)


@EVERY_SCHEDULE
def test_no_nearby_banded_strategy_has_less_weighted_error(schedule: Schedule) -> None:
    rates = rates_of(schedule, 40)
    best = optimal_toeplitz(40, 4, rates)
    for entry, nudge in itertools.product(range(4), [-1e-3, 1e-3]):
        other = Toeplitz(best.coefficients + nudge * np.eye(4)[entry], 40)
        assert prefix_sum_rmse(other, None, rates) > prefix_sum_rmse(best, None, rates)


@pytest.mark.parametrize("factor", [1e-2, 1e-4])
def test_dense_is_no_worse_than_toeplitz_where_rates_differ_by_many_orders(factor: float) -> None:
    rates = rates_of(StepSchedule(peak=1.0, factor=factor), 60)
    errors = [prefix_sum_rmse(OPTIMISED[kind](60, rates), None, rates) for kind in OPTIMISED]
    assert errors[-1] == min(errors)


@pytest.mark.parametrize(
    "schedule",
    [
        CosineSchedule(peak=1.0),
        ExponentialSchedule(peak=1.0, final=1e-6),
        StepSchedule(peak=1.0, factor=0.01),
    ],
    ids=lambda schedule: schedule.kind,
)
@pytest.mark.parametrize("noise", [BandedNoise(bands=5), DenseNoise()], ids=lambda noise: noise.id)
def test_the_strategy_does_not_follow_from_how_a_processor_rounds(
    noise: OptimisedNoise, schedule: Schedule
) -> None:
    """Else a run could train with another C than the one that is accounted for."""
    rates = replace(noise, rates=schedule).weights(80)
    assert rates is not None
    rounded = rates * (1 + 2e-16 * np.random.default_rng(0).standard_normal(80))
    find: Any = {"banded": lambda r: optimal_toeplitz(80, 5, r), "dense": _dense}[noise.id]
    assert abs(find(rates).matrix() - find(rounded).matrix()).max() < 1e-7


def _dense(rates: Array) -> Strategy:
    return optimal_dense(80, rates=rates)


@EVERY_KIND
def test_equal_rates_have_the_optimum_of_prefix_sums(kind: str) -> None:
    one, other = (OPTIMISED[kind](30, rates) for rates in (np.full(30, 0.3), None))
    assert prefix_sum_rmse(one) == pytest.approx(prefix_sum_rmse(other), rel=1e-6)


NOISE: tuple[OptimisedNoise, ...] = (
    BandedNoise(bands=3, rates="learning_rate"),
    BufferedNoise(buffers=2, rates="learning_rate"),
    DenseNoise(rates="learning_rate"),
)
EVERY_NOISE = pytest.mark.parametrize("noise", NOISE, ids=lambda noise: noise.id)
LINEAR = {"kind": "linear", "peak": 0.5}


def spec(noise: NoiseCorrelation, rate: object = LINEAR, **changes: Any) -> RunSpec:
    privacy = {"noise_multiplier": 2.0, "sampler": "cyclic", **changes.pop("privacy", {})}
    training = {"expected_batch_size": 200, "steps": 14, "evaluations": 1}
    return from_mapping(
        {
            "dataset": "digits",
            "model": "logistic",
            "method": {"id": "dp-sgd", "learning_rate": rate, "clip_norm": 1},
            "privacy": {**privacy, "noise": to_plain(noise)},
            "training": {**training, **changes.pop("training", {})},
            "seed": 1,
            **changes,
        }
    )


DRAWN = {"sampler": "balls-in-bins", "accountant": "monte-carlo"}


@EVERY_NOISE
def test_a_run_draws_the_noise_of_its_own_schedule(noise: OptimisedNoise) -> None:
    run = spec(noise)
    groups = run.mechanism.participation.groups
    rates = rates_of(LinearSchedule(peak=1.0), 14)
    expected: dict[str, Strategy] = {
        "banded": optimal_toeplitz(14, 3, rates),
        "blt": optimal_buffers(14, 2, groups, rates),
        "dense": optimal_dense(14, rates=rates),
    }
    strategy = run.mechanism.noise_source(None, torch.zeros(3)).strategy
    assert strategy is not None
    np.testing.assert_array_equal(strategy.matrix(), fitted(expected[noise.id], groups).matrix())
    unaware = spec(replace(noise, rates=None)).mechanism.noise_source(None, torch.zeros(3)).strategy
    assert unaware is not None
    assert np.abs(strategy.matrix() - unaware.matrix()).max() > 1e-3


@EVERY_NOISE
def test_in_a_fixed_order_the_privacy_is_that_of_any_other_strategy(noise: OptimisedNoise) -> None:
    aware, unaware = spec(noise).budget, spec(replace(noise, rates=None)).budget
    assert aware is not None
    assert aware == unaware


@EVERY_NOISE
def test_where_turns_are_drawn_the_accountant_is_told_of_the_strategy_itself(
    noise: OptimisedNoise,
) -> None:
    budget = spec(noise, privacy=DRAWN).budget
    assert budget is not None
    given = budget.participation
    told = given.noise
    assert told is not None
    strategy = told.strategy(14, given.groups)
    assert strategy is not None
    rows = np.stack(
        [np.abs(strategy.matrix())[:, i :: given.groups].sum(axis=1) for i in range(given.groups)]
    )
    gram = Pattern(noise=told, groups=given.groups, steps=14).gram(14)
    np.testing.assert_allclose(gram, rows @ rows.T, rtol=1e-12)
    assert budget.key != spec(replace(noise, rates=None), privacy=DRAWN).budget.key  # type: ignore[union-attr]


def test_a_calibration_does_not_depend_on_the_peak_of_the_learning_rate() -> None:
    keys = {
        spec(NOISE[0], {"kind": "linear", "peak": peak}, privacy=DRAWN).budget.key  # type: ignore[union-attr]
        for peak in (0.1, 0.3, 10)
    }
    assert len(keys) == 1


def test_the_options_of_a_calibration_name_the_schedule() -> None:
    budget = spec(NOISE[0], privacy=DRAWN).budget
    assert budget is not None
    words = shlex.split(budget.options())
    noise = parse(NoiseCorrelation, json.loads(words[words.index("--noise") + 1]))
    assert noise == BandedNoise(bands=3, rates=LinearSchedule(peak=1.0))


@pytest.mark.parametrize(
    "rate",
    [0.5, {"kind": "constant", "peak": 0.5}, {"kind": "linear", "peak": 0.5, "final": 0.5}],
    ids=["number", "constant", "flat"],
)
def test_rates_without_a_schedule_are_refused(rate: object) -> None:
    with pytest.raises(UserError, match=r"privacy\.noise\.rates: .*leave rates out"):
        spec(NOISE[0], rate)


def test_a_schedule_of_the_users_cannot_change_between_accounting_and_training() -> None:
    class Changing(LinearSchedule):
        """Could answer by the clock, or by the data."""

    with pytest.raises(UserError, match=r"privacy\.noise\.rates: "):
        in_run(NOISE[0], Changing(peak=1.0), 14)
    assert in_run(NOISE[0], LinearSchedule(peak=2.0), 14) == replace(
        NOISE[0], rates=LinearSchedule(peak=1.0)
    )


def test_noise_may_be_for_a_schedule_that_is_not_the_run_s_own() -> None:
    given = replace(NOISE[0], rates=CosineSchedule(peak=3.0))
    for learning_rate in (0.5, LinearSchedule(peak=2.0), None):
        assert in_run(given, learning_rate, 14) == replace(given, rates=CosineSchedule(peak=1.0))


def test_a_method_whose_rates_come_in_phases_has_no_schedule_to_follow() -> None:
    phases = {
        **{"id": "dp2-rmsprop", "learning_rates": [0.1, 0.1]},
        **{"clip_norms": [1, 1], "phase_lengths": [2, 2]},
    }
    with pytest.raises(UserError, match=r"privacy\.noise\.rates: "):
        spec(NOISE[0], method=phases)


def test_a_run_may_be_too_long_for_the_search() -> None:
    steps = {"steps": LONGEST + 1}
    with pytest.raises(UserError, match=r"privacy\.noise\.rates: .*at most 5,000 steps"):
        spec(NOISE[0], training=steps)
    assert spec(replace(NOISE[0], rates=None), training=steps)


def test_outside_a_run_the_schedule_itself_is_given() -> None:
    with pytest.raises(UserError, match=r"noise\.rates: learning_rate is that of a run"):
        NOISE[0].strategy(12, 4)
    assert replace(NOISE[0], rates=CosineSchedule(peak=3.0)).strategy(12, 4)


def test_rates_are_in_the_hash_of_a_run_only_where_they_are_given() -> None:
    plain = spec(replace(NOISE[0], rates=None))
    section = to_mapping(plain)["privacy"]
    assert isinstance(section, dict)
    assert "rates" not in section["noise"]
    assert plain.hash != spec(NOISE[0]).hash
