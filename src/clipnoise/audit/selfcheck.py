"""The self-check: whether a device computes what the guarantees assume, and how fast.

Everything is compared with a reference in float64 on the CPU, on made-up examples and on the digits
that come with scikit-learn. Nothing needs a network.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from clipnoise.audit.findings import Finding
from clipnoise.core.clipping import Clipping
from clipnoise.data.base import dataset_class
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError, reason
from clipnoise.fields import Precision, parse
from clipnoise.gradients.checks import made_up_tensor
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.engine import GradientEngine, VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.units import PhysicalBatch
from clipnoise.methods.base import example_settings, method_class
from clipnoise.models.base import model_class
from clipnoise.run.outcome import Clock
from clipnoise.run.ranks import Ranks, started
from clipnoise.run.setup import exact_arithmetic
from clipnoise.run.spec import RunSpec, from_mapping
from clipnoise.run.train import Run

IMAGES = Signature("image", (1, 28, 28), 10)
WORDS = Signature("tokens", (24,), 3, vocabulary=100)
NETWORKS = {
    "logistic": ({}, IMAGES),
    "cnn-5": ({}, IMAGES),
    "lstm": ({"width": 16}, WORDS),
    "tiny-bert": ({"pretrained": False, "layers": 2, "width": 32, "heads": 2}, WORDS),
}
FACTORED_ONLY = ("lstm",)  # vmap has no rule for it
EXAMPLES = 8
# Relative to the length of the reference. bfloat16 keeps eight bits, and a gradient sums many.
TOLERANCE: dict[Precision, float] = {"float32": 1e-4, "bfloat16": 0.2}
ROUNDING = 1e-5  # how far float32 may exceed C
# By what parameters are multiplied, so that gradients become long, and the precision of the passes.
STRETCHED: tuple[tuple[float, Precision], ...] = (
    (1.0, "float32"),
    (30.0, "float32"),
    (1.0, "bfloat16"),
)
RESUMED = ("dp-adambc", "dp-pmlf")
STEPS = 6
TIMED, REPETITIONS, BATCH = ("logistic", "cnn-5", "tiny-bert"), 20, 64


class _CheckFailedError(Exception):
    """A check did not find what it must; the text says what it found."""


def self_check(device: str) -> Iterator[Finding]:
    """Check a device, and yield what each check found as soon as it is known.

    Args:
        device: "cpu" or "cuda".

    Raises:
        UserError: there is no such device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device: cuda: torch finds no GPU here; `clipnoise doctor` says why.")
    exact_arithmetic(device)
    checks: dict[str, Callable[[str], str]] = {
        **{f"engines, {name}": partial(_engines, name) for name in NETWORKS},
        "sensitivity": _sensitivity,
        "resume": _resume,
        "two processes": _two_processes,
        "memory": _memory,
        **{f"speed, {name}": partial(_speed, name) for name in TIMED},
    }
    for name, check in checks.items():
        try:
            yield Finding(name, True, check(device))
        except _CheckFailedError as error:
            yield Finding(name, False, str(error))
        except Exception as error:  # a device can fail in any way; the other checks still count
            yield Finding(name, False, f"{type(error).__name__}: {reason(error)}")


@dataclass(frozen=True)
class _Case:
    """A network, its losses and some examples."""

    network: nn.Module
    losses: Callable[[Tensor, Tensor], Tensor]
    inputs: Tensor
    targets: Tensor


