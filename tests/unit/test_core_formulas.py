"""The parts of the core by themselves, in closed form: memory, solver, what a class says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from clipnoise.core import minimum as solver
from clipnoise.core.method import PrivateMethod
from clipnoise.core.query import Component, composition_cost
from clipnoise.core.state import Public, State
from clipnoise.core.taken import GRADIENTS, AtMinimum, Taken
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.methods.base import methods
from clipnoise.privacy.queries import ClippedMean
from clipnoise.seeds import derive

CONSTANTS = Public(3.0, 4.0, 10, sensitivity_factor=2.0, seed=7)


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def memory(step: int = 0, **buffers: Tensor) -> State:
    return State(vector(0, 0), step, buffers)


def test_a_running_average_weighs_the_older_value_by_beta() -> None:
    state = memory(step=2)
    state.decay("m", vector(1, 2), 0.75)
    kept = state.decay("m", vector(4, 8), 0.75)
    torch.testing.assert_close(kept, 0.75 * 0.25 * vector(1, 2) + 0.25 * vector(4, 8))
    assert kept is state["m"]
    corrected = state.average("m", vector(0, 0), 0.75)
    torch.testing.assert_close(corrected, 0.75 * vector(1.1875, 2.375) / (1 - 0.75**2))


def test_moments_are_averages_of_the_gradient_and_of_its_square() -> None:
    state = memory(step=1)
    first, second = state.moments(vector(2, -3), (0.9, 0.99))
    torch.testing.assert_close(first, vector(2, -3))
    torch.testing.assert_close(second, vector(4, 9))
    state.step = 2
    first, second = state.moments(vector(0, 0), (0.9, 0.99))
    torch.testing.assert_close(first, vector(2, -3) * 0.09 / 0.19)
    torch.testing.assert_close(second, vector(4, 9) * 0.0099 / 0.0199)
    torch.testing.assert_close(state["m"], vector(2, -3) * 0.09)
    torch.testing.assert_close(state["v"], vector(4, 9) * 0.0099)


def test_the_noise_bias_is_the_average_of_what_each_step_s_noise_adds() -> None:
    state, beta = memory(), 0.8
    norms, rows, added = (1.0, 0.5, 2.0, 2.0), (1.0, 1.5, 0.7, 1.1), []
    for step, (norm, row) in enumerate(zip(norms, rows, strict=True), 1):
        state.step = step
        constants = Public(3.0, 4.0, 10, row, 2.0)
        found = state.noise_bias(constants, norm, beta)
        added.append((3.0 * 2.0 * norm / 4.0) ** 2 * row)
        weights = [(1 - beta) * beta ** (step - i) / (1 - beta**step) for i in range(1, step + 1)]
        expected = sum(w * one for w, one in zip(weights, added, strict=True))
        assert found == pytest.approx(expected, rel=1e-12)
    assert {name: buffer.dtype for name, buffer in state.buffers.items()} == {
        "noise_bias": torch.float64,
        "noise_bias_clip_norm": torch.float64,
    }


def test_at_one_clip_norm_independent_noise_leaves_its_variance_at_every_step() -> None:
    state = State(torch.zeros(2))
    for step in range(1, 6):
        state.step = step
        assert state.noise_bias(CONSTANTS, 0.1, 0.9) == CONSTANTS.noise_variance(0.1)


def test_noise_has_the_variance_of_sigma_times_sensitivity_over_the_batch_size() -> None:
    assert CONSTANTS.noise_variance(0.5) == (3.0 * 2.0 * 0.5 / 4.0) ** 2


def test_the_direction_of_a_step_follows_from_the_seed_and_the_step_alone() -> None:
    state = State(torch.zeros(50), 3)
    draws = torch.Generator().manual_seed(derive("directions", 7, 3))
    expected = torch.randn(50, generator=draws, dtype=torch.float64).float()
    for _ in range(2):
        torch.testing.assert_close(CONSTANTS.direction(state), expected, rtol=0, atol=0)


def test_a_copy_of_the_memory_has_tensors_of_its_own() -> None:
    state = State(vector(1, 2, 3), 5, {"m": vector(4, 5, 6)}, shapes=((2,), (1,)))
    copy = state.copy()
    state["m"].zero_()
    state.step = 6
    assert (copy.step, copy.shapes, copy.buffers["m"].tolist()) == (5, ((2,), (1,)), [4, 5, 6])
    assert copy.theta is state.theta
    assert copy.buffers.keys() == {"m"}


def test_a_checkpoint_holds_theta_the_step_every_buffer_and_past_iterates() -> None:
    buffers = {"v": vector(9, 9), "m": vector(1, 2)}
    saved = State(vector(6, 6), 4, buffers, past=(vector(3, 3), vector(5, 5))).get_state()
    assert saved.keys() == {"theta", "step", "buffer v", "buffer m", "past 0", "past 1"}
    again = memory(1, old=vector(7, 7))
    again.set_state(saved)
    assert type(again.step) is int
    assert (again.step, again.theta.tolist()) == (4, [6, 6])
    assert {name: one.tolist() for name, one in again.buffers.items()} == {
        "v": [9, 9],
        "m": [1, 2],
    }
    assert [one.tolist() for one in again.past] == [[3, 3], [5, 5]]


@pytest.mark.parametrize("name", ["theta", "past 0", "past 1"])
@pytest.mark.parametrize("value", [vector(3), vector(3, 3).float(), vector(3, math.nan)])
def test_a_checkpoint_with_other_parameters_than_these_is_refused(name: str, value: Tensor) -> None:
    saved = State(vector(6, 6), 4, {}, past=(vector(3, 3), vector(5, 5))).get_state()
    with pytest.raises(ValueError, match=f"{name} is not 2 finite parameters"):
        memory(1).set_state({**saved, name: value})


@pytest.mark.parametrize("value", [vector(3), vector(3, 3).float(), vector(3, math.nan)])
def test_a_buffer_may_hold_anything_and_have_the_name_of_parameters(value: Tensor) -> None:
    again, buffers = memory(1), {"theta": value, "past 0": value}
    again.set_state(State(vector(6, 6), 4, buffers).get_state())
    assert again.buffers.keys() == buffers.keys()


def test_a_vector_is_split_into_the_shapes_of_the_parameters() -> None:
    state = State(vector(1, 2, 3, 4, 5), shapes=((2, 2), (1,)))
    assert [piece.tolist() for piece in state.split(state.theta)] == [[[1, 2], [3, 4]], [5]]
    (whole,) = State(vector(1, 2)).split(vector(1, 2))
    assert whole.tolist() == [1, 2]


def asked_along(slope: float, curvature: float, start: float = 1.0) -> list[float]:
    """Return the points at which the solver asks for the gradient slope·x."""
    asked = []

    def gradient(x: Tensor) -> Tensor:
        asked.append(round(float(x), 9))
        return slope * x

    solver.minimum(gradient, vector(start), curvature=curvature, tolerance=1e-9)
    return asked


def test_the_solver_starts_with_a_step_of_newton_and_doubles_or_halves_it() -> None:
    assert asked_along(2.0, curvature=2.0) == [1, 0]
    assert asked_along(1.0, curvature=0.1) == [1, -9, 0]
    assert asked_along(1.0, curvature=100)[:6] == [1, 0.99, 0.98, 0.96, 0.92, 0.84]
    assert asked_along(1.0, curvature=100)[6:] == [0]


def test_the_solver_asks_for_no_gradient_beyond_its_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(solver, "ATTEMPTS", 30)
    asked = []
    with pytest.raises(UserError, match="minimum was not found"):
        solver.minimum(
            lambda x: asked.append(x) or torch.ones_like(x),  # type: ignore[func-returns-value]
            vector(0, 0),
            curvature=1.0,
            tolerance=0.1,
        )
    assert len(asked) == 31


def test_a_line_is_cut_where_the_slope_is_0_but_not_too_near_an_end() -> None:
    assert solver._between(1.0, -1.0, 5.0, 3.0) == 2.0
    assert solver._between(2.0, -1.0, 12.0, 99.0) == 3.0
    assert solver._between(2.0, -99.0, 12.0, 1.0) == 11.0


def test_the_inverse_is_exact_along_the_last_change_and_a_multiple_of_1_across_all() -> None:
    hessian = torch.diag(vector(1, 2, 4, 8))
    points = [vector(1, 1, 0, 0), vector(1, -1, 0, 0)]
    changes = [(s, hessian @ s) for s in points]
    g = changes[-1][1]
    torch.testing.assert_close(solver._times_inverse(g, changes, 9.0), points[-1])
    across, (s, y) = vector(0, 0, 3, 5), changes[-1]
    found = solver._times_inverse(across, changes, 9.0)
    torch.testing.assert_close(found, across * (s @ y) / (y @ y))
    torch.testing.assert_close(solver._times_inverse(across, [], 9.0), 9.0 * across)
    flat = [(s, 0 * s), (s, -s)]
    torch.testing.assert_close(solver._times_inverse(g, [*changes, *flat], 9.0), points[-1])


def test_the_inverse_is_that_of_the_update_of_bfgs() -> None:
    """(I − ρsyᵀ) H (I − ρysᵀ) + ρssᵀ for each change, from a multiple of 1."""
    draw = torch.Generator().manual_seed(0)
    root = torch.randn(4, 4, generator=draw, dtype=torch.float64)
    hessian = root @ root.T + torch.eye(4).double()
    changes = [(s, hessian @ s) for s in torch.randn(3, 4, generator=draw, dtype=torch.float64)]
    s, y = changes[-1]
    inverse, one = torch.eye(4).double() * (s @ y) / (y @ y), torch.eye(4).double()
    for s, y in changes:
        rho = 1 / (s @ y)
        left = one - rho * torch.outer(s, y)
        inverse = left @ inverse @ left.T + rho * torch.outer(s, s)
    g = torch.randn(4, generator=draw, dtype=torch.float64)
    torch.testing.assert_close(solver._times_inverse(g, changes, 1.0), inverse @ g)


def test_ridge_and_tolerance_leave_the_shares_that_the_proof_counts() -> None:
    """μ of what is released at the minimum and of the second noise, together, are 1/σ."""
    from statistics import NormalDist

    normal = NormalDist()
    for share, sigma, c in ((0.3, 0.8, 1.0), (0.5, 2.0, 0.25)):
        of = AtMinimum(share)
        kappa = c**2 / (4 * of.ridge(sigma, c))
        s = math.sqrt((1 - share) / (1 - share / 4)) / sigma
        mu = s / 2 - normal.inv_cdf(normal.cdf(-s / 2) / (1 + kappa))
        deviation = sigma * c / math.sqrt(1 - share) * math.sqrt(share / 4)
        second = 2 * of.tolerance(c) / deviation
        assert mu**2 + second**2 == pytest.approx(1 / sigma**2, rel=1e-9)
        assert second**2 == pytest.approx(share / 4 / sigma**2)
        assert of.ridge(0.0, c) == c**2 / 4


def test_what_is_taken_may_be_a_class_of_any_module_of_the_package_and_of_no_other() -> None:
    for module in ("clipnoise", "clipnoise.core.mine"):
        type("Mine", (Taken,), {"__module__": module})
    with pytest.raises(TypeError, match="Mine: what is taken of examples belongs to the package"):
        type("Mine", (Taken,), {"__module__": "clipnoise_mine.core"})


@dataclass(frozen=True, kw_only=True)
class Scheduled(PrivateMethod):
    """Has options of every kind that can hold a number."""

    id = "scheduled"
    query = ClippedMean()
    may_change = ("learning_rate", "rates", "bias")
    rates: tuple[float, float] = (1.0, 2.0)
    bias: float | None = None
    betas: tuple[float, float] = (0.9, 0.99)
    decay: float | None = None
    beta: float = 0.5


LINE = {"kind": "linear", "peak": 2.0}
GIVEN = {"learning_rate": 0.1, "clip_norm": 1.0}


def test_a_schedule_may_stand_for_a_number_alone_in_a_tuple_or_in_place_of_nothing() -> None:
    method = parse(Scheduled, GIVEN | {"learning_rate": LINE, "rates": [3.0, LINE], "bias": LINE})
    assert method.schedules == ("learning_rate", "rates", "bias")
    numbers = method.at(2, 4)
    assert (numbers.learning_rate, numbers.rates, numbers.bias) == (1.5, (3.0, 1.5), 1.5)
    assert method.extremes(4) == [1, 4]
    assert parse(Scheduled, GIVEN | {"bias": None}).schedules == ()


@pytest.mark.parametrize(
    ("name", "value"), [("beta", LINE), ("betas", [0.9, LINE]), ("decay", LINE)]
)
def test_a_schedule_for_what_may_not_change_is_refused_with_what_may(name: str, value: Any) -> None:
    with pytest.raises(UserError, match="schedules are for learning_rate, rates, bias"):
        parse(Scheduled, GIVEN | {name: value})


def test_a_method_s_own_check_sees_the_numbers_of_each_step_and_never_a_schedule() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Checked(Scheduled):
        """Refuses a rate above 1."""

        def __post_init__(self) -> None:
            if self.learning_rate > 1:
                raise ValueError("learning_rate: must be at most 1")

    method = parse(Checked, GIVEN | {"learning_rate": LINE})
    assert method.at(3, 4).learning_rate == 1
    with pytest.raises(ValueError, match="must be at most 1"):
        method.at(2, 4)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan])
def test_a_factor_that_is_not_positive_and_finite_costs_more_than_any_mechanism(
    factor: float,
) -> None:
    assert composition_cost((Component(1.0, 2.0), Component(1.0, 4.0))) == 1 / 4 + 1 / 16
    assert composition_cost((Component(1.0, 2.0), Component(1.0, factor))) == math.inf


def test_a_component_without_noise_uses_no_draw() -> None:
    class Half(ClippedMean):
        """Releases its second value as it is."""

        private = False

        def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
            return Component(1.0), Component(1.0, 0.0)

    assert (ClippedMean().draws, Half().draws) == (1, 1)


def test_gradients_have_no_extra_coordinates() -> None:
    norms = torch.ones(3, dtype=torch.float16)
    found = GRADIENTS.coordinates(norms, norms, 1.0)
    assert (tuple(found.shape), found.dtype) == ((3, 0), torch.float16)


def test_a_method_names_its_family_and_its_source() -> None:
    for kind in methods().values():
        (*_, place) = kind.__module__.partition("clipnoise.methods.")
        assert kind.family() == place.split(".")[0].replace("_", "-")

    class Own(PrivateMethod):
        """What it is.

        Source: A paper,
            algorithm 1. Source: another.
        """

        __module__ = "my_lab.some_rules.file"

    assert Own.family() == "some-rules"
    assert Own.source() == "A paper, algorithm 1. Source: another."
    Own.__doc__ = None
    assert Own.source() == ""
