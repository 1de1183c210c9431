"""What a step hands to the engine, the crossing and the method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from clipnoise.core.clip_rules import EACH_LAYER
from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.method import Clean, LocalTraining, OracleMethod, PrivateMethod
from clipnoise.core.schedule import LinearSchedule
from clipnoise.core.state import Public, State
from clipnoise.core.step import privatize, step
from clipnoise.errors import UserError
from clipnoise.privacy.queries import ClippedMean

PUBLIC = Public(
    noise_multiplier=3.0, expected_batch_size=4.0, total_steps=10, sensitivity_factor=2.0
)


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


THETA, BEFORE, NOISE = vector(1, 2), vector(5, 5), vector(1, -1)
TOTAL, UNCLIPPED = vector(3, 6), vector(8, -4)
RELEASED = TOTAL / 4 + 3 * 2 * (0.5 / 4) * NOISE


@dataclass(frozen=True, kw_only=True)
class Recording(PrivateMethod):
    """Takes gradients at two iterates, and remembers what it is handed."""

    id = "recording"
    query = ClippedMean()
    handed: list[Any] = field(default_factory=list, compare=False)
    returned: Any = None

    @property
    def _rule(self) -> Any:
        return EACH_LAYER

    def iterates(self) -> int:
        return 2

    def points(
        self, iterates: Sequence[Tensor], state: State, public: Public
    ) -> Sequence[tuple[float, Tensor]]:
        assert len(iterates) == 2
        return [(0.25, iterates[0]), (0.75, iterates[1])]

    def scale(self, state: State, public: Public) -> Tensor:
        return state.theta * public.total_steps

    def offset(self, state: State, public: Public) -> Tensor:
        return state.theta * state.step

    def update(self, released: Any, state: State, public: Public) -> Any:
        self.handed.append((released, state.step, state.theta, public, self.learning_rate))
        return -self.learning_rate * released[0] if self.returned is None else self.returned


def before(step: int = 0, *older: Tensor) -> State:
    """Return the memory before a step at θ; the iterate before θ, and older ones, are known."""
    return State(THETA, step, past=(BEFORE, *older))


class Engine:
    """Answers with one sum where vectors are clipped, and with another where they are not."""

    def __init__(self) -> None:
        self.asked: list[Clipping] = []

    def __call__(self, clipping: Clipping) -> ClippedSum:
        self.asked.append(clipping)
        return ClippedSum(UNCLIPPED if clipping.clip_norm is None else TOTAL)


def test_a_private_step_forms_a_sum_crosses_once_and_adds_the_update() -> None:
    method, engine = Recording(learning_rate=0.1, clip_norm=0.5), Engine()
    state = before(6, vector(9, 9))
    crossed: list[Any] = []

    def cross(*given: Any) -> Any:
        crossed.append(given)
        return privatize(*given)

    step(
        method,
        state,
        PUBLIC,
        clipped_sum=engine,
        noise=[NOISE],
        cross=cross,
    )
    (clipping,) = engine.asked
    assert (clipping.clip_norm, clipping.weights, clipping.rule) == (0.5, (0.25, 0.75), EACH_LAYER)
    assert clipping.points[0] is THETA
    assert clipping.points[1] is BEFORE
    assert clipping.scale is not None
    assert clipping.scale.tolist() == [10, 20]
    assert clipping.offset is not None
    assert clipping.offset.tolist() == [7, 14]
    ((total, query, crossing, noise, constants),) = crossed
    assert isinstance(total, ClippedSum)
    assert query is method.query
    assert crossing is clipping
    assert noise == [NOISE]
    assert constants is PUBLIC
    assert [one is THETA for one in state.past] == [True]  # the method reads one that is past
    (((released,), number, like, public, _),) = method.handed
    torch.testing.assert_close(released, RELEASED)
    assert (number, like is THETA, public is PUBLIC, state.step) == (7, True, True, 7)
    torch.testing.assert_close(state.theta, vector(1, 2) - 0.1 * RELEASED)
    assert vector(1, 2).equal(THETA)


def test_a_step_has_the_number_of_its_schedule_in_that_step() -> None:
    falling = LinearSchedule(peak=1.0)
    method = Recording(learning_rate=falling, clip_norm=0.5)  # type: ignore[arg-type]
    step(method, before(4), PUBLIC, clipped_sum=Engine(), noise=[NOISE])
    (*_, rate) = method.handed[0]
    assert rate == falling.at(5, 10) == pytest.approx(0.6)
    assert method.at(5, 10).query is method.query


class Bound(ClippedMean):
    """Releases the mean with the clip norm in its first place."""

    def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
        return (torch.cat([vector(clip_norm), mean[1:]]),)


@dataclass(frozen=True, kw_only=True)
class Knowing(OracleMethod):
    """An oracle that scales by the clean gradient, and remembers what it is handed."""

    id = "knowing"
    query = ClippedMean()
    handed: list[Any] = field(default_factory=list, compare=False)

    def oracle_scale(self, state: State, public: Public, gradient: Tensor) -> Tensor:
        return gradient + state.step * public.total_steps

    def oracle_update(self, released: Any, state: State, public: Public, clean: Clean) -> Tensor:
        self.handed.append((released, state, public, clean))
        return released[0] - clean.values[0]


class Unscaled(Knowing):
    """An oracle of values alone."""

    id = "unscaled"
    oracle_scale = OracleMethod.oracle_scale


def test_an_oracle_is_handed_clean_values_and_the_gradient_that_its_scale_read() -> None:
    method, engine, state = Knowing(learning_rate=0.1, clip_norm=0.5), Engine(), before()
    step(method, state, PUBLIC, clipped_sum=engine, noise=[NOISE])
    first, second = engine.asked
    assert first.clip_norm is None
    assert first.points[0] is THETA
    assert second.scale is not None
    torch.testing.assert_close(second.scale, UNCLIPPED / 4 + 10)
    ((released, handed, public, clean),) = method.handed
    torch.testing.assert_close(released[0], RELEASED)
    torch.testing.assert_close(clean.values[0], TOTAL / 4)
    torch.testing.assert_close(clean.gradient, UNCLIPPED / 4)
    assert (handed is state, public is PUBLIC) == (True, True)
    torch.testing.assert_close(state.theta, THETA + RELEASED - TOTAL / 4)
    assert (Knowing.reads_gradient(), method.passes(), method.private) == (True, 2, False)


def test_an_oracle_without_a_scale_asks_for_no_gradient() -> None:
    method, engine = Unscaled(learning_rate=0.1, clip_norm=0.5), Engine()
    step(method, before(), PUBLIC, clipped_sum=engine, noise=[NOISE])
    assert len(engine.asked) == 1
    assert method.handed[0][3].gradient is None
    assert (Unscaled.reads_gradient(), method.passes()) == (False, 1)


def test_clean_values_are_those_of_the_query_at_the_clip_norm() -> None:
    class Bounded(Unscaled):
        id = "bounded"
        query = Bound()

    method = Bounded(learning_rate=0.1, clip_norm=0.5)
    step(method, before(), PUBLIC, clipped_sum=Engine(), noise=[NOISE])
    assert method.handed[0][3].values[0].tolist() == [0.5, 1.5]


def test_the_scale_of_an_oracle_without_one_of_its_own_is_that_of_a_method() -> None:
    class Scaled(Unscaled):
        id = "scaled"

        def scale(self, state: State, public: Public) -> Tensor:
            return state.theta * public.total_steps

    method = Scaled(learning_rate=0.1, clip_norm=0.5)
    assert method.oracle_scale(State(THETA), PUBLIC, BEFORE).equal(THETA * 10)


@pytest.mark.parametrize(
    ("returned", "said"), [(vector(1, 2, 3), r"shape \(3,\)\."), (0.5, r"float\.")]
)
def test_an_update_of_another_shape_is_refused_with_its_file_and_class(
    returned: Any, said: str
) -> None:
    method = Recording(learning_rate=0.1, clip_norm=0.5, returned=returned)
    message = rf"{__file__}: class Recording: update must return .* shape \(2,\): {said}"
    with pytest.raises(UserError, match=message):
        step(method, before(), PUBLIC, clipped_sum=Engine(), noise=[NOISE])


def test_an_update_that_reads_what_was_never_written_is_refused() -> None:
    class Mistyped(Recording):
        id = "mistyped"

        def update(self, released: Any, state: State, public: Public) -> Any:
            state["momentum"] = state["momentun"] + released[0]
            return state["momentum"]

    method = Mistyped(learning_rate=0.1, clip_norm=0.5)
    with pytest.raises(UserError, match=r"class Mistyped: state\['momentun'\] .*momentum"):
        step(method, before(), PUBLIC, clipped_sum=Engine(), noise=[NOISE])


def test_what_is_released_of_something_else_than_was_taken_is_refused() -> None:
    from clipnoise.core.taken import LOSSES

    with pytest.raises(ValueError, match="ClippedMean and the clipping differ"):
        privatize(ClippedSum(TOTAL), ClippedMean(), Clipping(0.5, of=LOSSES), [NOISE], PUBLIC)


def test_passes_are_gradients_at_each_iterate_or_local_epochs() -> None:
    class Local(Recording):
        id = "local"

        def local_training(self) -> LocalTraining:
            return LocalTraining(0.1, epochs=5, batch_size=2)

    assert Recording(learning_rate=0.1, clip_norm=0.5).passes() == 2
    assert Local(learning_rate=0.1, clip_norm=0.5).passes() == 5
    assert replace(Recording(learning_rate=0.1, clip_norm=0.5), clip_norm=2.0).clip_norm_at(3) == 2


def test_a_class_of_no_loaded_file_is_named_by_its_module() -> None:
    class Typed(Recording):
        __module__ = "typed_by_hand"
        id = "typed"

    method = Typed(learning_rate=0.1, clip_norm=0.5, returned=0.5)
    with pytest.raises(UserError, match=r"^typed_by_hand: class Typed: update must return"):
        step(method, before(), PUBLIC, clipped_sum=Engine(), noise=[NOISE])


def test_a_point_without_a_weight_is_refused() -> None:
    class Weightless(Recording):
        id = "weightless"

        def points(self, iterates: Any, state: State, public: Public) -> Any:
            return [(0.5, THETA), (0.5,)]

    with pytest.raises(ValueError, match="zip"):
        Weightless(learning_rate=0.1, clip_norm=0.5).clipping(State(THETA), PUBLIC)
