"""The update check: whether parameters depend on released values and public knowledge alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, cast

import torch

from clipnoise.audit.constants import Finding
from clipnoise.audit.runs import batches, run_spec
from clipnoise.core.method import OracleMethod
from clipnoise.run.setup import noise_source
from clipnoise.run.train import Run

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from clipnoise.audit.subject import Subject
    from clipnoise.core.clipping import ClippedSum, Clipping
    from clipnoise.core.query import Query, Released
    from clipnoise.core.state import StepConstants
    from clipnoise.data.base import Examples
    from clipnoise.run.spec import RunSpec

READS, TRAINS = "updates", "training"
# B, n (None for that of the digits) and T; the first is as long as a study's run.
RUNS = ((4, None, 500), (64, 80, 20), (720, None, 10))
WORLDS = (0, 1, 0)  # the private data, batches and noise of each run; 0 again finds a leak of 1
# The share of parameters that must follow the released values in the second half of the longest
# run. At 0.5 a method could move the other half by what it has brought along, and never by what was
# released. Steps of ±η do follow, and so do steps that move one coordinate in a hundred.
MOVED = 0.9
FAR = 1e3  # how far out of range the examples of another world are


def check_updates(
    subject: Subject, cache: Path, runs: Sequence[tuple[int, int | None, int]] = RUNS
) -> tuple[Finding, ...]:
    """Train with released values that are fixed constants while everything private changes.

    Private examples, batches, their sizes and the noise differ between runs; public examples and
    the released values do not. After every step the parameters, and at every step the clipping,
    must be the same bit for bit. With other released values from the middle of the longest run on,
    the parameters must differ at one of its steps.

    Args:
        subject: the method.
        cache: the folder of prepared datasets.
        runs: B, n and T of the runs.
    """
    if isinstance(subject.method, OracleMethod):
        return (Finding(READS, True, "an oracle reads clean values and makes no claim"),)
    found, count, moved = None, 0, 0.0
    longest = max(steps for *_, steps in runs)
    for size, units, steps in runs:
        spec = run_spec(
            subject, noise_multiplier=1.0, expected_batch_size=size, units=units, steps=steps
        )
        first, *others = (list(_steps(subject, spec, cache, world)) for world in WORLDS)
        differing = (t for other in others for t in range(steps) if not _same(first[t], other[t]))
        t = next(differing, None)
        if t is not None and found is None:
            found = f"at B = {size}, step {t + 1} depends on private data that were not released"
        count += len(WORLDS) * steps
        if steps == longest:
            elsewhere = _steps(subject, spec, cache, 0, turn=steps // 2)
            pairs = zip(first, elsewhere, strict=True)
            differs = (theta != other for (_, theta), (_, other) in pairs)
            moved = float(reduce(torch.logical_or, differs).double().mean())
    return (
        Finding(READS, found is None, found or f"the same bit for bit in {count} steps"),
        Finding(TRAINS, moved >= MOVED, f"released values move {moved:.1%} of the parameters"),
    )


def _steps(
    subject: Subject, spec: RunSpec, cache: Path, world: int, turn: int | None = None
) -> Iterator[tuple[Clipping, Tensor]]:
    """Yield the clipping of each step of the real training loop, with θ and the model after it.

    Args:
        subject: the method.
        spec: of the run.
        cache: the folder of prepared datasets.
        world: decides all that is private.
        turn: the step from which on the method is handed other values in place of released ones.
    """
    run = Run.prepare(spec, cache, "cpu", noise_multiplier=1.0)
    there, draw = replace(spec, seed=world), torch.Generator().manual_seed(0)
    if world:
        _exchange(run.splits.train, world)
    run.sampler = batches(subject, there)
    run.noise = noise_source(there, run.theta, "cpu")
    clippings: list[Clipping] = []

    def cross(
        total: ClippedSum,
        query: Query,
        clipping: Clipping,
        noise: Sequence[Tensor],
        constants: StepConstants,
    ) -> tuple[Released, ...]:
        if len(clippings) == turn:
            draw.manual_seed(1)
        clippings.append(clipping)
        values = subject.cross(total, query, clipping, noise, constants)
        fixed = tuple(torch.randn(value.shape, generator=draw) for value in values)
        return cast("tuple[Released, ...]", fixed)

    run.cross = cross
    for batch in run.batches():
        run.step(batch)
        yield clippings[-1], torch.cat([run.theta, run.evaluated()])


def _exchange(examples: Examples, seed: int) -> None:
    """Put other private examples, some far out of range, in the place of those of a run."""
    data, draw = examples.dense(), torch.Generator().manual_seed(seed)
    for tensor in (data.inputs, data.targets):
        tensor.copy_(tensor[torch.randperm(len(tensor), generator=draw)])
    data.inputs[::2] *= FAR


def _same(one: tuple[Clipping, Tensor], other: tuple[Clipping, Tensor]) -> bool:
    """Return whether two steps clipped alike and led to the same parameters, bit for bit."""
    (here, theta), (there, other_theta) = one, other
    pairs = ((here.scale, there.scale), (here.offset, there.offset), (theta, other_theta))
    alike = [a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs]
    alike += map(torch.equal, here.points, there.points)
    plain = ((c.clip_norm, c.weights, c.rule) for c in (here, there))
    return next(plain) == next(plain) and all(alike)
