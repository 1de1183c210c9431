"""What a GPU computes is what the CPU computes, up to rounding, and the same each time.

The tests are skipped where torch finds no GPU, as on the machines that test every change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from budgets import budget
from every_method import METHODS
from rank_cases import CASES, Case, own_theta, own_training, prepared
from test_models import CLIPPINGS, PAIRS, SHAPES, build, examples
from torch import Tensor

from clipnoise.core.clipping import Clipping
from clipnoise.data.signature import Signature
from clipnoise.fields import parse
from clipnoise.gradients.checks import check_model
from clipnoise.gradients.choice import choose_engine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.models.base import model_class
from clipnoise.privacy.draws import TAIL, Draws
from clipnoise.run import setup
from clipnoise.run.checkpoint import read, write
from clipnoise.run.memory import usable_bytes
from clipnoise.run.outcome import Clock
from clipnoise.run.ranks import Ranks
from clipnoise.run.setup import exact_arithmetic
from clipnoise.run.train import Run, train
from clipnoise.seeds import generator

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
    pytest.mark.filterwarnings("ignore:.*does not have a deterministic implementation"),
]
GPU = "cuda"
ROUNDING = 2e-3  # of the way that a run goes, over a few steps


@pytest.fixture(scope="module", autouse=True)
def exact() -> None:
    exact_arithmetic(GPU)


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the noise on a GPU be that of the CPU."""
    drawn = Draws.normals

    def normals(self: Draws, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return drawn(self, shape, torch.empty(0, dtype=like.dtype)).to(like.device)

    monkeypatch.setattr(setup, "generator", lambda purpose, seed, _="cpu": generator(purpose, seed))
    monkeypatch.setattr(Draws, "normals", normals)


def way(case: Case, cache: Path, device: str) -> Tensor:
    """Return how far a run moves its parameters."""
    run = prepared(case, cache, Ranks(), device)
    start = run.state.theta.clone()
    for _ in run.steps(Clock()):
        pass
    assert run.state.theta.device.type == device
    return (run.evaluated() - start).cpu().double()


def close(found: Tensor, expected: Tensor, within: float = ROUNDING) -> None:
    assert float((found - expected).norm()) <= within * float(expected.norm())


@pytest.mark.usefixtures("same_noise")
@pytest.mark.parametrize("name", CASES)
def test_every_case_ends_where_it_does_on_the_cpu(name: str, cache: Path) -> None:
    here, there = (way(CASES[name], cache, device) for device in (GPU, "cpu"))
    close(here, there)


@pytest.mark.usefixtures("same_noise")
@pytest.mark.parametrize("name", METHODS)
def test_every_method_ends_where_it_does_on_the_cpu(name: str, cache: Path) -> None:
    here, there = (way(Case(name), cache, device) for device in (GPU, "cpu"))
    close(here, there)


@pytest.mark.parametrize("name", CASES)
def test_a_run_repeats_bit_for_bit(name: str, cache: Path) -> None:
    one, two = (way(CASES[name], cache, GPU) for _ in range(2))
    assert torch.equal(one, two)
    assert bool(one.isfinite().all())


@pytest.mark.parametrize(("model", "shape"), PAIRS)
def test_every_model_has_the_clipped_sums_of_float64(model: str, shape: str) -> None:
    data, losses = examples(shape, 3), SHAPES[shape].task.losses
    exact = FactoredEngine(build(model, shape).double().train(), losses)
    network = build(model, shape).to(GPU)
    moved = data.to(GPU)
    check_model(network, moved.inputs[:1])
    choice = choose_engine(network.train(), losses, moved)
    assert choice.name == "factored"
    points = [exact.flat.theta.clone(), 1.1 * exact.flat.theta]
    inputs = data.inputs.map(wide) if hasattr(data.inputs, "map") else wide(data.inputs)
    targets = wide(data.targets)
    for clipping in CLIPPINGS.values():
        scale = None if clipping.scale is None else clipping.scale.expand_as(points[0])
        sums = []
        for engine, device, dtype in (
            (exact, "cpu", torch.float64),
            (choice.engine, GPU, torch.float32),
            (choice.engine, GPU, torch.float32),
        ):
            there = [point.to(device, dtype) for point in points[: len(clipping.weights)]]
            formed = replace(
                clipping,
                scale=None if scale is None else scale.to(device, dtype),
                groups=None if clipping.groups is None else clipping.groups.to(device),
            ).at(*there)
            given = (inputs, targets) if engine is exact else (moved.inputs, moved.targets)
            sums.append(engine.clipped_sum(*given, formed).cpu())
        close(sums[1].double(), sums[0], 1e-4)
        assert torch.equal(sums[1], sums[2])


def test_attention_repeats_bit_for_bit_at_the_size_of_a_paper() -> None:
    signature = Signature("tokens", (128,), 3, vocabulary=1000)
    options = {"pretrained": False, "layers": 4, "width": 768, "heads": 12}
    network = parse(model_class("bert-base"), options).build(signature, Path("weights"))
    engine = FactoredEngine(network.to(GPU).train(), signature.task.losses)
    inputs = torch.randint(1, 1000, (32, 128), device=GPU)
    targets = torch.randint(3, (32,), device=GPU)
    clipping = Clipping(0.1).at(engine.flat.theta.clone())
    first = engine.clipped_sum(inputs, targets, clipping)
    for _ in range(10):
        assert torch.equal(engine.clipped_sum(inputs, targets, clipping), first)


def wide(values: Tensor) -> Tensor:
    return values.double() if values.is_floating_point() else values


def test_metrics_are_those_of_the_cpu_before_the_first_step(cache: Path) -> None:
    spec = CASES["micro-batches"].spec
    here, there = (
        train(spec, cache=cache, calibration=budget(spec), device=where).metrics[0]
        for where in (GPU, "cpu")
    )
    for name in ("train_loss", "test_loss", "test_accuracy", "validation_accuracy"):
        assert getattr(here, name) == pytest.approx(getattr(there, name), rel=1e-5)


@pytest.mark.parametrize("name", ["blt, two moments", "one of each family: adam", "tree"])
def test_a_run_resumes_from_its_checkpoint(name: str, cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    whole, begun, resumed = (prepared(CASES[name], cache, Ranks(), GPU) for _ in range(3))
    next(begun.steps(Clock()))
    write(path, {}, begun.get_state(), {})
    resumed.set_state(read(path, {}).tensors)
    for run in (whole, resumed):
        for _ in run.steps(Clock()):
            pass
    assert torch.equal(resumed.state.theta, whole.state.theta)


def test_an_own_loop_trains_on_the_gpu_and_repeats_bit_for_bit() -> None:
    one, two = (own_training(0, device="auto") for _ in range(2))
    assert one._trainer.state.theta.device.type == GPU
    assert torch.equal(own_theta(one), own_theta(two))


def test_secure_noise_is_drawn_for_the_gpu() -> None:
    assert bool(own_theta(own_training(0, device=GPU, seed=None)).isfinite().all())


def test_noise_of_the_gpu_is_normal_as_far_as_its_tail() -> None:
    count = 2**24
    draws = Draws(generator("noise", 1, GPU))
    numbers = draws.normals((count,), torch.empty(0, device=GPU)).double()
    powers = [float(numbers.pow(k).mean()) for k in (1, 2, 3, 4)]
    for found, expected, spread in zip(powers, (0, 1, 0, 3), (1, 2, 15, 96), strict=True):
        assert abs(found - expected) < 5 * (spread / count) ** 0.5
    for threshold in (1.0, 3.0, TAIL, 4.5):
        share = float(torch.special.ndtr(torch.tensor(-threshold, dtype=torch.float64)))
        for tail in (numbers > threshold, numbers < -threshold):
            assert abs(int(tail.sum()) - count * share) < 5 * (count * share) ** 0.5 + 1


def test_a_physical_batch_that_does_not_fit_is_halved_with_the_same_result(cache: Path) -> None:
    case = Case("dp-sgd", training={"expected_batch_size": 600, "physical_batch_size": 2048})

    def moved(limit: Callable[[Run], None]) -> tuple[int, Tensor]:
        run = prepared(case, cache, Ranks(), GPU)
        limit(run)
        for _ in run.steps(Clock()):
            pass
        return run.units.physical.size, run.state.theta

    def starve(run: Run) -> None:
        engine, real = run.engine, run.engine.clipped_sum

        def greedy(inputs: Tensor, *more: object) -> Tensor:
            free, _ = torch.cuda.mem_get_info()
            torch.empty(len(inputs) * (free // 200), dtype=torch.uint8, device=GPU)
            return real(inputs, *more)  # type: ignore[arg-type]

        engine.clipped_sum = greedy  # type: ignore[method-assign]

    (whole, theta), (small, halved) = moved(lambda run: None), moved(starve)
    assert small < whole
    close(halved.double(), theta.double(), 1e-5)


def test_usable_memory_is_four_fifths_of_what_is_free() -> None:
    free, total = torch.cuda.mem_get_info()
    usable = usable_bytes(GPU)
    assert usable is not None
    assert 0.5 * free < usable < total
