"""Checks of whole runs: what steps, batches and parameters depend on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, cast

import torch

from clipnoise.audit.findings import Finding
from clipnoise.audit.sensitivity import EXCESS
from clipnoise.audit.subject import SummedBy, recorded_run, run_spec
from clipnoise.core.method import OracleMethod
from clipnoise.data.base import DenseExamples
from clipnoise.run.setup import noise_source

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from clipnoise.audit.subject import Subject, Values
    from clipnoise.core.clipping import Clipping
    from clipnoise.data.base import Examples
    from clipnoise.gradients.units import PrivateUnits
    from clipnoise.privacy.samplers import Sampler
    from clipnoise.run.spec import RunSpec

    Step = tuple[Clipping, Tensor]  # how a step clipped, and the parameters and the model after it

BATCHES = 400
SAMPLED = ((20, None), (64, 80))  # B and n; None for that of the digits
DEVIATIONS = 5.0
STEPS = 12

READS, TRAINS = "updates", "training"
# B, n (None for that of the digits) and T; the first is as long as a study's run.
RUNS = ((4, None, 500), (64, 80, 20), (720, None, 10))
WORLDS = (0, 1, 0)  # the private data, batches and noise of each run; 0 again finds a leak of 1
# The share of parameters that must follow the released values in the second half of the longest
# run. At 0.5 a method could move the other half by what it has brought along, and never by what was
# released. Steps of ±η do follow, and so do steps that move one coordinate in a hundred.
MOVED = 0.9
FAR = 1e3  # how far out of range the examples of another world are


def check_steps(subject: Subject, cache: Path) -> Finding:
    """Train on neighbouring datasets with batches so small that some are empty; count releases."""
    spec = run_spec(subject, expected_batch_size=2, steps=STEPS)
    counts, sizes = [], []
    for wild in (False, True):
        run, recorder = recorded_run(subject, spec, cache)
        run.units = SummedBy.of(run.units, partial(_sum_of, subject, wild))
        drawn = []
        for batch in run.batches():
            drawn.append(len(batch))
            run.step(batch)
        counts.append(len(recorder.releases))
        sizes.append(drawn)
    holds = counts == [STEPS, STEPS] and sizes[0] == sizes[1]
    said = f"releases for {STEPS} steps on neighbouring datasets: {counts[0]} and {counts[1]}"
    return Finding("steps", holds, f"{said}; empty batches among them: {sizes[0].count(0)}")


def _sum_of(
    subject: Subject, wild: bool, units: PrivateUnits, indices: Tensor, clipping: Clipping
) -> Tensor:
    """Form the sum over a dataset, or over a neighbour whose first example is far out of range.

    A user cannot be: the neighbour has the data of the second one in place of the first.
    """
    examples = units.examples.dense()
    inputs = examples.inputs.clone()
    if wild and inputs.is_floating_point():
        inputs[:1] *= EXCESS
    elif wild:
        inputs[:1] = inputs[1:2]
    neighbour = replace(units, examples=DenseExamples(inputs, examples.targets))
    return subject.sums(neighbour, indices, clipping)


def check_sampler(subject: Subject) -> Finding:
    """Draw batches and hold their sizes and overlaps to what the accountant assumes of Poisson.

    Another sampler than Poisson is not checked here.
    """
    if subject.sampler != "poisson":
        return Finding("sampler", True, f"statistics of the sampler {subject.sampler} not checked")
    off: dict[str, float] = {}
    for examples, units in SAMPLED:
        size = max(1, examples // subject.microbatches.size)
        spec = run_spec(subject, expected_batch_size=size, steps=BATCHES, units=units)
        found = _off_poisson(spec, subject.batches(spec))
        off |= {
            f"{what} at q = {spec.mechanism.sampling_rate:.2g}": value
            for what, value in found.items()
        }
    off = {what: math.inf if math.isnan(value) else value for what, value in off.items()}
    name = max(off, key=lambda what: abs(off[what]))
    if abs(off[name]) <= DEVIATIONS:
        return Finding("sampler", True, "batches are drawn as Poisson sampling draws them")
    said = f"batches are not Poisson: {name} is off by {abs(off[name]):.0f} standard deviations"
    return Finding("sampler", False, said)


def _off_poisson(spec: RunSpec, source: Sampler) -> dict[str, float]:
    """Draw batches and return how far they are off those of Poisson, as `off_poisson` does."""
    drawn = torch.zeros(BATCHES, spec.mechanism.unit.count)
    for row in drawn:
        row[source.sample()] = 1
    return off_poisson(drawn, spec.mechanism.sampling_rate)


def off_poisson(drawn: Tensor, q: float) -> dict[str, float]:
    """Return how far statistics of batches are off those of Poisson, in standard deviations.

    Args:
        drawn: 1 where a batch has an example, shape (batches, n).
        q: the sampling rate, below 1.
    """
    batches, n = drawn.shape
    spread = q * (1 - q)
    return {
        "mean batch size": (float(drawn.mean()) - q) / math.sqrt(spread / drawn.numel()),
        "variance of the batch size": _excess(drawn.sum(1), n * q, n * spread),
        "variance of how often an example takes part": _excess(
            drawn.sum(0), batches * q, batches * spread
        ),
        "overlap of batches next to each other": (
            float((drawn[1:] * drawn[:-1]).mean() - q * q)
            / math.sqrt(q * q * (1 - q * q) * 2 / drawn.numel())
        ),
    }


def _excess(counts: Tensor, mean: float, variance: float) -> float:
    """Return how far a variance is from the expected one, in standard deviations."""
    ratio = float((counts - mean).square().mean()) / variance
    return (ratio - 1) / math.sqrt(2 / len(counts))


def check_updates(
    subject: Subject, cache: Path, runs: Sequence[tuple[int, int | None, int]] = RUNS
) -> tuple[Finding, ...]:
    """Train with released values that are fixed constants while everything private changes.

    Private examples, batches, their sizes and the noise differ between runs; public examples and
    the released values do not. After every step the parameters, and at every step the clipping,
    must be the same bit for bit. With other released values from the middle of the longest run on,
    the parameters must differ at one of its steps. Those for which a scale of 0 asks for nothing
    may stay as they are from there on, if they differ with other values from the start.

    Args:
        subject: the method.
        cache: the folder of prepared datasets.
        runs: B, n (None for that of the digits) and T.
    """
    if isinstance(subject.method, OracleMethod):
        return (Finding(READS, True, "an oracle reads clean values and makes no claim"),)
    found, count, moved = None, 0, 0.0
    longest = max(steps for *_, steps in runs)
    for size, units, steps in runs:
        spec = run_spec(subject, expected_batch_size=size, units=units, steps=steps)
        first, *others = (list(_steps(subject, spec, cache, world)) for world in WORLDS)
        differing = (t for other in others for t in range(steps) if not _same(first[t], other[t]))
        t = next(differing, None)
        if t is not None and found is None:
            found = f"at B = {size}, step {t + 1} depends on private data that were not released"
        count += len(WORLDS) * steps
        if steps == longest:
            follows = _follows(first, _steps(subject, spec, cache, 0, turn=steps // 2))
            frozen = _frozen(first[steps // 2 - 1 :])
            if frozen.any():
                follows |= frozen & _follows(first, _steps(subject, spec, cache, 0, turn=0))
            moved = float(follows.double().mean())
    return (
        Finding(READS, found is None, found or f"the same bit for bit in {count} steps"),
        Finding(TRAINS, moved >= MOVED, f"released values move {moved:.1%} of the parameters"),
    )


def _follows(first: Sequence[Step], elsewhere: Iterable[Step]) -> Tensor:
    """Return which parameters differ at a step where other values were released, bool."""
    pairs = zip(first, elsewhere, strict=True)
    return reduce(torch.logical_or, (here != there for (_, here), (_, there) in pairs))


def _frozen(steps: Sequence[Step]) -> Tensor:
    """Return which parameters stay as the first of some steps left them, and are asked nothing."""
    (_, start), *later = steps
    frozen = torch.ones_like(start, dtype=torch.bool)
    for clipping, parameters in later:
        if clipping.scale is None:
            return torch.zeros_like(frozen)
        unasked = (clipping.scale == 0).repeat(len(start) // len(clipping.scale))
        frozen &= unasked & (parameters == start)
    return frozen


def _steps(
    subject: Subject, spec: RunSpec, cache: Path, world: int, turn: int | None = None
) -> Iterator[Step]:
    """Yield the clipping of each step of the real training loop, with θ and the model after it.

    `world` decides all that is private. From the step `turn` on, the method is handed other
    constants in place of released values.
    """
    run, recorder = recorded_run(subject, spec, cache)
    there, draw = replace(spec, seed=world), torch.Generator().manual_seed(0)
    if world:
        _exchange(run.splits.train, world)
    run.sampler = subject.batches(there)
    run.noise = noise_source(there, run.state.theta)

    def constants(values: Values) -> Values:
        if len(recorder.releases) - 1 == turn:
            draw.manual_seed(1)
        fixed = tuple(torch.randn(value.shape, generator=draw) for value in values)
        return cast("Values", fixed)

    recorder.shown = constants
    for batch in run.batches():
        run.step(batch)
        yield recorder.releases[-1].clipping, torch.cat([run.state.theta, run.evaluated()])


def _exchange(examples: Examples, seed: int) -> None:
    """Put other private examples, some far out of range, in the place of those of a run."""
    data, draw = examples.dense(), torch.Generator().manual_seed(seed)
    for tensor in (data.inputs, data.targets):
        tensor.copy_(tensor[torch.randperm(len(tensor), generator=draw)])
    data.inputs[::2] *= FAR


def _same(one: Step, other: Step) -> bool:
    """Return whether two steps clipped alike and led to the same parameters, bit for bit."""
    (here, theta), (there, other_theta) = one, other
    pairs = ((here.scale, there.scale), (here.offset, there.offset), (theta, other_theta))
    alike = [a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs]
    alike += map(torch.equal, here.points, there.points)
    plain = ((c.clip_norm, c.weights, c.rule) for c in (here, there))
    return next(plain) == next(plain) and all(alike)
