"""Micro-batches: how examples are assigned, how far one moves the sum, what is claimed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from every_method import VARIANTS, build, one_per_family, public
from torch import Tensor

from clipnoise.audit.sensitivity import Changes, largest_changes
from clipnoise.core.clipping import Clipping
from clipnoise.core.state import State
from clipnoise.errors import UserError
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.privacy.calibration import Calibration, calibrate
from clipnoise.privacy.microbatches import MicroBatchAssignment, MicroBatches
from clipnoise.privacy.queries import ClippedMean, IndependentMoments, JointMoments
from clipnoise.privacy.samplers import PoissonSampler
from clipnoise.run.results import privacy_statement
from clipnoise.run.spec import RunSpec, from_mapping, to_mapping
from clipnoise.seeds import generator

D, M = 5, 4
TOLERANCE = 1 + 1e-9
PRIVATE = [(name, options) for name, options in VARIANTS if build(name, **options).private]


def assignment(examples: int, count: int, seed: int = 0) -> MicroBatchAssignment:
    return MicroBatchAssignment(examples, count, generator("micro-batches", seed))


def normal(*shape: int, seed: int = 0) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draws, dtype=torch.float64)


# Who is averaged with whom.


def test_an_arranged_batch_holds_the_same_examples_in_whole_micro_batches() -> None:
    stream, batch = assignment(100, 7), torch.arange(3, 100, 2)
    arranged, groups = stream.arrange(batch)
    assert torch.equal(arranged.sort().values, batch)
    runs, sizes = torch.unique_consecutive(groups, return_counts=True)
    assert len(runs) == len(runs.unique()), "a micro-batch is torn apart"
    assert set(runs.tolist()) <= set(range(7))
    assert torch.equal(sizes, sizes.sort().values), "equal sizes are not next to each other"


def test_micro_batches_are_drawn_uniformly_and_independently_in_each_step() -> None:
    count, steps = 5, 4000
    stream, places = assignment(3, count), torch.zeros(steps, 3, dtype=torch.int64)
    for row in places:
        arranged, groups = stream.arrange(torch.arange(3))
        row[arranged] = groups
    tolerance = 6 * (1 / count / steps) ** 0.5  # six standard deviations of a frequency
    for column in places.T:
        frequency = torch.bincount(column, minlength=count) / steps
        assert (frequency - 1 / count).abs().max() < tolerance
    together = (places[:, 0] == places[:, 1]).double().mean()
    again = (places[1:, 0] == places[:-1, 0]).double().mean()
    assert abs(together - 1 / count) < tolerance
    assert abs(again - 1 / count) < tolerance


def test_an_example_that_goes_leaves_every_other_in_its_place() -> None:
    batch = torch.arange(0, 60, 2)
    everyone, groups = assignment(60, 6).arrange(batch)
    rest, rest_groups = assignment(60, 6).arrange(batch[1:])
    place = dict(zip(everyone.tolist(), groups.tolist(), strict=True))
    assert dict(zip(rest.tolist(), rest_groups.tolist(), strict=True)) == {
        example: group for example, group in place.items() if example != 0
    }


def test_a_restored_assignment_continues_bit_for_bit() -> None:
    stream, batch = assignment(50, 4), torch.arange(50)
    stream.arrange(batch)
    saved = {name: value.clone() for name, value in stream.get_state().items()}
    expected = [stream.arrange(batch) for _ in range(3)]
    resumed = assignment(50, 4, seed=9)
    resumed.set_state(saved)
    for one in expected:
        assert all(torch.equal(x, y) for x, y in zip(one, resumed.arrange(batch), strict=True))


def test_the_expected_size_of_a_micro_batch_is_m() -> None:
    n, batch_size = 1000, 80
    sampler = PoissonSampler(n, batch_size / n, generator("sampling", 0))
    stream = assignment(n, batch_size // M)
    sizes = []
    for _ in range(300):
        groups = stream.arrange(sampler.sample())[1]
        sizes.append(torch.bincount(groups, minlength=batch_size // M))
    mean = float(torch.cat(sizes).double().mean())
    assert mean == pytest.approx(M, abs=6 * (M / (300 * batch_size / M)) ** 0.5)


@pytest.mark.parametrize("size", [2, M])
def test_a_batch_is_expected_to_have_whole_micro_batches(size: int) -> None:
    assert MicroBatches(size).count(3 * size) == 3
    with pytest.raises(UserError, match=f"must be a multiple of it, got {size}"):
        MicroBatches(size).count(3 * size + 1)


# How far one example moves the sum.


def changes(query: Any, plan: Clipping, *, seed: int, factor: float, size: float) -> Changes:
    groups = torch.tensor([0, 0, 0, 2, 2, 5, 6, 6])
    plan = replace(plan, group_size=M, groups=groups)
    width = len(plan.of.vector(torch.zeros(D)))
    rows = size * normal(len(plan.weights), len(groups), width, seed=seed)
    return largest_changes(
        query,
        plan,
        rows,
        expected_batch_size=3.0,
        sensitivity_factor=factor,
        layers=(2, 3),
    )


@pytest.mark.parametrize(("name", "options"), one_per_family(PRIVATE))
def test_one_example_moves_the_release_by_at_most_the_corrected_sensitivity(
    name: str, options: dict[str, Any]
) -> None:
    optimizer = build(name, **options)
    factor = MicroBatches(M).sensitivity_factor(optimizer.query)
    state = State(torch.zeros(D, dtype=torch.float64), step=1)
    state.past = (state.theta,) * (optimizer.iterates() - 1)
    plan = optimizer.clipping(state, public(optimizer, D))
    for seed, size in enumerate((1e-3, 1.0, 1e3)):
        found = changes(optimizer.query, plan, seed=seed, factor=factor, size=size)
        assert max(*found.components, found.joint) <= TOLERANCE


@pytest.mark.parametrize("query", [ClippedMean(), IndependentMoments(), JointMoments()])
def test_corrected_noise_is_for_the_width_of_the_ball(query: Any) -> None:
    factor = MicroBatches(M).sensitivity_factor(query)
    assert factor == (1.0 if query.adjacency == "replace" else 2.0)  # replacing declares 2C already
    found = [changes(query, Clipping(1.0), seed=s, factor=factor, size=10.0) for s in range(20)]
    assert max(one.components[0] for one in found) == pytest.approx(1.0, abs=0.05)
    assert max(max(*one.components, one.joint) for one in found) <= TOLERANCE


def test_catches_noise_for_the_clip_norm_as_published() -> None:
    factor = MicroBatches(M, "as-published").sensitivity_factor(ClippedMean())
    found = [
        changes(ClippedMean(), Clipping(1.0), seed=s, factor=factor, size=10.0) for s in range(20)
    ]
    assert max(one.components[0] for one in found) > 1.9


def by_position(rows: Tensor) -> Tensor:
    """Average examples by their position in the drawn batch: the mistake."""
    groups = torch.arange(len(rows)) // M
    return clipped_sum([rows], Clipping(1.0, group_size=M, groups=groups))


def test_catches_groups_by_position_in_the_batch() -> None:
    """An example whose gradient is zero goes, and pairs that follow fall into two groups each."""
    rows = torch.zeros(40, D, dtype=torch.float64)
    for first in (8, 16, 24, 32):
        rows[first : first + 2, 0] = 100.0  # together in one group, apart when all move up by one
    moved = float((by_position(rows) - by_position(rows[1:])).norm())
    assert moved == pytest.approx(4.0)  # C for each pair: without limit, where 2C is declared


def test_a_whole_step_moves_by_at_most_twice_the_clip_norm_when_an_example_is_removed() -> None:
    """Sampler, places and clip together, on a dataset and on the same with one place empty."""
    n, rows, largest = 60, 20 * normal(60, D), 0.0
    sampler, stream = PoissonSampler(n, 0.4, generator("sampling", 1)), assignment(n, 6)
    for _ in range(200):
        batch = sampler.sample()
        order, groups = stream.arrange(batch)
        keep = order != 7
        whole = clipped_sum([rows[order]], Clipping(1.0, group_size=M, groups=groups))
        plan = Clipping(1.0, group_size=M, groups=groups[keep])
        moved = float((whole - clipped_sum([rows[order[keep]]], plan)).norm())
        assert moved == 0 or 7 in batch
        largest = max(largest, moved)
    assert 1.0 < largest <= 2 * TOLERANCE


# What is claimed.

SPEC: dict[str, Any] = {
    "dataset": "synthetic",
    "model": "logistic",
    "method": {"id": "dp-sgd", "learning_rate": 0.1, "clip_norm": 1.5},
    "privacy": {"noise_multiplier": 2.0, "delta": 1e-5},
    "training": {"expected_batch_size": 64, "steps": 5},
    "seed": 0,
}


def spec(method: str = "dp-sgd", **privacy: Any) -> RunSpec:
    options = {"id": method, "learning_rate": 0.1, "clip_norm": 1.5}
    return from_mapping(SPEC | {"method": options, "privacy": SPEC["privacy"] | privacy})


def calibration(run: RunSpec) -> Calibration:
    target = run.budget
    assert target is not None
    return calibrate(target)


@pytest.mark.parametrize(
    ("privacy", "claim", "sensitivity"),
    [
        ({}, "guarantee", 1.5 / 64),
        ({"microbatch_size": 4}, "guarantee", 2 * 1.5 / 16),
        (
            {"microbatch_size": 4, "microbatch_accounting": "as-published"},
            "nominal",
            1.5 / 16,
        ),
    ],
)
def test_the_statement_declares_the_sensitivity_and_the_claim_of_micro_batches(
    privacy: dict[str, Any], claim: str, sensitivity: float
) -> None:
    run = spec(**privacy)
    statement = privacy_statement(run, calibration(run))
    assert statement.claim == claim
    assert statement.sensitivity == pytest.approx(sensitivity)
    assert statement.microbatch_size == privacy.get("microbatch_size", 1)
    assert (statement.caveat is None) == (claim == "guarantee")
    assert statement.unit == "example"


def test_the_budget_does_not_depend_on_micro_batches() -> None:
    """ε follows from σ relative to the sensitivity; only the noise grows with the sensitivity."""
    assert spec().budget == spec(microbatch_size=4).budget


def test_micro_batches_are_part_of_a_run_s_identity() -> None:
    assert spec().hash == spec(microbatch_size=1).hash != spec(microbatch_size=2).hash
    grouped = spec(microbatch_size=4, microbatch_accounting="as-published")
    assert from_mapping(to_mapping(grouped)) == grouped


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"microbatch_size": 5}, "64 must be a multiple of it, got 5"),
        ({"microbatch_size": 0}, "microbatch_size"),
        ({"microbatch_accounting": "as-published"}, "requires a microbatch_size above 1"),
        ({"microbatch_size": 2, "microbatch_accounting": "paper"}, "microbatch_accounting"),
    ],
)
def test_what_makes_no_sense_is_refused(privacy: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        spec(**privacy)
