"""Update rules that publish an average or know shapes: Schedule-Free, DP-Muon and others."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from every_method import build
from pseudocode import record
from test_replay_privatize_then_adapt import FREE, FREE_ADAMW, schedule_free
from torch import Tensor

from clipnoise.core.clip_rules import HARD, ClipRule
from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.state import Public, State, split
from clipnoise.core.step import step
from clipnoise.errors import UserError
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.methods.privatize_then_adapt.dp_muon import orthogonalised

RUN = {"clip_norm": 1.3, "learning_rate": 0.3}
PUBLIC = Public(noise_multiplier=0.7, expected_batch_size=4.0, total_steps=7)
SHAPES = ((4, 3), (3,), (2, 2, 3, 3), (5, 8), (2,))
SIZES = [math.prod(shape) for shape in SHAPES]  # each a layer
D = sum(SIZES)


def move(method: Any, state: State, rows: Tensor, noise: Tensor) -> None:
    def form(clipping: Clipping) -> ClippedSum:
        return ClippedSum(clipped_sum([rows], clipping, SIZES if len(state.theta) == D else None))

    step(method, state, PUBLIC, clipped_sum=form, noise=[noise])


@pytest.mark.parametrize(
    ("name", "own"), [("dp-schedule-free", FREE), ("dp-schedule-free-adamw", FREE_ADAMW)]
)
def test_the_model_of_schedule_free_is_the_average_x(name: str, own: dict[str, Any]) -> None:
    stream = record(0, "ordinary")
    constants = {"noise_multiplier": 0.7, "expected_batch_size": 4.0}
    points, averages = schedule_free(RUN | constants | own, stream)
    method = build(name, **RUN, **own)
    state = State(torch.tensor(stream.initial, dtype=torch.float64))
    for t in range(stream.steps):
        model = method.evaluated(state.theta, state)
        assert model.tolist() == pytest.approx(averages[t], rel=1e-9)
        rows = torch.tensor(stream.gradients[t][0], dtype=torch.float64)
        noise = torch.tensor(stream.noise[t][0], dtype=torch.float64)
        move(method, state, rows, noise)
        assert state.theta.tolist() == pytest.approx(points[t + 1], rel=1e-9)
    assert method.evaluated(state.theta, state).tolist() == pytest.approx(averages[-1], rel=1e-9)


def test_without_interpolation_schedule_free_averages_the_iterates_of_sgd() -> None:
    draw = torch.Generator().manual_seed(0)
    free, plain = build("dp-schedule-free", **RUN, beta=0.0), build("dp-sgd", **RUN)
    start = torch.randn(5, generator=draw, dtype=torch.float64)
    state, second, iterates = State(start), State(start), []
    for _ in range(6):
        rows = torch.randn(4, 5, generator=draw, dtype=torch.float64)
        noise = torch.randn(5, generator=draw, dtype=torch.float64)
        move(free, state, rows, noise)
        move(plain, second, rows, noise)
        iterates.append(second.theta)
    torch.testing.assert_close(state.theta, second.theta)
    torch.testing.assert_close(free.evaluated(state.theta, state), torch.stack(iterates).mean(0))


@pytest.mark.parametrize("shape", [(8, 8), (4, 30), (30, 4), (1, 7)], ids=str)
@pytest.mark.parametrize(
    ("polynomial", "iterations", "low", "high"),
    [("muon", 5, 0.65, 1.25), ("muon", 12, 0.65, 1.25), ("taylor", 30, 1 - 1e-6, 1 + 1e-6)],
)
def test_newton_schulz_brings_singular_values_near_1_and_keeps_singular_vectors(
    shape: tuple[int, int], polynomial: str, iterations: int, low: float, high: float
) -> None:
    draw = torch.Generator().manual_seed(1)
    rank = min(shape)
    u, _ = torch.linalg.qr(torch.randn(shape[0], rank, generator=draw, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(shape[1], rank, generator=draw, dtype=torch.float64))
    m = 1e-3 * u @ torch.diag(torch.linspace(0.2, 1, rank, dtype=torch.float64)) @ v.T
    found = orthogonalised(m, polynomial, iterations)
    values = u.T @ found @ v
    assert found.shape == m.shape
    torch.testing.assert_close(values, torch.diag(values.diagonal()), atol=1e-9, rtol=0)
    assert low <= float(values.diagonal().min()) <= float(values.diagonal().max()) <= high


def polar_by_power(m: Tensor, a: float, b: float, c: float, iterations: int) -> Tensor:
    """Apply an odd polynomial to the singular values of a matrix, after m/(‖m‖ + 1e-7)."""
    u, values, v = torch.linalg.svd(m, full_matrices=False)
    values = values / (values.square().sum().sqrt() + 1e-7)
    for _ in range(iterations):
        values = a * values + b * values**3 + c * values**5
    return u @ torch.diag(values) @ v


@pytest.mark.parametrize(
    ("options", "layers", "bound"),
    [({}, SIZES, 1.3 / math.sqrt(5)), ({"clip_rule": HARD}, [D], 1.3)],
    ids=["each layer", "as a whole"],
)
def test_muon_orthogonalises_matrices_and_gives_vectors_to_adam(
    options: dict[str, ClipRule], layers: list[int], bound: float
) -> None:
    draw = torch.Generator().manual_seed(2)
    betas = (0.9, 0.95)
    muon = build("dp-muon", **RUN, **options, betas=betas, gamma=1e-3)
    adam = build("dp-adam", **RUN, clip_rule=muon.clip_rule, betas=betas, gamma=1e-3)
    start = torch.randn(D, generator=draw, dtype=torch.float64)
    state, second = State(start, shapes=SHAPES), State(start)
    buffer = torch.zeros(D, dtype=torch.float64)
    for _ in range(4):
        rows = torch.randn(4, D, generator=draw, dtype=torch.float64)
        noise = torch.randn(D, generator=draw, dtype=torch.float64)
        second.theta = theta = state.theta
        move(muon, state, rows, noise)
        move(adam, second, rows, noise)
        change, other = state.theta - theta, second.theta - theta
        each = rows.split(layers, dim=1)
        clips = [part * (bound / part.norm(dim=1, keepdim=True)).clamp(max=1) for part in each]
        clipped = torch.cat(clips, dim=1)
        buffer = betas[0] * buffer + (clipped.sum(0) + 0.7 * 1.3 * noise) / 4
        parts = zip(split(change, SHAPES), split(other, SHAPES), split(buffer, SHAPES), strict=True)
        for part, by_adam, momentum in parts:
            if part.ndim == 1:
                torch.testing.assert_close(part, by_adam)
                continue
            polar = polar_by_power(momentum.flatten(1), 3.4445, -4.7750, 2.0315, 5)
            torch.testing.assert_close(part.flatten(1), -0.3 * polar, atol=1e-5, rtol=1e-4)


def test_microadam_keeps_the_largest_of_each_tensor_and_forgets_nothing() -> None:
    """What was kept and what is left add up to all that was released."""
    method, draw = build("dp-microadam", **RUN, density=0.2), torch.Generator().manual_seed(0)
    state, total = State(torch.zeros(D).double(), shapes=SHAPES), torch.zeros(D).double()
    kept = torch.zeros(D).double()
    for t in range(1, 26):
        state.step = t
        g = torch.randn(D, generator=draw).double()
        total, before = total + g, state["error"] + g
        method.update((g,), state, PUBLIC)
        now = state[method.slot(state, 0)]
        for part, whole in zip(state.split(now), state.split(before), strict=True):
            count = -(-whole.numel() // 5)
            assert int((part != 0).sum()) == count
            smallest = part[part != 0].abs().min()
            assert int((whole.abs() >= smallest).sum()) == count
        kept = kept + now
    torch.testing.assert_close(kept + state["error"], total)
    assert {name for name in state.buffers if name.startswith("u ")} == {
        f"u {i}" for i in range(10)
    }


@pytest.mark.parametrize("n", [1, 2, 3, 10, 11])
def test_laplacian_smoothing_keeps_sums_and_smooths_each_tensor_by_itself(n: int) -> None:
    method, draw = build("dp-lssgd", **RUN, smoothing=2.0), torch.Generator().manual_seed(n)
    g = torch.randn(2 * n, generator=draw).double()
    state = State(torch.zeros_like(g), step=1, shapes=((n,), (1, n)))
    found = state.split(method.update((g,), state, PUBLIC) / -RUN["learning_rate"])
    for x, part in zip(found, state.split(g), strict=True):
        assert float(x.sum()) == pytest.approx(float(part.sum()))
        x, part = x.flatten(), part.flatten()
        torch.testing.assert_close(x - 2 * (x.roll(1) - 2 * x + x.roll(-1)), part)
        assert float(x.norm()) <= float(part.norm()) * (1 + 1e-12)


def test_a_buffer_that_is_read_and_never_written_is_named_with_the_nearest() -> None:
    state = State(torch.zeros(3))
    state["momentum"] = torch.ones(3)
    state["scratch"].add_(1.0)  # written in place
    state.require_written()
    for name in ("zeta", "momentun", "second"):
        assert not state[name].any()
    with pytest.raises(UserError, match=r"state\['momentun'\] is read.* 'momentum'\? Written: mom"):
        state.require_written()


@pytest.mark.parametrize(
    ("name", "own", "theirs"),
    [
        ("dp-radam", {"betas": (0.8, 0.95)}, partial(torch.optim.RAdam, betas=(0.8, 0.95))),
        ("dp-adafactor", {}, torch.optim.Adafactor),
        (
            "dp-adafactor",
            {"weight_decay": 0.2, "threshold": 1.2, "decay": 0.6, "smallest_scale": 0.5},
            partial(
                torch.optim.Adafactor, weight_decay=0.2, d=1.2, beta2_decay=-0.6, eps=(None, 0.5)
            ),
        ),
    ],
)
def test_on_what_is_released_they_step_as_the_optimizers_of_torch(
    name: str, own: dict[str, Any], theirs: Any
) -> None:
    draw = torch.Generator().manual_seed(2)
    method, theta = build(name, **RUN, **own), torch.randn(D, generator=draw, dtype=torch.float64)
    parameters = [torch.nn.Parameter(part.clone()) for part in split(theta, SHAPES)]
    optimizer, state = theirs(parameters, lr=RUN["learning_rate"]), State(theta, shapes=SHAPES)
    for t in range(1, 15):
        g = torch.randn(D, generator=draw, dtype=torch.float64)
        for parameter, part in zip(parameters, split(g, SHAPES), strict=True):
            parameter.grad = part.clone()
        optimizer.step()
        state.step = t
        state.theta = state.theta + method.update((g,), state, PUBLIC)  # type: ignore[arg-type]
        expected = torch.cat([parameter.detach().flatten() for parameter in parameters])
        torch.testing.assert_close(state.theta, expected, rtol=1e-9, atol=1e-12)
