"""Replay against plain transcriptions, and where gradients are taken: DiSK, DP-SAT and DPZero."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from every_method import build, public
from pseudocode import (
    CASES,
    RUN,
    Stream,
    Vector,
    adam,
    assert_same,
    mean_of_clipped,
    momentum,
    noisy,
    private_gradient,
    record,
    sgd,
)

from clipnoise import replay
from clipnoise.core.state import State
from clipnoise.errors import UserError


def two_point_gradient(h: dict[str, Any], s: Stream, t: int) -> Vector:
    """DiSK's g̃_t for t counted from 0: x_t + γd_t is the first point, x_t the second."""
    c, b, kappa = h["clip_norm"], h["expected_batch_size"], h["kappa"]
    if t == 0:
        return private_gradient(h, s, 0)
    a = (1 - kappa) / (kappa * h["lookahead"])
    vectors = [
        [a * x + (1 - a) * y for x, y in zip(ahead, here, strict=True)]
        for ahead, here in zip(s.gradients[t][0], s.gradients[t][1], strict=True)
    ]
    return noisy(mean_of_clipped(vectors, c, b, s.d), h["noise_multiplier"] * c / b, s.noise[t][0])


def kalman(h: dict[str, Any], s: Stream) -> list[Vector]:
    """DiSK's filtered gradient at each step."""
    filtered, kappa = [two_point_gradient(h, s, 0)], h["kappa"]
    for t in range(1, s.steps):
        g = two_point_gradient(h, s, t)
        filtered.append([(1 - kappa) * m + kappa * x for m, x in zip(filtered[-1], g, strict=True)])
    return filtered


def innovations(h: dict[str, Any], s: Stream) -> list[Vector]:
    """FiBeR's filtered gradient at each step: the integral of the filtered residuals."""
    estimate, residual, filtered, w = [0.0] * s.d, [0.0] * s.d, [], h["omega"]
    for t in range(s.steps):
        g = two_point_gradient(h, s, t)
        for j in range(s.d):
            innovation = g[j] - estimate[j]
            residual[j] = (1 - w) * residual[j] + w * innovation
            estimate[j] += residual[j]
        filtered.append(list(estimate))
    return filtered


def fiber(h: dict[str, Any], s: Stream) -> list[Vector]:
    """FiBeR with AdamW: A(ω)σ_w² is taken off v̂, and the weights themselves decay."""
    (b1, b2), w = h["betas"], h["omega"]
    variance = (h["noise_multiplier"] * h["clip_norm"] / h["expected_batch_size"]) ** 2
    attenuated = variance * (2 - w) / (4 - 3 * w)
    theta, m, v = [list(s.initial)], [0.0] * s.d, [0.0] * s.d
    for t, g in enumerate(innovations(h, s)):
        new = []
        for j in range(s.d):
            m[j], v[j] = b1 * m[j] + (1 - b1) * g[j], b2 * v[j] + (1 - b2) * g[j] ** 2
            corrected = max(v[j] / (1 - b2 ** (t + 1)) - attenuated, h["gamma_prime"])
            step = m[j] / (1 - b1 ** (t + 1)) / (math.sqrt(corrected) + h["gamma"])
            shrunk = (1 - h["learning_rate"] * h["weight_decay"]) * theta[-1][j]
            new.append(shrunk - h["learning_rate"] * step)
        theta.append(new)
    return theta


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("kappa", "gamma"), [(0.7, 0.5), (0.5, 1.0), (0.2, 0.3)])
def test_disk_follows_the_authors(kappa: float, gamma: float, case: str) -> None:
    h = RUN | {"learning_rate": 0.3, "kappa": kappa, "lookahead": gamma}
    stream = record(1, case)
    filtered = kalman(h, stream)
    assert_same("disk", h, stream, sgd(h, stream, lambda t: filtered[t]))
    own = h | {"betas": [0.8, 0.9], "gamma": 1e-3}
    expected = adam(own, stream, lambda t, _: (filtered[t], [x * x for x in filtered[t]]))
    assert_same("disk-adam", own, stream, expected)


def of_filtered(filtered: list[Vector], t: int, _: Vector) -> tuple[Vector, Vector]:
    return filtered[t], [x * x for x in filtered[t]]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("omega", "decay"), [(0.7, 0.0), (0.2, 0.3)])
def test_fiber_follows_the_paper(omega: float, decay: float, case: str) -> None:
    own = {"kappa": 0.6, "lookahead": 0.5, "omega": omega, "weight_decay": decay}
    h = RUN | {"learning_rate": 0.3, "betas": [0.8, 0.95], "gamma": 1e-3, "gamma_prime": 1e-4} | own
    for seed in range(2):
        stream = record(seed, case)
        assert_same("fiber", h, stream, fiber(h, stream))
        filtered = innovations(h, stream)
        plain = adam(h, stream, partial(of_filtered, filtered))
        if not decay:
            assert_same("fiber", h | {"noise_correction": "none"}, stream, plain)


@pytest.mark.parametrize("case", CASES)
def test_dp_sat_steps_as_dp_sgd_does_from_other_gradients(case: str) -> None:
    h, stream = RUN | {"learning_rate": 0.3}, record(2, case)
    expected = sgd(h, stream, lambda t: private_gradient(h, stream, t))
    assert_same("dp-sat", h | {"rho": 0.1}, stream, expected)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("beta", [0.0, 0.8])
def test_dp_sat_with_momentum_steps_as_dp_sgdm_does(beta: float, case: str) -> None:
    h, stream = RUN | {"learning_rate": 0.3, "momentum": beta}, record(2, case)
    expected = momentum(h, stream, lambda t: private_gradient(h, stream, t))
    assert_same("dp-sat-momentum", h | {"rho": 0.1}, stream, expected)


