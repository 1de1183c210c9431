"""Under every clip rule a vector has a norm of at most C, and the others stay as they are."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clipnoise import replay
from clipnoise.core.clip_rules import ClipRule, HardClip
from clipnoise.core.clip_rules.smooth import PSAC, AutomaticClip
from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.query import Component
from clipnoise.core.state import Public
from clipnoise.core.step import privatize
from clipnoise.core.taken import (
    GRADIENTS,
    LOSSES,
    TAKEN,
    Gradients,
    GradientsAndCount,
    Taken,
)
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.gradients.engine import GradientEngine, OneByOne, VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.methods.privatize_then_adapt.dp_sgd import DPSGD
from clipnoise.privacy.queries import ClippedMean, ClippedMeanAndCount

C = 0.7
SIZES = [2, 7, 11]  # of layers
KINDS = (
    *({"kind": kind} for kind in ClipRule.package_kinds()),
    *({"kind": kind, "gamma": gamma} for kind in ("automatic", "psac") for gamma in (1e-12, 3.0)),
)
RULES = [parse(ClipRule, {**kind, "per": per}) for kind in KINDS for per in ("example", "layer")]
ENGINES: tuple[type[GradientEngine], ...] = (OneByOne, VmapEngine, FactoredEngine)

every_rule = pytest.mark.parametrize("rule", RULES, ids=str)


def vectors(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return vectors of very different lengths, some of whose layers are zero."""
    draws = torch.Generator().manual_seed(0)
    rows = torch.randn(count, sum(SIZES), generator=draws, dtype=torch.float64)
    rows *= 10 ** (-30 + 60 * torch.rand(count, 1, generator=draws, dtype=torch.float64))
    rows[::5, : SIZES[0]] = 0
    return rows.to(dtype)


@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_vector_is_longer_than_the_clip_norm(rule: ClipRule, dtype: torch.dtype) -> None:
    for row in vectors(200, dtype):
        total = clipped_sum([row[None]], Clipping(C, rule=rule), SIZES)
        assert float(total.double().norm()) <= C * (1 + 4 * torch.finfo(dtype).eps)


@every_rule
def test_a_zero_vector_and_one_that_is_not_finite_add_nothing(rule: ClipRule) -> None:
    rows = vectors(6)
    for bad in (0.0, math.nan, math.inf, 3e38):
        spoilt = torch.cat([rows, torch.full((1, sum(SIZES)), bad)])
        expected = clipped_sum([rows], Clipping(C, rule=rule), SIZES)
        found = clipped_sum([spoilt], Clipping(C, rule=rule), SIZES)
        torch.testing.assert_close(found, expected)