def _case(name: str, device: str, dtype: torch.dtype, examples: int = EXAMPLES) -> _Case:
    """Return the same network and examples on any device and in any dtype."""
    options, signature = NETWORKS[name]
    draws = torch.Generator().manual_seed(0)
    shape = (examples, *signature.shape)
    if signature.vocabulary is None:
        inputs = made_up_tensor(torch.zeros(1, *signature.shape), examples).to(dtype)
    else:
        inputs = torch.randint(1, signature.vocabulary, shape, generator=draws)
    targets = torch.randint(signature.outputs, (examples,), generator=draws).to(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = parse(model_class(name), options).build(signature, Path("weights"))
    network = network.train().to(device, dtype)
    return _Case(network, signature.task.losses, inputs.to(device), targets)


def _engines(name: str, device: str) -> str:
    """Compare clipped sums with autograd in float64, one example at a time, on the CPU."""
    exact, moved = _case(name, "cpu", torch.float64), _case(name, device, torch.float32)
    reference = FactoredEngine(exact.network, exact.losses)
    theta = reference.flat.theta.clone()
    points = [theta, theta + 0.01 * torch.sin(torch.arange(len(theta), dtype=theta.dtype))]
    worst = dict.fromkeys(TOLERANCE, 0.0)
    gradients = [_each_gradient(exact, reference, point) for point in points]
    for kind in (FactoredEngine,) if name in FACTORED_ONLY else (FactoredEngine, VmapEngine):
        engine = kind(moved.network, moved.losses)
        given = [point.to(device, torch.float32) for point in points]
        expectations = _forms(theta)
        for words, form in _forms(given[0]).items():
            count = len(form.weights)
            expected = clipped_sum(gradients[:count], expectations[words])
            for precision, tolerance in TOLERANCE.items():
                engine.precision = precision
                found = engine.clipped_sum(moved.inputs, moved.targets, form.at(*given[:count]))
                error = float((found.cpu().double() - expected).norm() / expected.norm())
                worst[precision] = max(worst[precision], error)
                if not error < tolerance:
                    raise _CheckFailedError(
                        f"{kind.name}, {words}, {precision}: the clipped sum is {error:.1e} of its "
                        f"length from the reference, more than {tolerance:g}"
                    )
    return ", ".join(f"{precision} within {error:.1e}" for precision, error in worst.items())


def _each_gradient(case: _Case, engine: GradientEngine, theta: Tensor) -> Tensor:
    """Return the gradient of each example by plain autograd, shape (b, d)."""
    rows = []
    for row in range(len(case.inputs)):
        one, masks = slice(row, row + 1), Masks(0, torch.tensor([row]))
        rows.append(engine.summed_gradient(case.inputs[one], case.targets[one], theta, masks))
    return torch.stack(rows)


def _forms(theta: Tensor) -> dict[str, Clipping]:
    """Return how vectors are formed, with a scale on the device and in the dtype of θ."""
    places = torch.arange(len(theta), device=theta.device, dtype=torch.float64)
    return {
        "plain": Clipping(0.1),
        "scaled": Clipping(0.1, scale=(1 + 0.5 * torch.cos(places)).to(theta.dtype)),
        "two points": Clipping(0.1, weights=(0.9, 0.1)),
    }


def _sensitivity(device: str) -> str:
    """Check that no example adds more than C, however long its gradient, and none adds nan."""
    longest = 0.0
    for name in NETWORKS:
        case = _case(name, device, torch.float32)
        engine = FactoredEngine(case.network, case.losses)
        theta = engine.flat.theta.clone()
        for stretch, precision in STRETCHED:
            engine.precision = precision
            for row in range(EXAMPLES):
                chosen = slice(row, row + 1)
                total = engine.clipped_sum(
                    case.inputs[chosen], case.targets[chosen], Clipping(1e-3).at(stretch * theta)
                )
                length = float(total.double().norm()) / 1e-3
                longest = max(longest, length)
                if not length <= 1 + ROUNDING:
                    raise _CheckFailedError(f"{name}, {precision}: an example adds {length:.6f} C")
        broken = engine.clipped_sum(
            case.inputs, case.targets, Clipping(1e-3).at(torch.full_like(theta, torch.inf))
        )
        if float(broken.abs().max()) != 0:
            raise _CheckFailedError(f"{name}: a gradient that is not finite adds something")
    return f"an example adds at most {longest:.7f} C"


def _resume(device: str) -> str:
    """Check that a run goes on from its saved state as if it had never stopped, bit for bit."""
    with TemporaryDirectory() as folder:
        dataset_class("digits")().prepare(Path(folder))
        for method in RESUMED:
            spec = _spec(method)
            whole, resumed = (
                Run.prepare(spec, Path(folder), device, noise_multiplier=1.0) for _ in range(2)
            )
            batches = list(whole.batches())
            for batch in batches[: STEPS // 2]:
                whole.step(batch)
            saved = {name: value.clone() for name, value in whole.get_state().items()}
            resumed.set_state(saved)
            for batch in batches[STEPS // 2 :]:
                whole.step(batch)
                resumed.step(batch)
            if not torch.equal(whole.state.theta, resumed.state.theta):
                raise _CheckFailedError(f"{method}: a resumed run differs from one without a stop")
    return f"{', '.join(RESUMED)}: equal bit for bit"


def _spec(method: str) -> RunSpec:
    """Return a short run on the digits."""
    return from_mapping(
        {
            "dataset": "digits",
            "model": "cnn-small",
            "method": {"id": method, **example_settings(method_class(method))},
            "privacy": {"noise_multiplier": 1.0},
            "training": {"expected_batch_size": 64, "steps": STEPS},
            "seed": 1,
        }
    )


def _two_processes(device: str) -> str:
    """Check that two processes that train a run together end where one does."""
    if device == "cuda" and torch.cuda.device_count() < 2:
        return "not tried: it takes two GPUs"
    with TemporaryDirectory() as folder:
        dataset_class("digits")().prepare(Path(folder))
        alone = _moved(Ranks(), folder, device)
        with started(2, device, _moved, folder, device) as ranks:
            together = _moved(ranks, folder, device)
    error = float((together - alone).norm() / alone.norm())
    if not error < TOLERANCE["float32"]:
        raise _CheckFailedError(f"they end {error:.1e} of the way from where one does")
    sent = f"{ranks.sent // STEPS:,} bytes a step"
    return f"they end within {error:.1e} of the way of one, and send {sent}"


def _moved(ranks: Ranks, folder: str, device: str) -> Tensor:
    """Return how far a run moves its parameters."""
    spec = _spec("dp-adam")  # dp-adambc divides by numbers next to 0, and multiplies rounding
    run = Run.prepare(spec, Path(folder), ranks.device(device), noise_multiplier=1.0)
    run.ranks, before = ranks, run.state.theta
    for _ in run.steps(Clock()):
        pass
    return run.state.theta - before


def _memory(device: str) -> str:
    """Check that a physical batch that does not fit is halved until it does."""
    if device == "cpu":
        return "not tried: a CPU's memory has no limit of its own"
    free, _ = torch.cuda.mem_get_info()
    physical = PhysicalBatch(8)
    for attempt in physical.attempts():
        with attempt as size:
            torch.empty(size * (free // 3), dtype=torch.uint8, device=device)
    if physical.size != 2:
        raise _CheckFailedError(
            f"8 pieces of a third of the memory were cut to {physical.size}, not 2"
        )
    return "cut from 8 to 2 pieces, each a third of what is free"


def _speed(name: str, device: str) -> str:
    """Time a step of plain SGD and a clipped sum, in turns."""
    case = _case(name, device, torch.float32, BATCH)
    engine = FactoredEngine(case.network, case.losses)
    theta, clipping = engine.flat.theta.clone(), Clipping(1.0)
    parameters = [value for value in case.network.parameters() if value.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.0)

    def plain() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(case.losses(case.network(case.inputs), case.targets).sum())
        optimizer.step()

    def private() -> None:
        engine.clipped_sum(case.inputs, case.targets, clipping.at(theta))

    seconds: dict[Callable[[], None], list[float]] = {plain: [], private: []}
    for _ in range(REPETITIONS + 2):
        for work, times in seconds.items():
            times.append(_seconds(work, device))
    usual, clipped = (1e3 * statistics.median(times[2:]) for times in seconds.values())
    return f"{clipped:.2f} ms, {clipped / usual:.2f} times a plain step of {BATCH} examples"


def _seconds(work: Callable[[], None], device: str) -> float:
    started = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started
