"""Moments in the life of a method: where an attack on one step can begin."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from clipnoise.audit.bench import take
from clipnoise.audit.sensitivity import Changes, change_between
from clipnoise.audit.subject import Recorder, Release
from clipnoise.core.clipping import ClippedSum
from clipnoise.core.state import Public, State
from clipnoise.core.step import step
from clipnoise.gradients.units import PhysicalBatch, PrivateUnits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from clipnoise.audit.bench import Bench
    from clipnoise.audit.subject import Subject
    from clipnoise.core.clipping import Clipping
    from clipnoise.data.base import DenseExamples
    from clipnoise.gradients.engine import GradientEngine

STEPS = 8  # enough for both phases, the filters' history and every iterate
SIGMA = 0.5  # of the noise that makes the history; any history is one an attacker may see
WHOLE = 10**6  # size of a physical batch that holds any batch

Side = tuple["DenseExamples", "Tensor"]  # a dataset and the rows of its batch


@dataclass(frozen=True)
class Moment:
    """What is public before a step: memory, constants and parameters.

    Attributes:
        subject: the method, and what forms its sums.
        bench: network and data.
        state: θ and the method's memory; copied before each use.
        public: the constants of the run and the public gradient of the step.
    """

    subject: Subject
    bench: Bench
    state: State
    public: Public

    @property
    def clipping(self) -> Clipping:
        """The clipping of the step."""
        state = self.state.copy()
        state.step += 1
        return self.subject.method.clipping(state, self.public)

    def release(
        self,
        examples: DenseExamples,
        *,
        engine: GradientEngine | None = None,
        batch: Tensor | None = None,
        size: int = WHOLE,
        noise: Sequence[Tensor] | None = None,
        sigma: float = 0.0,
    ) -> Release:
        """Take the step with the real code and return what crosses the privacy boundary.

        Args:
            examples: the private dataset.
            engine: what takes gradients; by default that of the bench with per-example gradients.
            batch: the rows of the batch; all of them when left out.
            size: of a physical batch.
            noise: standard normals, one per noisy component; zeros by default.
            sigma: σ.
        """
        method, recorder = self.subject.method, Recorder(self.subject.cross)
        taker = self.bench.engine if engine is None else engine
        rows = torch.arange(len(examples)) if batch is None else batch
        none = [method.query.noise_like(self.state.theta)] * method.query.draws

        def form(clipping: Clipping) -> ClippedSum:
            units = PrivateUnits(taker, examples, PhysicalBatch(size))
            return ClippedSum(self.subject.sums(units, rows, clipping))

        step(
            method,
            self.state.copy(),
            replace(self.public, noise_multiplier=sigma),
            clipped_sum=form,
            noise=none if noise is None else noise,
            cross=recorder,
        )
        return recorder.releases[-1]

    def change(
        self,
        sides: tuple[Side, Side],
        *,
        engine: GradientEngine | None = None,
        size: int = WHOLE,
        factor: float | None = None,
    ) -> Changes:
        """Return how far what is released before noise differs between two datasets.

        Declared sensitivities are multiplied by a factor, that of the subject by default.
        """
        here, there = (
            self.release(examples, engine=engine, batch=batch, size=size)
            for examples, batch in sides
        )
        components = self.subject.method.query.components(
            here.clipping.bound, here.public.expected_batch_size
        )
        factor = self.subject.sensitivity_factor if factor is None else factor
        return change_between(here.values, there.values, components, factor)


def life(
    subject: Subject,
    bench: Bench,
    *,
    expected_batch_size: float,
    attacked: Collection[int] = range(STEPS + 1),
    steps: int = STEPS,
    sigma: float = SIGMA,
) -> Iterator[Moment]:
    """Yield the moments before some steps of a run with real steps and noise.

    Args:
        subject: the method.
        bench: network and data.
        expected_batch_size: B.
        attacked: the steps, counted from 1.
        steps: T.
        sigma: σ of the noise that makes the history.
    """
    draw = torch.Generator().manual_seed(0)
    theta, method = bench.theta, subject.method
    state, like = State(theta), method.query.noise_like(theta)

    def normal(shape: torch.Size = theta.shape) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=theta.dtype)

    side = normal().abs() + 0.1 if method.uses_side_information else None
    for t in range(1, steps + 1):
        public = Public(
            noise_multiplier=sigma,
            expected_batch_size=subject.microbatches.count(expected_batch_size),
            sensitivity_factor=subject.sensitivity_factor,
            total_steps=steps,
            gradient=normal() * 10.0 ** (t % 3 - 1) if method.uses_public_gradient else None,
            side_information=side,
        )
        if t in attacked:
            yield Moment(subject, bench, state, public)
        state = state.copy()
        rows = torch.randperm(len(bench.pool), generator=draw)[: round(expected_batch_size)]

        def form(clipping: Clipping, rows: Tensor = rows) -> ClippedSum:
            units = PrivateUnits(bench.engine, take(bench.pool, rows), PhysicalBatch(WHOLE))
            return ClippedSum(subject.sums(units, torch.arange(len(rows)), clipping))

        step(
            method,
            state,
            public,
            clipped_sum=form,
            noise=[normal(like.shape) for _ in range(method.query.draws)],
        )
