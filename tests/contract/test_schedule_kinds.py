"""The contract of a schedule, checked for every kind, and of every method that follows one."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from every_method import METHODS, build, public
from torch import Tensor

from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.method import Method
from clipnoise.core.schedule import KINDS, Schedule
from clipnoise.core.state import State
from clipnoise.core.step import step
from clipnoise.errors import UserError
from clipnoise.fields import parse, to_plain
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.methods.base import method_class
from clipnoise.methods.one_release import OneRelease

PEAK, FINAL = 0.3, 0.02
LENGTHS = (1, 2, 3, 7, 40, 101)
WARMUPS = (0.0, 0.1, 0.5)
RATES = ("learning_rate", "learning_rates")


def made(kind: type[Any], **options: Any) -> Schedule:
    """Return a schedule of a kind; what has no default is a value to end at."""
    given = {
        one.name: FINAL
        for one in dataclasses.fields(kind)
        if one.default is dataclasses.MISSING and one.name != "peak"
    }
    if "breakpoints" in {one.name for one in dataclasses.fields(kind)}:
        given["breakpoints"] = (0.9, 0.95)
    schedule: Schedule = parse(kind, {"peak": PEAK, **given, **options})
    return schedule


def values(schedule: Schedule, steps: int) -> list[float]:
    return [schedule.at(t, steps) for t in range(1, steps + 1)]


@pytest.mark.parametrize("warmup", WARMUPS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_climbs_to_its_peak_and_never_rises_again(
    kind: type[Any], warmup: float
) -> None:
    for steps in LENGTHS:
        rates, climb = values(made(kind, warmup=warmup), steps), round(warmup * steps)
        assert rates[:climb] == [PEAK * t / climb for t in range(1, climb + 1)]
        after = rates[climb:]
        assert max(rates) == PEAK
        met = {rates[t - 1] for t in made(kind, warmup=warmup).extremes(steps)}
        assert {min(rates), max(rates)} <= met
        assert after[:1] in ([], [PEAK])
        assert after == sorted(after, reverse=True)


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_is_between_the_final_one_and_the_peak_and_no_step_is_wasted(
    kind: type[Any],
) -> None:
    for steps in LENGTHS:
        for schedule in (made(kind), made(kind, warmup=0.3)):
            after = values(schedule, steps)[round(schedule.warmup * steps) :]
            assert all(getattr(schedule, "final", 0.0) < rate <= PEAK for rate in after)
    with_zero = [one for one in KINDS if getattr(one, "final", None) == 0.0]
    assert all(min(values(made(one), 10_000)) > 0 for one in with_zero)


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_is_the_same_after_conversion_to_plain_data_and_back(kind: type[Any]) -> None:
    schedule = made(kind, warmup=0.25)
    method = parse(
        method_class("dp-sgd"), {"learning_rate": to_plain(schedule), "clip_norm": 1}, key="method"
    )
    assert vars(method)["learning_rate"] == schedule
    assert parse(type(method), to_plain(method)) == method
    assert hash(method) == hash(parse(type(method), to_plain(method)))


# Closed forms, and those of PyTorch, which are of the same step counted from 0


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)


def of_torch(make: Any, steps: int) -> list[float]:
    sgd, rates = optimizer(), []
    schedule = make(sgd)
    for _ in range(steps):
        rates.append(sgd.param_groups[0]["lr"])
        sgd.step()
        schedule.step()
    return rates


SCHEDULERS = torch.optim.lr_scheduler
THEIRS = {
    "constant": ({}, lambda sgd, _: SCHEDULERS.ConstantLR(sgd, factor=1.0)),
    "linear": (
        {"final": FINAL},
        lambda sgd, T: SCHEDULERS.LinearLR(sgd, 1.0, FINAL / PEAK, total_iters=T),
    ),
    "cosine": (
        {"final": FINAL},
        lambda sgd, T: SCHEDULERS.CosineAnnealingLR(sgd, T_max=T, eta_min=FINAL),
    ),
    "exponential": (
        {"final": FINAL},
        lambda sgd, T: SCHEDULERS.ExponentialLR(sgd, gamma=(FINAL / PEAK) ** (1 / T)),
    ),
    "step": (
        {"breakpoints": (0.25, 0.5), "factor": 0.2},
        lambda sgd, T: SCHEDULERS.MultiStepLR(sgd, [round(T / 4), round(T / 2)], gamma=0.2),
    ),
}


@pytest.mark.parametrize("steps", [4, 10, 41])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.kind))
def test_without_a_warm_up_a_schedule_is_that_of_pytorch(kind: type[Any], steps: int) -> None:
    options, theirs = THEIRS[kind.kind]
    ours = values(made(kind, **options), steps)
    assert ours == pytest.approx(of_torch(lambda sgd: theirs(sgd, steps), steps), rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "middle"),
    [
        ("constant", PEAK),
        ("linear", (PEAK + FINAL) / 2),
        ("cosine", (PEAK + FINAL) / 2),
        ("exponential", math.sqrt(PEAK * FINAL)),
        ("step", PEAK),
    ],
)
def test_halfway_after_a_warm_up_a_schedule_is_at_its_middle(kind: str, middle: float) -> None:
    (cls,) = (one for one in KINDS if one.kind == kind)
    options = {"final": FINAL} if hasattr(made(cls), "final") else {}
    schedule = made(cls, warmup=0.2, **options)
    assert schedule.at(20 + 40 + 1, 100) == pytest.approx(middle)


# Every method


def followed(optimizer: Method, numbers: Any, steps: int) -> list[Tensor]:
    """Return the parameters after each step of a method, as `numbers` has it in that step."""
    d, state = 3, State(torch.zeros(3, dtype=torch.float64))
    found = [state.theta]
    for t in range(1, steps + 1):
        width = len(optimizer.query.of.vector(state.theta))
        draw = torch.Generator().manual_seed(t)

        def rows(clipping: Clipping, width: int = width, t: int = t) -> ClippedSum:
            again = torch.Generator().manual_seed(100 + t)
            shape = (len(clipping.weights), 4, width)
            each = list(torch.randn(shape, generator=again, dtype=torch.float64))
            return ClippedSum(clipped_sum(each, clipping, [width]))

        noise = [
            torch.randn(
                optimizer.query.noise_like(state.theta).shape, generator=draw, dtype=torch.float64
            )
            for _ in range(optimizer.query.draws)
        ]
        step(
            numbers(t),
            state,
            public(optimizer, d, total_steps=steps, seed=t),
            clipped_sum=rows,
            noise=noise,
        )
        found.append(state.theta)
    return found


def rates(name: str) -> list[str]:
    kind = method_class(name)
    own = {one.name for one in dataclasses.fields(kind)}
    return [rate for rate in RATES if rate in own and rate in kind.may_change]


CHANGING = [(name, rate) for name in METHODS for rate in rates(name)]


def with_rate(name: str, rate: str, one: Any) -> Method:
    return build(name, **{rate: (one, one) if rate == "learning_rates" else one})


@pytest.mark.parametrize(("name", "rate"), CHANGING)
def test_a_method_takes_each_step_at_the_rate_of_its_schedule(name: str, rate: str) -> None:
    schedule = made(KINDS[2], warmup=0.34)
    steps = 6
    ours = followed(with_rate(name, rate, schedule), lambda t: with_rate(name, rate, schedule), 6)
    by_hand = followed(
        with_rate(name, rate, PEAK), lambda t: with_rate(name, rate, schedule.at(t, steps)), 6
    )
    assert all(map(torch.equal, ours, by_hand))
    constant = followed(with_rate(name, rate, PEAK), lambda t: with_rate(name, rate, PEAK), 6)
    assert not torch.equal(ours[-1], constant[-1])


@pytest.mark.parametrize(("name", "rate"), CHANGING)
def test_a_constant_schedule_is_the_number(name: str, rate: str) -> None:
    number, schedule = with_rate(name, rate, PEAK), with_rate(name, rate, made(KINDS[0]))
    assert number.at(3, 6) is number
    assert schedule.at(3, 6) == number
    plain, ours = followed(number, lambda t: number, 4), followed(number, lambda t: schedule, 4)
    assert all(map(torch.equal, plain, ours))


def test_every_method_of_several_steps_follows_a_schedule_but_the_schedule_free_ones() -> None:
    one_step = {name for name in METHODS if issubclass(method_class(name), OneRelease)}
    without = set(METHODS) - {name for name, _ in CHANGING} - one_step
    assert all(name.startswith("dp-schedule-free") for name in without), without


@pytest.mark.parametrize("name", METHODS)
def test_what_is_released_does_not_follow_a_schedule(name: str) -> None:
    for rate in rates(name):
        method = with_rate(name, rate, made(KINDS[1]))
        assert all(method.at(t, 9).query is method.query for t in (1, 5, 9))


def test_a_schedule_where_none_may_be_is_refused() -> None:
    method = build("dp-adam", gamma=made(KINDS[0]))
    with pytest.raises(UserError, match=r"method\.gamma: dp-adam needs one number for all steps"):
        method.at(1, 10)
