"""The sensitivity check: correct declarations pass, and wrong ones of every kind are detected."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from clipnoise.audit.sensitivity import largest_changes
from clipnoise.core.clipping import Clipping
from clipnoise.core.query import Component, Query, composition_cost
from clipnoise.privacy.queries import (
    CleanClippedMean,
    ClippedMean,
    IndependentMoments,
    IndependentMomentsForFree,
    JointMoments,
    JointMomentsAsPublished,
)

B = 4.0
ROUNDING = 1e-9


def gradients(k: int = 1, b: int = 6, d: int = 5, size: float = 3.0, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return size * torch.randn(k, b, d, generator=draw, dtype=torch.float64)


def plans() -> dict[str, tuple[Clipping, int]]:
    scale = torch.tensor([1e-3, 1.0, 10.0, 1e3, 0.5], dtype=torch.float64)
    offset = torch.tensor([5.0, -1.0, 0.0, 2.0, 100.0], dtype=torch.float64)
    return {
        "plain": (Clipping(1.0), 1),
        "scaled": (Clipping(0.3, scale=scale), 1),
        "scaled with offset": (Clipping(2.0, scale=scale, offset=offset), 1),
        "over iterates": (Clipping(1.0, weights=(0.5, 0.3, 0.2)), 3),
        "unnormalised": (Clipping(0.1, weights=(1.0, 0.9), scale=scale), 2),
    }


@pytest.mark.parametrize("name", plans())
@pytest.mark.parametrize("query", [ClippedMean(), IndependentMoments(), JointMoments()])
@pytest.mark.parametrize("size", [1e-3, 3.0])
def test_honest_queries_keep_their_promise(name: str, query: Query, size: float) -> None:
    plan, k = plans()[name]
    changes = largest_changes(query, plan, gradients(k, size=size), expected_batch_size=B)
    assert max(changes.components) <= 1 + ROUNDING
    assert changes.joint <= 1 + ROUNDING


@pytest.mark.parametrize("name", plans())
def test_the_adversary_reaches_the_declared_sensitivity(name: str) -> None:
    plan, k = plans()[name]
    changes = largest_changes(ClippedMean(), plan, gradients(k, size=1e-6), expected_batch_size=B)
    assert changes.components[0] == pytest.approx(1.0, abs=1e-3)


@dataclass(frozen=True)
class Understated(ClippedMean):
    """Declares 90% of the truth."""

    def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
        return (Component(0.9 * clip_norm / expected_batch_size),)


@dataclass(frozen=True)
class SquareOfAnUnboundedMean(IndependentMoments):
    """Squares the mean without projecting it: a large Poisson batch breaks the declaration."""

    def values(self, mean: torch.Tensor, clip_norm: float) -> tuple[torch.Tensor, ...]:
        return (mean, mean.square())


def test_an_understated_sensitivity_is_detected() -> None:
    changes = largest_changes(Understated(), Clipping(1.0), gradients(), expected_batch_size=B)
    assert changes.components[0] == pytest.approx(1 / 0.9, abs=1e-6)


def test_a_bound_that_holds_only_for_small_batches_is_detected() -> None:
    same = torch.ones(1, 40, 1, dtype=torch.float64) * 5  # ten times the expected batch
    honest = largest_changes(IndependentMoments(), Clipping(1.0), same, expected_batch_size=B)
    broken = largest_changes(SquareOfAnUnboundedMean(), Clipping(1.0), same, expected_batch_size=B)
    assert max(honest.components) <= 1 + ROUNDING
    assert broken.components[1] > 5


def test_a_second_moment_for_free_exceeds_its_declared_sensitivity() -> None:
    # One example alone moves both halves: each within its sensitivity, together beyond.
    same = torch.ones(1, 4, 1, dtype=torch.float64) * 5
    changes = largest_changes(
        IndependentMomentsForFree(), Clipping(1.0), same, expected_batch_size=B
    )
    assert max(changes.components) <= 1 + ROUNDING
    assert changes.joint > 1.2


def test_the_published_sensitivity_of_joint_moments_is_exceeded() -> None:
    same = torch.ones(1, 32, 1, dtype=torch.float64) * 5  # a mean at the edge of the ball
    plan = Clipping(1.0)
    published = largest_changes(JointMomentsAsPublished(), plan, same, expected_batch_size=32.0)
    ours = largest_changes(JointMoments(), plan, same, expected_batch_size=32.0)
    assert ours.joint <= 1 + ROUNDING
    assert published.joint > 1.3


def test_a_value_released_without_noise_is_infinitely_far() -> None:
    changes = largest_changes(CleanClippedMean(), Clipping(1.0), gradients(), expected_batch_size=B)
    assert changes.joint == math.inf


def test_an_empty_batch_is_checked_by_what_can_join_it() -> None:
    changes = largest_changes(ClippedMean(), Clipping(1.0), gradients(b=0), expected_batch_size=B)
    assert changes.components[0] == pytest.approx(1.0, abs=1e-9)


def test_float32_vectors_of_a_million_coordinates_stay_within_a_millionth() -> None:
    long = gradients(b=2, d=1_000_000, size=1.0).float()
    changes = largest_changes(ClippedMean(), Clipping(1.0), long, expected_batch_size=B)
    assert changes.components[0] <= 1 + 1e-6


def test_without_a_clip_norm_there_is_nothing_to_check() -> None:
    with pytest.raises(ValueError, match="without clipping"):
        largest_changes(ClippedMean(), Clipping(None), gradients(), expected_batch_size=B)


def test_composition_cost_of_every_private_query_is_at_most_one() -> None:
    for query in (ClippedMean(), IndependentMoments(), JointMoments(), JointMoments(weight=0.3)):
        assert composition_cost(query.components(0.7, 16.0)) <= 1 + 1e-12
    assert composition_cost(IndependentMomentsForFree().components(0.7, 16.0)) == 2.0
    assert composition_cost(CleanClippedMean().components(0.7, 16.0)) == math.inf