@every_rule
@pytest.mark.parametrize("huge", ["inputs", "targets"])
@pytest.mark.parametrize("kind", ENGINES, ids=lambda kind: kind.name)
def test_an_example_far_out_of_range_adds_at_most_the_clip_norm(
    kind: type[GradientEngine], huge: str, rule: ClipRule
) -> None:
    """At 1e20 the norm of some layers is infinite in float32, and that of others is not."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    engine = kind(network, lambda outputs, targets: (outputs * targets).sum(dim=1))
    inputs, targets = torch.randn(3, 4), torch.randn(3, 2)
    (inputs if huge == "inputs" else targets)[1] *= 1e20
    clipping, rest = Clipping(C, rule=rule).at(engine.flat.theta.clone()), torch.tensor([0, 2])
    total = engine.clipped_sum(inputs, targets, clipping)
    others = engine.clipped_sum(inputs[rest], targets[rest], clipping)
    assert float((total - others).double().norm()) <= C * (1 + 1e-5)


def test_layers_share_the_clip_norm() -> None:
    """Far beyond C every layer has C/√L, whichever is the longest."""
    rows = torch.cat([torch.full((1, size), 10.0**place) for place, size in enumerate(SIZES, 1)], 1)
    total = clipped_sum([rows], Clipping(C, rule=HardClip(per="layer")), SIZES)
    norms = [float(part.norm()) for part in total.split(SIZES)]
    assert norms == pytest.approx([C / math.sqrt(3)] * 3, rel=1e-6)


def test_weight_and_bias_of_a_module_are_one_layer() -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.LayerNorm(3), nn.Linear(3, 2))
    engine = VmapEngine(network, lambda outputs, targets: outputs.sum(dim=1))
    assert engine.flat.layers == [[0, 1], [2, 3], [4, 5]]
    assert engine.flat.layer_sizes == [15, 6, 8]


def test_factors_are_those_of_the_papers() -> None:
    norms = torch.tensor([0.0, 0.1, 1.0, 10.0], dtype=torch.float64)
    automatic = AutomaticClip(gamma=0.1).factors(norms, 2.0)
    assert automatic.tolist() == pytest.approx([20.0, 10.0, 2 / 1.1, 2 / 10.1])
    psac = PSAC(gamma=0.1).factors(norms, 2.0)
    each = [2.0, 2 / (0.1 + 0.1 / 0.2), 2 / (1 + 0.1 / 1.1), 2 / (10 + 0.1 / 10.1)]
    assert psac.tolist() == pytest.approx(each)


def test_weights_of_short_vectors_end_where_the_page_says() -> None:
    norms = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    psac = PSAC().factors(norms, 2.0)
    assert float(psac.max()) == pytest.approx(5.263 * 2.0, rel=1e-4)
    assert float(norms[psac.argmax()]) == pytest.approx(0.1 - 0.01, abs=1e-5)
    assert float(AutomaticClip().factors(norms, 2.0).max()) == pytest.approx(100 * 2.0)


def test_a_rule_is_one_line_in_a_study() -> None:
    options = {"learning_rate": 1, "clip_norm": 1, "clip_rule": {"kind": "automatic"}}
    assert parse(DPSGD, options).clip_rule == AutomaticClip()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"kind": "soft"}, "clip_rule.kind: unknown clip rule 'soft'"),
        ({"gamma": 0.1}, "gamma belongs to the kinds automatic and psac, not to hard"),
        ({"kind": "automatic", "gamma": 0}, "clip_rule.gamma: input should be greater than"),
    ],
)
def test_a_wrong_rule_is_refused_before_training(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(DPSGD, {"learning_rate": 1, "clip_norm": 1, "clip_rule": rule})


def test_a_recorded_stream_has_no_layers() -> None:
    options = {"learning_rate": 1, "clip_norm": 1, "clip_rule": {"per": "layer"}}
    constants = {"noise_multiplier": 1, "expected_batch_size": 1}
    with pytest.raises(UserError, match="layer needs a model"):
        replay("dp-sgd", options | constants, [0], [[[1]]], [[1]])


def test_a_count_moves_by_half_when_an_example_comes_or_goes() -> None:
    """Whatever its length is; one that is not finite moves nothing."""
    rows = torch.randn(5, sum(SIZES), generator=torch.Generator().manual_seed(0))
    rows[1], rows[2], rows[3], rows[4] = 0, 1e-3, math.nan, math.inf
    clipping = Clipping(C, of=GradientsAndCount())
    counts = [float(clipped_sum([rows[:stop]], clipping)[-1]) for stop in range(1, 6)]
    assert counts == [-0.5, 0.0, 0.5, 0.5, 0.5]


def test_the_clip_norm_finds_the_quantile() -> None:
    """With norms 1 … 100 and little noise C settles where 70% of the vectors are no longer."""
    rows = torch.arange(1.0, 101.0).view(1, 100, 1).expand(300, -1, -1)
    options = {"learning_rate": 1e-3, "clip_norm": 0.1, "target_quantile": 0.7}
    constants = {"noise_multiplier": 1e-3, "expected_batch_size": 100}
    draws = torch.Generator().manual_seed(0)
    noise = torch.randn(300, 2, 1, generator=draws)
    path = replay("dp-sgd-quantile", options | constants, [0], rows, noise)
    mean = float(path[-2, 0] - path[-1, 0]) / 1e-3  # of min(norm, C)
    assert mean == pytest.approx((sum(range(1, 71)) + 30 * 70) / 100, rel=0.02)


@every_rule
@pytest.mark.parametrize("kind", TAKEN)
def test_a_clipped_vector_and_what_follows_from_its_norm_stay_within_one_bound(
    rule: ClipRule, kind: str
) -> None:
    """Whatever a rule does to short vectors and to each layer."""
    of = TAKEN[kind]()
    for row in vectors(200, torch.float64):
        total = clipped_sum([row[None]], Clipping(C, rule=rule, of=of), SIZES)
        assert len(total) == sum(SIZES) + of.extra
        assert float(total.norm()) <= of.bound(C) * (1 + 1e-12)


@every_rule
def test_coordinates_follow_from_the_norms_of_the_vector_and_of_what_is_left_of_it(
    rule: ClipRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both(self: Taken, norms: Tensor, clipped: Tensor, clip_norm: float) -> Tensor:
        return torch.stack([norms, clipped, torch.full_like(norms, clip_norm)], dim=1)

    monkeypatch.setattr(Gradients, "extra", 3)
    monkeypatch.setattr(Gradients, "coordinates", both)
    rows = torch.randn(9, sum(SIZES), generator=torch.Generator().manual_seed(1)).double()
    each = [clipped_sum([row[None]], Clipping(C, rule=rule), SIZES) for row in rows]
    for row, total in zip(rows, each, strict=True):
        expected = torch.tensor([row.norm(), total[:-3].norm(), C])
        torch.testing.assert_close(total[-3:], expected.double())
    whole = clipped_sum([rows], Clipping(C, rule=rule), SIZES)
    torch.testing.assert_close(whole, torch.stack(each).sum(dim=0))


def test_a_release_of_vector_and_coordinates_as_one_has_the_noise_of_their_bound() -> None:
    class Joint(ClippedMean):
        of = GradientsAndCount()

    theta, of = torch.zeros(3, dtype=torch.float64), GradientsAndCount()
    total = torch.tensor([0.3, 0.0, 0.4, -0.5], dtype=torch.float64)
    constants = Public(noise_multiplier=2.0, expected_batch_size=5.0, total_steps=1)
    noise = [Joint().noise_like(theta) + 1]
    (released,) = privatize(ClippedSum(total), Joint(), Clipping(C, of=of), noise, constants)
    assert noise[0].shape == total.shape
    torch.testing.assert_close(released, total / 5 + 2 * math.hypot(C, 0.5) / 5)


def test_what_is_taken_of_examples_is_the_packages_to_define() -> None:
    with pytest.raises(TypeError, match="Unbounded: what is taken"):

        class Unbounded(Gradients):
            extra = 1

    with pytest.raises(TypeError, match="must be a Taken"):

        class Named(ClippedMean):
            of = "losses"  # type: ignore[assignment]


def test_a_query_and_a_clipping_that_take_something_else_are_refused() -> None:
    constants = Public(noise_multiplier=1.0, expected_batch_size=1.0, total_steps=1)
    noise = [torch.zeros(3)] * 2
    for query, of in (
        (ClippedMeanAndCount(), GRADIENTS),
        (ClippedMean(), GradientsAndCount()),
        (ClippedMean(), LOSSES),
    ):
        with pytest.raises(ValueError, match="differ in what they take"):
            privatize(ClippedSum(torch.zeros(3)), query, Clipping(C, of=of), noise, constants)


def test_a_count_that_moves_by_a_half_is_released_with_its_share_of_the_noise() -> None:
    mean, count = ClippedMeanAndCount(share=0.2).components(3.0, 10)
    assert mean == Component(0.3, 0.8**-0.5)
    assert count == Component(0.05, pytest.approx(0.2**-0.5))
