"""Clip norms and gradients so small that their squares are 0 in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clipnoise
from clipnoise.core.clip_rules import SHORTEST, ClipRule, HardClip
from clipnoise.core.clipping import Clipping
from clipnoise.core.state import Public, State
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.gradients.engine import GradientEngine, VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.methods.base import SGD, ClippedMean, PrivateMethod, method_class
from clipnoise.run.spec import RunSpec, from_mapping

EXAMPLES = 20
LOSS = nn.CrossEntropyLoss(reduction="none")


def data() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(100, 12, generator=draw), torch.randint(5, (100,), generator=draw)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 8, bias=False), nn.Tanh(), nn.Linear(8, 5, bias=False))


def longest(engine: GradientEngine, clipping: Clipping) -> float:
    """Return the largest norm of one example's clipped vector, in units of C."""
    inputs, targets = data()
    norms = []
    for i in range(EXAMPLES):
        one = engine.clipped_sum(inputs[i : i + 1], targets[i : i + 1], clipping)
        norms.append(float(one.double().norm()))
    return max(norms) / clipping.bound


def spec(**method: Any) -> RunSpec:
    return from_mapping(
        {
            "dataset": "digits",
            "model": "logistic",
            "method": {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 1, **method},
            "privacy": {"noise_multiplier": 1},
            "training": {"expected_batch_size": 50, "steps": 4},
            "seed": 1,
        }
    )


@pytest.mark.parametrize("size", [1e-13, 1e-18, 1e-24, 0.0])
def test_a_spec_with_too_small_a_clip_norm_is_refused_by_its_key(size: float) -> None:
    with pytest.raises(UserError, match=r"method.clip_norm: input should be .* 0.0{11}1, got"):
        spec(clip_norm=size)
    with pytest.raises(UserError, match=r"method.clip_norms.1: input should be .* 0.0{11}1, got"):
        from_mapping(
            {
                "dataset": "digits",
                "model": "logistic",
                "method": {
                    "id": "dp2-rmsprop",
                    "phase_lengths": [1, 1],
                    "learning_rates": [1, 1],
                    "clip_norms": [1, size],
                },
                "privacy": {"noise_multiplier": 1},
                "training": {"expected_batch_size": 50, "steps": 4},
                "seed": 1,
            }
        )


@pytest.mark.parametrize("size", [1e-24, 0.0, -1.0, float("nan"), float("inf")])
def test_no_clipping_has_such_a_clip_norm_wherever_it_comes_from(size: float) -> None:
    with pytest.raises(UserError, match="clip_norm: must be finite and at least 1e-12"):
        Clipping(size)


def test_a_schedule_of_one_s_own_is_refused_at_the_step() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Shrinking(SGD, PrivateMethod):
        """θ ← θ − ηg, with C falling fast.

        Source: none.
        """

        id = "shrinking"
        query = ClippedMean()

        def clip_norm_at(self, step: int) -> float:
            return self.clip_norm * 1e-9 ** (step - 1)

    training = clipnoise.private(
        network(),
        LOSS,
        data(),
        method=Shrinking(learning_rate=0.1, clip_norm=1.0),
        noise_multiplier=1.0,
        delta=1e-5,
        steps=5,
        expected_batch_size=50,
        seed=0,
    )
    steps = iter(training)
    assert [next(steps), next(steps)] == [1, 2]
    with pytest.raises(UserError, match="clip_norm: must be finite and at least 1e-12"):
        next(steps)


def test_an_adaptive_clip_norm_stops_falling() -> None:
    method = method_class("dp-sgd-quantile")(learning_rate=1.0, clip_norm=1.0)  # type: ignore[call-arg]
    state = State(torch.zeros(3))
    state.step, state["log C"] = 2, torch.tensor(-1000.0)
    public = Public(noise_multiplier=1.0, expected_batch_size=2.0, total_steps=1)
    assert method.clipping(state, public).clip_norm == SHORTEST


@pytest.mark.parametrize("kind", [FactoredEngine, VmapEngine])
@pytest.mark.parametrize("per", ["example", "layer"])
@pytest.mark.parametrize("size", [1e-8, 1e-11, 1e-16, 1e-19, 1e-22, 1e-26])
def test_no_vector_is_longer_than_the_smallest_clip_norm(
    kind: type[Any], per: Any, size: float
) -> None:
    engine = kind(network(), lambda outputs, targets: LOSS(outputs, targets) * size)
    clipping = Clipping(SHORTEST, rule=HardClip(per=per)).at(engine.flat.theta.clone())
    assert longest(engine, clipping) <= 1 + 1e-5


@pytest.mark.parametrize("kind", [FactoredEngine, VmapEngine])
@pytest.mark.parametrize("rule", ["hard", "automatic", "psac"])
@pytest.mark.parametrize("size", [1e-15, 1e-19, 1e-21, 1e-23, 1e-25])
def test_a_scale_lifts_no_vector_beyond_the_clip_norm(
    kind: type[Any], rule: str, size: float
) -> None:
    """Squares of such a gradient are 0, and its scaled entries are not."""
    engine = kind(network(), lambda outputs, targets: LOSS(outputs, targets) * size)
    theta = engine.flat.theta.clone()
    clipping = Clipping(
        1e-9, scale=torch.full_like(theta, 1e17), rule=parse(ClipRule, {"kind": rule})
    )
    assert longest(engine, clipping.at(theta)) <= 1 + 1e-5


def test_scaled_vectors_of_an_ordinary_size_are_clipped_to_c() -> None:
    engine = FactoredEngine(network(), LOSS)
    theta = engine.flat.theta.clone()
    clipping = Clipping(1e-3, scale=torch.full_like(theta, 100.0)).at(theta)
    assert longest(engine, clipping) == pytest.approx(1, rel=1e-5)


# A factor of a gradient may be tiny where another one is huge.

TINY, HUGE = 1.2e-23, 7e17


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().flatten(1).sum(dim=1)


@pytest.mark.parametrize("clip_norm", [1.0, 0.01, 1e-6])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Linear(256, 1000, bias=False), (256,)),
        (lambda: nn.Linear(256, 512, bias=False), (16, 256)),
        (lambda: nn.Linear(512, 512, bias=False), (256, 512)),
        (lambda: nn.Conv2d(64, 128, 3, bias=False), (64, 10, 10)),
        (lambda: nn.Conv2d(256, 256, 1, bias=False), (256, 12, 12)),
        (lambda: nn.Conv2d(64, 128, 3, stride=2, bias=False), (64, 9, 9)),
    ],
    ids=["rows", "few rows", "many rows", "convolution", "pixels", "stride"],
)
@pytest.mark.parametrize("scale", [None, 1.0, 1e-20])
def test_products_that_are_zero_in_float32_make_no_norm_too_low(
    scale: float | None, layer: Any, shape: tuple[int, ...], clip_norm: float
) -> None:
    module = layer()
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    inputs = torch.full((1, *shape), HUGE)
    targets = torch.full_like(module(inputs), TINY)
    engine = FactoredEngine(module, squared)
    theta = torch.zeros_like(engine.flat.theta)
    scales = None if scale is None else torch.full_like(theta, scale)
    clipping = Clipping(clip_norm, scale=scales).at(theta)
    total = engine.clipped_sum(inputs, targets, clipping)
    assert float(total.double().norm()) <= clip_norm * (1 + 1e-6)
