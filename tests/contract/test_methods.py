"""The contract, held over every registered method."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import METHODS, VARIANTS, build, public, required
from torch import Tensor

from clipnoise.fields import parse, to_plain
from clipnoise.gradients.per_example import clipped_sum
from clipnoise.methods.base import Method, Public, State, step
from clipnoise.methods.registry import method_class, methods
from clipnoise.privacy.queries import Clipping, Query

D, B, STEPS = 3, 4, 8


def noise(optimizer: Method, t: int, d: int = D) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1000 + t)
    return [
        torch.randn(d, generator=draw, dtype=torch.float64) for _ in range(optimizer.query.draws)
    ]


def gradients(t: int, iterates: int = 4, d: int = D) -> list[Tensor]:
    draw = torch.Generator().manual_seed(t)
    return [torch.randn(B, d, generator=draw, dtype=torch.float64) for _ in range(iterates)]


def take(optimizer: Method, state: State, t: int, constants: Public | None = None) -> Tensor:
    """Take step t (from 1) on drawn gradients."""

    def form(clipping: Clipping) -> Any:
        return clipped_sum(gradients(t)[: len(clipping.weights)], clipping)

    return step(
        optimizer,
        state,
        constants or public(optimizer, D, seed=t),
        available=t,
        clipped_sum=form,
        noise=noise(optimizer, t),
    )


def new_state() -> State:
    return State(like=torch.zeros(D, dtype=torch.float64))


@pytest.mark.parametrize("name", METHODS)
def test_is_a_frozen_dataclass_with_a_kebab_case_id(name: str) -> None:
    kind = method_class(name)
    assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name)
    assert dataclasses.is_dataclass(kind)
    assert isinstance(kind.query, Query)
    with pytest.raises(dataclasses.FrozenInstanceError):
        build(name).id = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", METHODS)
def test_says_what_it_does_and_where_it_comes_from(name: str) -> None:
    kind = method_class(name)
    summary = (kind.__doc__ or "").partition("Source:")[0].strip()
    assert len(summary) > 20  # an equation at least
    assert re.search(r"\d", kind.source()), "names no year, section, algorithm or equation"
    assert kind.family() != "registry"


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_is_equal_after_conversion_to_plain_data_and_back(
    name: str, options: dict[str, Any]
) -> None:
    optimizer = build(name, **options)
    again = parse(type(optimizer), to_plain(optimizer))
    assert again == optimizer
    assert again.query == optimizer.query


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_private_release_costs_one_gaussian_mechanism(name: str, options: dict[str, Any]) -> None:
    query = build(name, **options).query
    for clip_norm, batch in ((1.0, 1.0), (0.1, 256.0), (7.0, 10.5)):
        components = query.components(clip_norm, batch)
        assert len(components) == len(query.values(torch.ones(D), clip_norm))
        assert query.draws == sum(component.noise_factor > 0 for component in components)
        if query.private:
            assert all(0 < component.sensitivity < float("inf") for component in components)
            assert sum(component.noise_factor**-2 for component in components) <= 1 + 1e-12


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_update_does_not_change_the_released_values(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer, state = build(name, **options), new_state()
    seen: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = []
    real: Callable[..., Tensor] = type(optimizer).update

    def watched(self: Method, released: tuple[Any, ...], *rest: Any) -> Tensor:
        before = tuple(value.clone() for value in released)
        change = real(self, released, *rest)
        seen.append((before, released))
        return change

    monkeypatch.setattr(type(optimizer), "update", watched)
    for t in range(1, STEPS + 1):
        take(optimizer, state, t)
    for t, (before, after) in enumerate(seen, start=1):
        assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True)), f"step {t}"
    earlier = [value for before, _ in seen for value in before]
    kept = [value for _, after in seen for value in after]
    assert all(torch.equal(x, y) for x, y in zip(earlier, kept, strict=True))


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_hooks_before_the_boundary_do_not_change_the_state(
    name: str, options: dict[str, Any]
) -> None:
    optimizer, state = build(name, **options), new_state()
    for t in range(1, STEPS + 1):
        constants = public(optimizer, D, seed=t)
        if optimizer.uses_clean_gradient:
            constants = dataclasses.replace(constants, clean_gradient=gradients(t)[0].mean(dim=0))
        ahead = State(state.like, state.step + 1, {k: v.clone() for k, v in state.buffers.items()})
        twice = [optimizer.clipping(ahead, constants, 1) for _ in range(2)]
        for field in ("scale", "offset"):
            first, second = (getattr(clipping, field) for clipping in twice)
            assert (first is None) == (second is None)
            assert first is None or torch.equal(first, second)
        take(optimizer, state, t)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_resumed_from_a_saved_state_it_takes_the_same_steps(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    optimizer, state = build(name, **options), new_state()
    for t in range(1, 4):
        take(optimizer, state, t)
    assert all(isinstance(value, Tensor) for value in state.buffers.values())
    torch.save({"step": state.step, "buffers": state.buffers}, tmp_path / "state.pt")
    uninterrupted = [take(optimizer, state, t) for t in range(4, STEPS + 1)]
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed = State(state.like, saved["step"], saved["buffers"])
    for t, expected in zip(range(4, STEPS + 1), uninterrupted, strict=True):
        assert torch.equal(take(build(name, **options), resumed, t), expected)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_memory_does_not_grow_with_the_steps(name: str, options: dict[str, Any]) -> None:
    optimizer, state = build(name, **options), new_state()
    for t in range(1, 21):
        take(optimizer, state, t)
        if t == 10:
            held = {key: value.shape for key, value in state.buffers.items()}
    assert {key: value.shape for key, value in state.buffers.items()} == held


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_weights_over_iterates_never_grow_towards_the_past(
    name: str, options: dict[str, Any]
) -> None:
    optimizer = build(name, **options)
    for available in range(1, optimizer.iterates() + 1):
        weights = optimizer.iterate_weights(available)
        assert len(weights) == available
        assert list(weights) == sorted(weights, reverse=True)


def test_no_private_method_can_ask_for_clean_gradients() -> None:
    for name, kind in methods().items():
        assert not (kind.query.private and kind.uses_clean_gradient), name
    thief = type("Thief", (method_class("dp-sgd"),), {"uses_clean_gradient": True})
    with pytest.raises(RuntimeError, match="must not see a clean gradient"):
        take(thief(**required("dp-sgd")), new_state(), 1)


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
