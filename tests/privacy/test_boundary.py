"""What a query returns and declares is checked where it crosses the privacy boundary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clipnoise
from clipnoise.audit.sensitivity import change_between
from clipnoise.core.clip_rules import ClipRule, HardClip
from clipnoise.core.clip_rules.smooth import PSAC, AutomaticClip
from clipnoise.core.clipping import ClippedSum, Clipping, OwnClipRule
from clipnoise.core.method import OracleMethod
from clipnoise.core.query import Component, Query, Released
from clipnoise.core.state import Public
from clipnoise.core.step import privatize
from clipnoise.errors import UserError
from clipnoise.gradients.clipping import clip_factors
from clipnoise.methods.base import SGD, ClippedMean, PrivateMethod, method_class
from clipnoise.privacy.noise import OwnNoise
from clipnoise.privacy.queries import project
from clipnoise.run.outcome import DivergenceError
from clipnoise.run.private import PrivateTraining

D, B = 4, 2.0
LOSS = nn.CrossEntropyLoss(reduction="none")
CLIPPING = Clipping(1.0)


def cross(
    query: Query, *, sigma: float = 1.0, noise: Sequence[Tensor] = (torch.ones(D),) * 2
) -> tuple[Released, ...]:
    constants = Public(noise_multiplier=sigma, expected_batch_size=B, total_steps=1)
    total = ClippedSum(torch.tensor([0.5, -0.5, 0.25, 0.0]))
    return privatize(total, query, CLIPPING, noise, constants)


def declaring(*pairs: tuple[Any, Any], private: bool = True) -> Query:
    """Return a query that declares sensitivities, in units of C/B, and noise factors."""

    class Declaring(ClippedMean):
        def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
            return tuple(Component(s * clip_norm / expected_batch_size, f) for s, f in pairs)

        def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
            return (mean,) * len(pairs)

    Declaring.private = private
    return Declaring()


BAD = (-1e5, -1.0, math.nan, math.inf, 0.0)


@pytest.mark.parametrize("factor", BAD)
def test_no_component_gets_a_noise_factor_that_is_not_positive_and_finite(factor: float) -> None:
    with pytest.raises(ValueError, match="Declaring: noise_factor must be positive and finite"):
        cross(declaring((1.0, 1.0), (1.0, factor)))


@pytest.mark.parametrize("sensitivity", BAD)
def test_no_component_declares_a_sensitivity_that_is_not(sensitivity: float) -> None:
    with pytest.raises(ValueError, match="Declaring: sensitivity must be positive and finite"):
        cross(declaring((sensitivity, 1.0)))


def test_only_a_query_that_is_not_private_may_add_no_noise() -> None:
    (released,) = cross(declaring((math.inf, 0.0), private=False))
    assert released.tolist() == [0.25, -0.25, 0.125, 0.0]
    with pytest.raises(ValueError, match="noise_factor must be positive and finite, got -1"):
        cross(declaring((1.0, -1.0), private=False))


def test_a_number_that_changes_what_it_is_declares_only_once() -> None:
    class Shrinking(float):
        def __mul__(self, other: float) -> float:
            return 0.0

        __rmul__ = __mul__

    query = declaring((1.0, 1.0))
    constant = Component(Shrinking(0.5), Shrinking(1.0))
    object.__setattr__(query, "components", lambda *_: (constant,))
    assert cross(query)[0].tolist() == [0.75, 0.25, 0.625, 0.5]


class Own(Tensor):
    """A tensor with an addition of its own."""

    def add(self, *_: Any, **__: Any) -> Tensor:
        return torch.zeros(D)


VALUES: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "a subclass": (lambda mean: mean.as_subclass(Own), "must return dense torch.Tensors"),
    "a parameter": (lambda mean: nn.Parameter(mean), "must return dense torch.Tensors"),
    "no tensor": (lambda mean: mean.tolist(), "must return dense torch.Tensors"),
    "one number many times": (lambda mean: mean[:1].expand(D), "must return dense torch.Tensors"),
    "sparse": (lambda mean: mean.to_sparse(), "must return dense torch.Tensors"),
    "float64": (lambda mean: mean.double(), "must return torch.float32 on cpu, got torch.float64"),
    "bfloat16": (lambda mean: mean.bfloat16(), "must return torch.float32 on cpu"),
    "complex": (lambda mean: torch.complex(mean, mean), "got torch.complex64"),
    "elsewhere": (lambda mean: mean.to("meta"), "got torch.float32 on meta"),
    "a matrix": (lambda mean: mean.view(2, 2), r"up to 4 numbers, got shape \(2, 2\)"),
    "a number": (lambda mean: mean.sum(), r"got shape \(\)"),
    "too long": (lambda mean: mean.repeat(2), r"got shape \(8,\)"),
    "empty": (lambda mean: mean[:0], r"got shape \(0,\)"),
    "a graph": (lambda mean: mean.requires_grad_() * 1, "without a gradient"),
}


@pytest.mark.parametrize("name", VALUES)
def test_no_value_crosses_that_noise_would_not_hide(name: str) -> None:
    value, message = VALUES[name]

    class Returning(ClippedMean):
        def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
            return (value(mean),)

    with pytest.raises(ValueError, match=rf"Returning.values: .*{message}"):
        cross(Returning())


@pytest.mark.parametrize("count", [0, 2])
def test_there_is_one_value_for_each_component(count: int) -> None:
    class Returning(ClippedMean):
        def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
            return (mean,) * count

    with pytest.raises(ValueError, match=r"Returning.values: must return a tuple of 1"):
        cross(Returning())


def _generator(mean: Tensor) -> Any:
    yield mean


def test_values_are_no_generator_which_could_look_at_what_was_released() -> None:
    class Returning(ClippedMean):
        def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
            found: tuple[Tensor, ...] = _generator(mean)
            return found

    with pytest.raises(ValueError, match="must return a tuple of 1"):
        cross(Returning())


def test_a_private_value_that_is_not_finite_is_released_as_noise_alone() -> None:
    """The sign of a nan would show the sign of what it was made of."""

    class Dividing(ClippedMean):
        def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
            nan = torch.full_like(mean, math.nan).copysign(mean)
            return (torch.stack([nan[0], nan[1], mean[2] * math.inf, mean[3]]),)

    (released,) = cross(Dividing())
    assert released.tolist() == [0.5] * D
    Dividing.private = False
    (released,) = cross(Dividing())
    assert not released.isfinite().all()


def test_large_values_whose_sum_overflows_are_released_as_they_are() -> None:
    class Large(ClippedMean):
        def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
            return (torch.full_like(mean, 3e38),)

    (released,) = cross(Large())
    assert released.tolist() == torch.full((D,), 3e38).tolist()


def test_a_projection_of_values_whose_square_overflows_has_the_radius_as_its_norm() -> None:
    vector = torch.tensor([3e25, 4e25], dtype=torch.float32)
    assert project(vector, 10.0).tolist() == pytest.approx([6.0, 8.0])
    assert torch.equal(project(torch.tensor([3.0, 4.0]), 5.0), torch.tensor([3.0, 4.0]))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_change_that_is_not_a_number_counts_as_infinite(bad: float) -> None:
    here, there = torch.tensor([bad, 1.0]), torch.tensor([0.0, 1.0])
    found = change_between([here], [there], [Component(1.0)], 1.0)
    assert (found.components, found.joint) == ([math.inf], math.inf)
    same = change_between([there], [there], [Component(1.0)], 1.0)
    assert (same.components, same.joint) == ([0.0], 0.0)


@pytest.mark.parametrize(
    "component", [Component(-1.0), Component(math.nan), Component(1.0, math.nan), Component(1, -1)]
)
def test_a_change_is_infinite_where_nothing_sound_is_declared(component: Component) -> None:
    here, there = torch.zeros(2), torch.ones(2)
    assert change_between([here], [there], [component], 1.0).joint == math.inf


# What privacy rests on cannot be redefined, neither in a class nor by one that it mixes in.


class Loose:
    def factors(self, norms: Tensor, clip_norm: float) -> Tensor:
        return torch.ones_like(norms)


class Silent(Loose):
    def __init_subclass__(cls) -> None:
        """Keep the base classes from being asked."""


class Contract:
    what, sealed = "harmless", ()

    def factors(self, norms: Tensor, clip_norm: float) -> Tensor:
        return torch.ones_like(norms)


class Meta(type):
    def mro(cls) -> list[type]:
        return [*super().mro()]


class Weak(ClippedMean):
    private = False

    def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
        return (Component(clip_norm / expected_batch_size, 0.01),)


class Says:
    private = True


def rule(*mixed: type, **members: Any) -> Any:
    body = {"id": "planted", "factor": lambda self, norm, clip_norm: clip_norm / (norm + 1)}
    kind = type("Planted", (*mixed, OwnClipRule), {**body, **members})
    return dataclass(frozen=True, kw_only=True)(kind)


def noise(*mixed: type, **members: Any) -> Any:
    body = {"id": "planted", "entries": lambda self, steps: [1.0]}
    kind = type("Planted", (*mixed, OwnNoise), {**body, **members})
    return dataclass(frozen=True, kw_only=True)(kind)


def method(*mixed: type, base: type = PrivateMethod, **members: Any) -> Any:
    body = {
        "id": "planted",
        "query": Weak(),
        "__doc__": "Source: none.",
        "update": lambda self, released, state, public: -released[0],
    }
    kind = type("Planted", (*mixed, base), {**body, **members})
    return dataclass(frozen=True, kw_only=True)(kind)


class MixedNoise:
    def source(self, *_: Any) -> Any:
        raise NotImplementedError


class OneBand:
    def bands_over(self, steps: int) -> int:
        return 1


def look_up(self: Any, name: str) -> Any:
    return object.__getattribute__(self, name)


ATTACKS: dict[str, tuple[Callable[[], Any], str]] = {
    "a rule's mix-in": (lambda: rule(Loose), "Planted.factors"),
    "a contract of its own": (lambda: rule(Contract), "Planted.(factors|sealed)"),
    "a rule's look-up": (lambda: rule(__getattribute__=look_up), "Planted.__getattribute__"),
    "a rule's other look-up": (lambda: rule(__getattr__=look_up), "Planted.__getattr__"),
    "a rule that sees all norms": (lambda: rule(_asked=look_up), "Planted._asked"),
    "a noise's source": (lambda: noise(MixedNoise), "Planted.source"),
    "a noise's bands": (lambda: noise(OneBand), "Planted.bands_over"),
    "a method's word": (lambda: method(Says), "Planted.private"),
    "an oracle's sight": (
        lambda: method(base=OracleMethod, sees="released values"),
        "Planted.sees",
    ),
    "a query's release": (
        lambda: type("Planted", (type("Mixed", (), {"release": look_up}), ClippedMean), {}),
        "Planted.release",
    ),
    "a query's noise": (
        lambda: type("Planted", (ClippedMean,), {"noise_like": look_up}),
        "Planted.noise_like",
    ),
    "how often noise is drawn": (
        lambda: type("Planted", (ClippedMean,), {"draws": 0}),
        "Planted.draws",
    ),
    "a query that decides each time": (
        lambda: type("Planted", (ClippedMean,), {"private": property(lambda self: True)}),
        "Planted.private: must be True or False",
    ),
    "a metaclass": (lambda: Meta("Planted", (ClippedMean,), {}), "Planted: its metaclass Meta"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_privacy_rests_on_cannot_be_redefined(name: str) -> None:
    attack, message = ATTACKS[name]
    with pytest.raises(TypeError, match=message) as error:
        attack()
    assert "\n" not in str(error.value)


def train(chosen: Any, **settings: Any) -> PrivateTraining:
    draw = torch.Generator().manual_seed(0)
    data = 50 * torch.randn(60, 12, generator=draw), torch.randint(5, (60,), generator=draw)
    given = {"noise_multiplier": 1.0, "delta": 1e-5, "steps": 3, "expected_batch_size": 20}
    return clipnoise.private(
        nn.Linear(12, 5), LOSS, data, method=chosen, seed=0, **{**given, **settings}
    )


def test_a_mix_in_that_keeps_a_class_from_being_checked_is_refused_before_training() -> None:
    planted = rule(Silent)
    chosen = method_class("dp-sgd")(learning_rate=0.1, clip_norm=1.0, clip_rule=planted())  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"Planted\.factors: only the suite decides this"):
        train(chosen)


def test_a_rule_that_is_none_of_one_s_own_kind_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Direct(ClipRule):
        def factors(self, norms: Tensor, clip_norm: float) -> Tensor:
            return torch.ones_like(norms)

    chosen = method_class("dp-sgd")(learning_rate=0.1, clip_norm=1.0, clip_rule=Direct())  # type: ignore[call-arg]
    with pytest.raises(UserError, match="clip_rule: Direct must be an OwnClipRule"):
        train(chosen)


class Wide(Clipping):
    @property
    def bound(self) -> float:
        return 1e9


@dataclass(frozen=True, kw_only=True)
class Ones(Loose, HardClip):
    """Multiplies by 1."""


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ({"_rule": property(lambda self: Ones())}, "the clip rule Ones must be an OwnClipRule"),
        (
            {"clipping": lambda self, *_: replace(CLIPPING, rule=Ones())},
            "the clip rule Ones must be an OwnClipRule",
        ),
        (
            {"clipping": lambda self, *_: Wide(**vars(CLIPPING))},
            "clipping: must return a Clipping, got Wide",
        ),
    ],
    ids=["rule", "clipping", "class"],
)
def test_a_method_cannot_bound_vectors_in_a_way_of_its_own(hooks: Any, message: str) -> None:
    planted = method(query=ClippedMean(), **hooks)
    with pytest.raises(TypeError, match=f"Planted.*{message}"):
        for _ in train(planted(learning_rate=0.1, clip_norm=1.0)):
            pass


@pytest.mark.parametrize("kind", [AutomaticClip, PSAC])
@pytest.mark.parametrize("gamma", [-1.0, 0.0, math.nan, math.inf])
def test_no_rule_is_made_with_a_constant_that_lengthens_vectors(kind: Any, gamma: float) -> None:
    with pytest.raises(ValueError, match="gamma must be finite and at least"):
        kind(gamma=gamma)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float64])
def test_noise_of_another_dtype_hides_nothing(dtype: torch.dtype) -> None:
    normal = torch.zeros(D, dtype=dtype)
    with pytest.raises(ValueError, match="the noise is"):
        cross(ClippedMean(), noise=[normal])


def test_what_an_object_says_of_itself_is_not_asked() -> None:
    """Attributes that were forced upon a frozen object have no effect."""
    planted = rule()()
    object.__setattr__(planted, "factors", lambda norms, clip_norm: torch.ones_like(norms))
    norms = torch.tensor([[100.0]])
    assert float(clip_factors(norms, Clipping(1.0, rule=planted))) <= 1 / 100
    quiet = noise(entries=lambda self, steps: [1.0, 0.5])()
    object.__setattr__(quiet, "strategy", lambda *_: None)
    source = OwnNoise.source(quiet, 4, 1, torch.Generator().manual_seed(0), torch.zeros(3))
    assert source.strategy is not None


def test_honest_mix_ins_work() -> None:
    class Scaled:
        """A mix-in with a part of the rule."""

        def factor(self, norm: Tensor, clip_norm: float) -> Tensor:
            return clip_norm / (norm + 1)

    planted = type("Planted", (Scaled, OwnClipRule), {"id": "honest"})
    honest = dataclass(frozen=True, kw_only=True)(planted)  # type: ignore[arg-type]

    @dataclass(frozen=True, kw_only=True)
    class Mixed(SGD, PrivateMethod):
        """θ ← θ − ηg.

        Source: none.
        """

        id = "mixed"
        query = ClippedMean()

    training = train(Mixed(learning_rate=0.1, clip_norm=1.0, clip_rule=honest()))
    assert list(training) == [1, 2, 3]
    assert training.statement.claim == "guarantee"


@pytest.mark.parametrize("chosen", ["dp-sgd", "dp-adambc"])
def test_a_private_run_that_diverges_still_ends_as_one(chosen: str) -> None:
    with pytest.raises(DivergenceError, match="a parameter is not finite after step"):
        list(train(chosen, learning_rate=3e38, clip_norm=100.0, steps=20))


def test_a_wrong_declaration_is_refused_before_the_first_step() -> None:
    planted = method(query=declaring((1.0, 1.0), (1.0, -1e5)))
    with pytest.raises(UserError, match=r"query: Declaring: noise_factor must be positive"):
        train(planted(learning_rate=0.1, clip_norm=1.0))


def test_a_query_declares_once_in_a_step() -> None:
    calls: list[float] = []

    class Counting(ClippedMean):
        def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
            calls.append(clip_norm)
            return super().components(clip_norm, expected_batch_size)

    cross(Counting())
    assert calls == [1.0]


def test_a_query_that_an_option_decides_is_the_same_in_every_step() -> None:
    asked: list[int] = []

    @dataclass(frozen=True, kw_only=True)
    class Wavering(SGD, PrivateMethod):
        """DP-SGD whose second query releases without noise.

        Source: none.
        """

        id = "wavering"

        @property
        def query(self) -> Query:
            asked.append(0)
            noisy = declaring((1.0, 1.0))
            return noisy if len(asked) == 1 else declaring((0.0, 0.0), private=False)

    chosen = Wavering(learning_rate=0.1, clip_norm=1.0)
    assert chosen.query is chosen.query
    assert chosen.private
    assert len(asked) == 1