def points_of(name: str, state: State, **options: Any) -> Any:
    optimizer = build(name, **options)
    return optimizer.clipping(state, public(optimizer, 2))


HERE, BEFORE = (torch.tensor(x, dtype=torch.float64) for x in ([1.0, 2.0], [0.0, 4.0]))


def test_disk_looks_ahead_along_the_last_step_and_corrects_for_it() -> None:
    found = points_of("disk", State(HERE, step=2, past=(BEFORE,)), kappa=0.5, lookahead=0.25)
    ahead, here = found.points
    torch.testing.assert_close(ahead, HERE + 0.25 * (HERE - BEFORE))
    assert torch.equal(here, HERE)
    assert found.weights == (4.0, -3.0)
    assert sum(found.weights) == pytest.approx(1.0)


def test_dp_sat_climbs_a_fixed_length_along_the_last_release() -> None:
    state = State(HERE, step=3, buffers={"g": torch.tensor([3.0, -4.0], dtype=torch.float64)})
    (point,) = points_of("dp-sat", state, rho=0.5).points
    torch.testing.assert_close(point, HERE + torch.tensor([0.3, -0.4], dtype=torch.float64))


def test_dp_sat_with_momentum_climbs_a_fixed_length_towards_the_last_iterate() -> None:
    """As in the authors' code, which keeps that iterate: eps = ρ(prev − p)/‖prev − p‖."""
    method, state, draw = build("dp-sat-momentum", rho=0.5), State(HERE), torch.Generator()
    for t in range(1, 4):
        state.step = t
        change = method.update((torch.randn(2, generator=draw).double(),), state, public(method, 2))
        last, state.theta = state.theta, state.theta + change
    state.step, theta = 4, state.theta
    (point,) = method.clipping(state, public(method, 2)).points
    torch.testing.assert_close(point, theta + 0.5 * (last - theta) / (last - theta).norm())


@pytest.mark.parametrize("name", ["disk", "disk-adam", "fiber", "dp-sat", "dp-sat-momentum"])
def test_the_first_step_is_taken_where_it_starts(name: str) -> None:
    found = points_of(name, State(HERE, step=1))
    assert found.weights == (1.0,)
    assert torch.equal(found.points[0], HERE)


QUADRATIC = torch.tensor([1.0, 10.0], dtype=torch.float64)


@pytest.mark.parametrize("gamma", [0.1, 1.0])
def test_disk_keeps_the_gradient_of_a_quadratic_exactly(gamma: float) -> None:
    """Its prediction is exact where gradients are linear: m_t is then ∇f(θ_t), not an average."""
    kappa, rate, gradients = 0.6, 0.05, []
    theta, last = torch.tensor([2.0, -1.0], dtype=torch.float64), None
    for _ in range(6):
        ahead = theta if last is None else theta + gamma * (theta - last)
        gradients.append([[(QUADRATIC * ahead).tolist()], [(QUADRATIC * theta).tolist()]])
        last, theta = theta, theta - rate * QUADRATIC * theta
    h = {"learning_rate": rate, "clip_norm": 1e9, "kappa": kappa, "lookahead": gamma}
    constants = {"noise_multiplier": 0.0, "expected_batch_size": 1}
    found = replay("disk", h | constants, [2.0, -1.0], gradients, [[0.0, 0.0]] * 6)
    torch.testing.assert_close(torch.tensor(found[-1]), theta, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_dpzero_moves_along_its_direction_by_a_clipped_difference(count: int) -> None:
    draw = torch.Generator().manual_seed(count)
    steps, b, c, sigma, rate, size = 4, 3.0, 0.5, 0.7, 0.2, 0.01
    losses = torch.rand(steps, 2, count, 1, generator=draw, dtype=torch.float64) / 50
    noise = torch.randn(steps, 1, generator=draw, dtype=torch.float64)
    theta = [torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)]
    for t in range(steps):
        pairs = zip(*losses[t].squeeze(2).tolist(), strict=True)
        total = sum(max(-c, min(c, (up - down) / (2 * size))) for up, down in pairs)
        released = (total + sigma * c * float(noise[t, 0])) / b
        u = public(build("dpzero"), 3).direction(State(theta[0], step=t + 1))
        theta.append(theta[-1] - rate * released * u)
    h = {"learning_rate": rate, "clip_norm": c, "smoothing": size}
    constants = {"noise_multiplier": sigma, "expected_batch_size": b}
    found = replay("dpzero", h | constants, theta[0].tolist(), losses, noise)
    np.testing.assert_allclose(found, torch.stack(theta), rtol=1e-10)


def test_a_direction_is_the_same_within_a_step_and_another_one_in_the_next() -> None:
    constants, like = public(build("dpzero"), 3), torch.zeros(10_000)
    first, again = (constants.direction(State(like, step=1)) for _ in range(2))
    assert torch.equal(first, again)
    second = constants.direction(State(like, step=2))
    other = replace(constants, seed=1).direction(State(like, step=1))
    for u in (second, other):
        assert abs(float(first @ u)) < 500  # five standard deviations
        assert float(u.square().mean()) == pytest.approx(1.0, abs=0.1)


def test_losses_of_another_shape_than_one_number_per_example_are_refused() -> None:
    h = RUN | {"learning_rate": 0.3}
    with pytest.raises(UserError, match=r"expected shape \(2, 2, 3, 1\)"):
        replay("dpzero", h, [0.0, 0.0], np.zeros((2, 2, 3, 2)), np.zeros((2, 2)))
    with pytest.raises(UserError, match="reads 2 losses per step"):
        replay("dpzero", h, [0.0, 0.0], np.zeros((2, 3, 1)), np.zeros((2, 1)))
