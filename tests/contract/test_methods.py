"""The contract of a method, checked for every registered one."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import FAMILIES, METHODS, VARIANTS, build, one_per_family, public
from torch import Tensor

from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.method import Method, OracleMethod
from clipnoise.core.query import Query
from clipnoise.core.state import Public, State
from clipnoise.core.step import step
from clipnoise.fields import parse, to_plain
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.methods.base import method_class

D, B, STEPS = 3, 4, 8
GROWING = ("dp-pmlf-released",)  # whose newest iterate has the smallest weight


def normals(count: int, seed: int, d: int = D) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(d, generator=draw, dtype=torch.float64) for _ in range(count)]


def width(optimizer: Method) -> int:
    return len(optimizer.query.noise_like(torch.zeros(D)))


def noise(optimizer: Method, t: int) -> list[Tensor]:
    return normals(optimizer.query.draws, seed=1000 + t, d=width(optimizer))


def gradients(t: int, iterates: int = 4, d: int = D) -> list[Tensor]:
    draw = torch.Generator().manual_seed(t)
    return [torch.randn(B, d, generator=draw, dtype=torch.float64) for _ in range(iterates)]


def take(optimizer: Method, state: State, t: int, constants: Public | None = None) -> Tensor:
    """Take step t (from 1) on drawn gradients and return the change."""

    def form(clipping: Clipping) -> ClippedSum:
        d = len(optimizer.query.of.vector(torch.zeros(D)))
        rows = gradients(t, d=d)[: len(clipping.weights)]
        return ClippedSum(clipped_sum(rows, clipping, [rows[0].shape[1]]))

    before = state.theta
    step(
        optimizer,
        state,
        constants or public(optimizer, D, seed=t),
        clipped_sum=form,
        noise=noise(optimizer, t),
    )
    return state.theta - before


def new_state() -> State:
    return State(torch.zeros(D, dtype=torch.float64))


def test_every_family_has_one_method_that_stands_for_it() -> None:
    families = [method_class(name).family() for name in FAMILIES]
    ours = [kind for kind in map(method_class, METHODS) if kind.__module__.startswith("clipnoise.")]
    assert sorted(families) == sorted({kind.family() for kind in ours})


@pytest.mark.parametrize("name", METHODS)
def test_is_a_frozen_dataclass_with_a_kebab_case_id(name: str) -> None:
    kind = method_class(name)
    assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name)
    assert dataclasses.is_dataclass(kind)
    assert isinstance(build(name).query, Query)
    with pytest.raises(dataclasses.FrozenInstanceError):
        build(name).id = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", METHODS)
def test_is_documented_with_a_summary_and_a_source(name: str) -> None:
    kind = method_class(name)
    summary = (kind.__doc__ or "").partition("Source:")[0].strip()
    assert len(summary) > 20  # an equation at least
    assert re.search(r"\d", kind.source()), "names no year, section, algorithm or equation"
    assert kind.family() != "base"


@pytest.mark.parametrize(("name", "options"), one_per_family(VARIANTS))
def test_is_equal_after_conversion_to_plain_data_and_back(
    name: str, options: dict[str, Any]
) -> None:
    optimizer = build(name, **options)
    again = parse(type(optimizer), to_plain(optimizer))
    assert again == optimizer
    assert again.query == optimizer.query


@pytest.mark.parametrize(("name", "options"), one_per_family(VARIANTS))
def test_a_private_release_costs_one_gaussian_mechanism(name: str, options: dict[str, Any]) -> None:
    query = build(name, **options).query
    for clip_norm, batch in ((1.0, 1.0), (0.1, 256.0), (7.0, 10.5)):
        components = query.components(clip_norm, batch)
        assert len(components) == len(query.values(torch.ones(D), clip_norm))
        noisy = sum(component.noise_factor > 0 for component in components)
        assert query.draws == noisy + (query.of.spends > 0)
        if query.private:
            assert all(0 < component.sensitivity < float("inf") for component in components)
            cost = sum(component.noise_factor**-2 for component in components)
            assert cost + query.of.spends <= 1 + 1e-12


@pytest.mark.parametrize(("name", "options"), one_per_family(VARIANTS))
def test_update_does_not_change_the_released_values(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer, state = build(name, **options), new_state()
    seen: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = []
    hook = "oracle_update" if isinstance(optimizer, OracleMethod) else "update"
    real: Callable[..., Tensor] = getattr(type(optimizer), hook)

    def watched(self: Method, released: tuple[Any, ...], *rest: Any) -> Tensor:
        before = tuple(value.clone() for value in released)
        change = real(self, released, *rest)
        seen.append((before, released))
        return change

    monkeypatch.setattr(type(optimizer), hook, watched)
    for t in range(1, STEPS + 1):
        take(optimizer, state, t)
    assert len(seen) == STEPS
    for t, (before, after) in enumerate(seen, start=1):
        assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True)), f"step {t}"


@pytest.mark.parametrize(("name", "options"), one_per_family(VARIANTS))
def test_hooks_before_the_boundary_do_not_change_the_state(
    name: str, options: dict[str, Any]
) -> None:
    optimizer, state = build(name, **options), new_state()
    for t in range(1, STEPS + 1):
        constants = public(optimizer, D, seed=t)
        ahead = state.copy()
        ahead.step += 1
        twice = [optimizer.clipping(ahead, constants) for _ in range(2)]
        for field in ("scale", "offset"):
            first, second = (getattr(clipping, field) for clipping in twice)
            assert (first is None) == (second is None)
            assert first is None or torch.equal(first, second)
        take(optimizer, state, t)


@pytest.mark.parametrize(("name", "options"), one_per_family(VARIANTS))
def test_the_model_is_a_function_of_the_parameters_and_the_memory(
    name: str, options: dict[str, Any]
) -> None:
    optimizer, state = build(name, **options), new_state()
    assert torch.equal(optimizer.evaluated(state.theta, state), state.theta)
    for t in range(1, STEPS + 1):
        take(optimizer, state, t)
        before, theta = state.copy(), state.theta
        model = optimizer.evaluated(theta, state)
        assert model.shape == theta.shape
        assert torch.equal(model, optimizer.evaluated(theta.clone(), before))
        assert state.buffers.keys() == before.buffers.keys()
        assert all(torch.equal(state.buffers[key], before.buffers[key]) for key in before.buffers)


@pytest.mark.parametrize(("name", "options"), one_per_family(VARIANTS))
def test_resumed_from_a_saved_state_it_takes_the_same_steps(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    optimizer, state = build(name, **options), new_state()
    for t in range(1, 4):
        take(optimizer, state, t)
    assert all(isinstance(value, Tensor) for value in state.buffers.values())
    torch.save(state.get_state(), tmp_path / "state.pt")
    uninterrupted = [take(optimizer, state, t) for t in range(4, STEPS + 1)]
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed = new_state()
    resumed.set_state(saved)
    for t, expected in zip(range(4, STEPS + 1), uninterrupted, strict=True):
        assert torch.equal(take(build(name, **options), resumed, t), expected)


@pytest.mark.parametrize(("name", "options"), one_per_family(VARIANTS))
def test_memory_does_not_grow_with_the_steps(name: str, options: dict[str, Any]) -> None:
    optimizer, state = build(name, **options), new_state()
    for t in range(1, 21):
        take(optimizer, state, t)
        if t == 10:
            held = {key: value.shape for key, value in state.buffers.items()}
    assert {key: value.shape for key, value in state.buffers.items()} == held


@pytest.mark.parametrize(("name", "options"), one_per_family(VARIANTS))
def test_the_weights_of_points_never_grow_and_no_iterate_beyond_those_declared_is_read(
    name: str, options: dict[str, Any]
) -> None:
    optimizer, state = build(name, **options), new_state()
    state.theta, *past = (torch.full((D,), float(age), dtype=torch.float64) for age in range(9))
    state.step = 1
    for available in range(len(past) + 1):
        state.past = tuple(past[:available])
        asked = optimizer.clipping(state, public(optimizer, D))
        state.past = state.past[: optimizer.iterates() - 1]
        assert list(asked.weights) == sorted(asked.weights, reverse=True) or name in GROWING
        again = optimizer.clipping(state, public(optimizer, D))
        assert all(torch.equal(p, q) for p, q in zip(asked.points, again.points, strict=True))


@pytest.mark.parametrize("name", [name for name in METHODS if build(name).private])
def test_an_update_depends_on_private_data_through_released_values_alone(name: str) -> None:
    """Other data under the same releases lead to the same parameters."""

    def trained(data: float) -> Tensor:
        optimizer, state = build(name), new_state()
        for t in range(1, STEPS + 1):
            query = optimizer.query
            values = query.values(query.of.zeros(torch.zeros(D)) + 1, 1.0)
            draws = normals(len(values), seed=t, d=width(optimizer))
            fixed = tuple(z[: len(value)] for z, value in zip(draws, values, strict=True))

            def form(clipping: Clipping) -> ClippedSum:
                like = torch.zeros(D, dtype=torch.float64)
                return ClippedSum(clipping.of.zeros(like) + data)

            def cross(*_: Any, fixed: Any = fixed) -> Any:
                return fixed

            constants = public(optimizer, D, seed=t)
            step(
                optimizer,
                state,
                constants,
                clipped_sum=form,
                noise=normals(query.draws, seed=t, d=width(optimizer)),
                cross=cross,
            )
        return state.theta

    assert torch.equal(trained(1.0), trained(-7.0))


@pytest.mark.parametrize(
    ("name", "options"),
    one_per_family(case for case in VARIANTS if build(case[0]).local_training() is None),
)
def test_the_passes_that_are_counted_are_those_that_a_step_takes(
    name: str, options: dict[str, Any]
) -> None:
    optimizer, state = build(name, **options), new_state()
    taken = 0

    def form(clipping: Clipping) -> ClippedSum:
        nonlocal taken
        taken += len(clipping.weights)
        return ClippedSum(clipping.of.zeros(state.theta) + 1)

    state.past, constants = (state.theta,) * 8, public(optimizer, D)
    step(optimizer, state, constants, clipped_sum=form, noise=noise(optimizer, 1))
    at_minimum = optimizer.query.of.spends > 0  # as many sums as the solver asks for
    assert taken > optimizer.passes() if at_minimum else taken == optimizer.passes()


READS_PUBLIC_INPUT = [
    name
    for name, method in ((name, build(name)) for name in METHODS)
    if (method.uses_public_gradient or method.uses_side_information)
    and method.local_training() is None  # users read it in their own training; the step does not
]


@pytest.mark.parametrize("name", READS_PUBLIC_INPUT)
def test_a_method_without_the_public_input_it_reads_names_what_is_missing(name: str) -> None:
    bare = Public(noise_multiplier=1.0, expected_batch_size=4.0, total_steps=5)
    with pytest.raises(ValueError, match=r"reads public\.(gradient|side_information)"):
        take(build(name), new_state(), 1, bare)
