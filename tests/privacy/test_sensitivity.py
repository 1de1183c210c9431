"""Removing or replacing one example never exceeds the declared sensitivity.

The real clipping of every method is used, at several steps of its life. Each pitfall is put
in on purpose as well: the check must catch it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from every_method import VARIANTS, build, public
from torch import Tensor

from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.method import Method
from clipnoise.core.query import Component, Query
from clipnoise.core.state import Public, State
from clipnoise.core.step import step
from clipnoise.gradients.clipping import clip_factors, clipped_sum, row_norms
from clipnoise.privacy.queries import (
    CleanClippedMean,
    IndependentMoments,
    JointMoments,
    JointMomentsAsPublished,
)

D, LAYERS = 5, (2, 3)
TOLERANCE = 1 + 1e-9
Form = Callable[[list[Tensor], Clipping], Any]
PRIVATE = [(name, options) for name, options in VARIANTS if build(name, **options).private]


def batches(draw: torch.Generator, iterates: int, b: float, D: int = D) -> Iterator[list[Tensor]]:
    """Yield batches, one (rows, d) tensor per iterate; example 0 is the one that goes."""

    def normal(count: int, size: float = 1.0) -> list[Tensor]:
        return [
            size * torch.randn(count, D, generator=draw, dtype=torch.float64)
            for _ in range(iterates)
        ]

    for size in (1e-3, 0.3, 1.0, 1e3):
        yield normal(6, size)
    yield normal(1)
    yield [torch.cat([1e6 * g[:1], g[1:]]) for g in normal(6)]  # one huge example
    same = torch.ones(40, D, dtype=torch.float64)  # far more than B, all aligned: a huge mean
    yield [same for _ in range(iterates)]
    yield [torch.cat([-same[:1], same[1:]]) for _ in range(iterates)]  # one against the rest
    axis = torch.zeros(max(2, int(b)), D, dtype=torch.float64)
    axis[:, 0] = 1e3
    yield [axis for _ in range(iterates)]  # a mean at the edge of the ball, along one axis
    yield [axis[:2] * (-1) ** j for j in range(iterates)]  # the iterates pull apart
    yield [axis[:1] * (j + 1) for j in range(iterates)]


def vectors(
    query: Query, form: Form, batch: list[Tensor], clipping: Clipping, b: float
) -> list[Tensor]:
    assert clipping.clip_norm is not None
    return list(query.values(form(batch, clipping) / b, clipping.clip_norm))


def neighbours(query: Query, batch: list[Tensor], draw: torch.Generator) -> Iterator[list[Tensor]]:
    """Yield the batches that the adjacency calls adjacent by example 0."""
    without = [g[1:] for g in batch]
    if query.adjacency != "replace":
        yield without
        return
    others = [-batch[0][:1], torch.randn(batch[0][:1].shape, generator=draw).double()]
    for other in others:
        yield [torch.cat([other, g]) for g in without]


def excess(query: Query, form: Form, clipping: Clipping, b: float, seed: int) -> float:
    """Return the largest change over the declared one, and the pair's cost over one mechanism's.

    Each component alone must stay within its sensitivity; the ‖Δ_p‖²/(f_p s_p)² must sum to at
    most 1, which is what one Gaussian mechanism at σ pays for.
    """
    draw = torch.Generator().manual_seed(seed)
    assert clipping.clip_norm is not None
    components = query.components(clipping.clip_norm, b)
    worst = 0.0
    for batch in batches(draw, len(clipping.weights), b, len(clipping.of.vector(torch.zeros(D)))):
        here = vectors(query, form, batch, clipping, b)
        for neighbour in neighbours(query, batch, draw):
            there = vectors(query, form, neighbour, clipping, b)
            moved = [float((x - y).norm()) for x, y in zip(here, there, strict=True)]
            alone = [m / p.sensitivity for m, p in zip(moved, components, strict=True)]
            cost = sum((a / p.noise_factor) ** 2 for a, p in zip(alone, components, strict=True))
            worst = max(worst, *alone, cost**0.5)
    return worst


def in_layers(batch: list[Tensor], clipping: Clipping) -> Tensor:
    """Return the clipped sum of a network of two layers."""
    return clipped_sum(batch, clipping, layers=LAYERS)


def clippings(optimizer: Method, b: float, seed: int) -> Iterator[Clipping]:
    """Yield the clippings of a life of nine steps."""
    state = State(torch.zeros(D, dtype=torch.float64))
    draw = torch.Generator().manual_seed(seed)
    seen: dict[int, Clipping] = {}  # the last one of each step

    def form(clipping: Clipping) -> ClippedSum:
        seen[state.step] = clipping
        batch = torch.Generator().manual_seed(1000 * seed + state.step)
        size = 10.0 ** float(torch.randint(-3, 3, (1,), generator=batch))
        rows = [
            size * torch.randn(4, len(vector), generator=batch, dtype=torch.float64)
            for _ in clipping.weights
        ]
        return ClippedSum(in_layers(rows, clipping))

    query = optimizer.query
    number, vector = query.noise_like(state.theta), query.of.vector(state.theta)
    for t in range(1, 10):
        normals = [
            torch.randn(number.shape, generator=draw, dtype=torch.float64)
            for _ in range(query.draws)
        ]
        constants = public(optimizer, D, expected_batch_size=b, seed=100 * seed + t)
        step(
            optimizer,
            state,
            constants,
            clipped_sum=form,
            noise=normals,
        )
    yield from seen.values()


def test_moments_declare_what_their_formulas_say() -> None:
    """At C = 1/2 and B = 4; with c = 1/(2C²) = 2, the second half of a pair moves twice as far."""
    declared = {
        IndependentMoments(): [(1 / 8, math.sqrt(2)), (9 / 64, math.sqrt(2))],
        JointMoments(): [(1 / 4, math.sqrt(5)), (1 / 4, math.sqrt(5) / 2)],
    }
    for query, expected in declared.items():
        found = [(one.sensitivity, one.noise_factor) for one in query.components(0.5, 4.0)]
        assert found == [pytest.approx(numbers) for numbers in expected]


def test_a_mean_that_shows_what_clipping_does_takes_no_noise() -> None:
    assert CleanClippedMean().components(0.5, 4.0) == (Component(1 / 8, noise_factor=0.0),)


@pytest.mark.parametrize("b", [1.0, 4.0, 32.5])
@pytest.mark.parametrize(("name", "options"), PRIVATE)
def test_one_example_moves_the_release_by_at_most_what_is_declared(
    name: str, options: dict[str, Any], b: float
) -> None:
    optimizer = build(name, **options)
    for seed, clipping in enumerate(clippings(optimizer, b, seed=int(b))):
        assert excess(optimizer.query, in_layers, clipping, b, seed) <= TOLERANCE


@pytest.mark.parametrize(
    "name", ["dp-sgd", "dp-pmlf", "innerouter", "stp-adam", "adadps-adam", "dp2-rmsprop"]
)
def test_the_declared_sensitivity_is_reached(name: str) -> None:
    optimizer = build(name)
    worst = max(
        excess(optimizer.query, clipped_sum, clipping, 4.0, seed)
        for seed, clipping in enumerate(clippings(optimizer, 4.0, seed=0))
    )
    assert worst == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("d", [3_000, 3_000_000])
def test_clipped_norms_of_long_float32_rows_stay_below_the_clip_norm(d: int) -> None:
    rows = torch.randn(2, d, generator=torch.Generator().manual_seed(0))
    total = clipped_sum([rows[:1]], Clipping(clip_norm=1.0))
    assert float(total.double().norm()) <= 1 + 1e-6


# Deliberate breaks: each is a mistake that has been made, and the check must see it.


def clip_each_pass(batch: list[Tensor], clipping: Clipping) -> Any:
    """Clip the gradients of each iterate separately and add them up."""
    return sum(clip_factors(row_norms(g)[None], clipping)[0] @ g for g in batch)


def clip_then_scale(batch: list[Tensor], clipping: Clipping) -> Any:
    """Clip the plain gradient and scale afterwards, with noise for C."""
    scale = 1.0 if clipping.scale is None else clipping.scale
    return clipped_sum(batch, replace(clipping, scale=None)) * scale


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("dp-pmlf", clip_each_pass),
        ("dp-pmlf-wo-lf", clip_each_pass),
        ("innerouter", clip_each_pass),
        ("stp-adam", clip_then_scale),
        ("adadps-rmsprop", clip_then_scale),
        ("dp-sgd", lambda batch, clipping: clipped_sum(batch, replace(clipping, clip_norm=None))),
    ],
)
def test_catches_a_sum_that_is_not_bounded_by_one_clip(name: str, broken: Form) -> None:
    optimizer = build(name)
    worst = max(
        excess(optimizer.query, broken, clipping, 4.0, seed)
        for seed, clipping in enumerate(clippings(optimizer, 4.0, seed=0))
    )
    assert worst > 1.5


def test_catches_a_square_without_projection() -> None:
    class Unprojected(IndependentMoments):
        def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
            return (mean, mean.square())

    clipping = Clipping(clip_norm=1.0)
    assert excess(Unprojected(), clipped_sum, clipping, 4.0, 0) > 1.5
    assert excess(IndependentMoments(), clipped_sum, clipping, 4.0, 0) <= TOLERANCE


def test_catches_two_releases_at_the_noise_of_one() -> None:
    class AtNoiseOfOne(IndependentMoments):
        noise_factor = 1.0

    assert excess(AtNoiseOfOne(), clipped_sum, Clipping(clip_norm=1.0), 32.0, 0) > 1.3


def test_catches_the_published_sensitivity_of_joint_moments() -> None:
    """2C/B for the pair holds for one gradient and its square, not for a mean of several."""
    clipping = Clipping(clip_norm=1.0)
    assert excess(JointMomentsAsPublished(), clipped_sum, clipping, 32.0, 0) > 1.3
    assert not JointMomentsAsPublished.private
    assert excess(JointMoments(), clipped_sum, clipping, 32.0, 0) <= TOLERANCE


def test_catches_a_micro_batch_mean_accounted_at_the_clip_norm() -> None:
    """Removing one of the examples of a clipped mean can move it across the ball: 2C, not C."""
    rows = torch.zeros(2, D, dtype=torch.float64)
    rows[0, 0], rows[1, 0] = -1e6, 1e3
    clipping = Clipping(clip_norm=1.0, group_size=2, groups=torch.zeros(2, dtype=torch.int64))
    alone = replace(clipping, groups=torch.zeros(1, dtype=torch.int64))
    moved = (clipped_sum([rows], clipping) - clipped_sum([rows[1:]], alone)).norm()
    assert float(moved) == pytest.approx(2.0)


def release_with_statistics_of(train: Tensor, batch: Tensor) -> Tensor:
    """Release with the scale of adadps-side taken from token counts of `train`."""
    optimizer = build("adadps-side", gamma=1.0)
    counts = (train != 0).double().sum(dim=0)
    constants = Public(
        noise_multiplier=0.0, expected_batch_size=4.0, total_steps=1, side_information=counts
    )
    state = State(torch.zeros(D, dtype=torch.float64))
    return clipped_sum([batch], optimizer.clipping(state, constants)) / 4.0


def test_catches_side_information_counted_on_the_private_examples() -> None:
    """The scale then moves with the example that goes, even in batches it is not part of."""
    declared: Component = build("adadps-side").query.components(1.0, 4.0)[0]
    train = torch.ones(40, D, dtype=torch.float64)
    train[1:, 0] = 0.0  # only example 0 has the first token
    batch = torch.zeros(20, D, dtype=torch.float64)
    batch[:, :2] = 1.0
    moved = release_with_statistics_of(train, batch) - release_with_statistics_of(train[1:], batch)
    assert float(moved.norm()) > 1.5 * declared.sensitivity
    public_text = torch.ones(10, D, dtype=torch.float64)
    fixed = [release_with_statistics_of(public_text, rows) for rows in (batch, batch[1:])]
    assert float((fixed[0] - fixed[1]).norm()) <= declared.sensitivity * TOLERANCE
