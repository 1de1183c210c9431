"""Carry a procedure out: what its steps share, and what they add to those of the method."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import torch

from clipnoise.core.clipping import ClippedSum
from clipnoise.core.method import WithClipRule
from clipnoise.core.query import declared
from clipnoise.core.state import Public, State
from clipnoise.core.step import Crossing, privatize, step
from clipnoise.errors import explained
from clipnoise.gradients.checks import check_model
from clipnoise.gradients.choice import choose_engine
from clipnoise.gradients.clipping import is_finite
from clipnoise.gradients.engine import GradientEngine
from clipnoise.gradients.kept import Kept
from clipnoise.gradients.units import PrivateUnits
from clipnoise.gradients.users import UserEngine
from clipnoise.kinds import as_sealed
from clipnoise.privacy.microbatches import MicroBatchAssignment
from clipnoise.privacy.noise import NoiseSource
from clipnoise.privacy.samplers import Sampler
from clipnoise.resumable import gather, restore
from clipnoise.run.diagnostics import Diagnostics
from clipnoise.run.memory import usable_bytes
from clipnoise.run.outcome import Clock, DivergenceError
from clipnoise.run.procedure import Procedure
from clipnoise.run.public import PublicData, public_data, side_information
from clipnoise.run.ranks import Ranks
from clipnoise.run.setup import (
    Material,
    microbatches,
    noise_source,
    private_units,
    sampler,
)
from clipnoise.seeds import derive

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.core.clipping import Clipping
    from clipnoise.core.query import Query
    from clipnoise.resumable import Resumable


@dataclass(kw_only=True)
class Trainer:
    """What a procedure holds while it is carried out.

    Attributes:
        procedure: what is done.
        units: the private units, to which the sampler's indices refer.
        kept: what the network holds besides its trained parameters, which must not change.
        engine_name: the engine, and why it was chosen.
        state: θ, and the memory of the method. θ is owned by it alone: the vector inside the
            network (`engine.flat.theta`) is overwritten at each pass and each evaluation.
        known: what the update knows at every step: σ, B, T and side information.
        origin: where public knowledge comes from, as data of the result.
        noise, sampler: the streams of noise and of batches.
        microbatches: the stream that puts a batch into micro-batches; None where there are none.
        public: public examples; None where the method uses none.
        scale: s of the last step, shape (d,); None where nothing is scaled.
        average: θ̄ after the last step, shape (d,); None where the last iterate is published.
        diagnostics: observes what crosses; the run is then marked non-private. None otherwise.
        ranks: the processes that train together; the streams of noise, batches and micro-batches
            move in the first one alone.
        cross: how a sum crosses the privacy boundary; only diagnostics and audits replace it.
    """

    procedure: Procedure
    units: PrivateUnits
    kept: Kept
    engine_name: str
    state: State
    known: Public
    origin: dict[str, str] = field(default_factory=dict)
    noise: NoiseSource
    sampler: Sampler
    microbatches: MicroBatchAssignment | None
    public: PublicData | None
    scale: Tensor | None = None
    average: Tensor | None = None
    diagnostics: Diagnostics | None = None
    ranks: Ranks = field(default_factory=Ranks)
    cross: Crossing = privatize

    @classmethod
    def begin(
        cls,
        procedure: Procedure,
        material: Material,
        *,
        noise_multiplier: float,
        ranks: Ranks | None = None,
        physical_batch_size: int | None = None,
        **more: Any,
    ) -> Self:
        """Try the network out, and start every random stream.

        Args:
            procedure: what is done.
            material: the network, and what it is trained on.
            noise_multiplier: σ of the noise on the sum, as a private run has it.
            ranks: the processes that train together; None for one alone.
            physical_batch_size: the size that a run had which is repeated; None takes the largest
                that fits, at most that of the procedure.
            more: attributes of a subclass.

        Raises:
            UserError: the model mixes examples, or a rule or query is wrong.
        """
        method, training, network = procedure.method, procedure.training, material.network
        counters = check_model(network, material.examples.take(slice(1))[0])
        clip_norm = method.at(1, procedure.steps).clip_norm_at(1)
        if isinstance(method, WithClipRule):
            as_sealed(method.clip_rule, "check")(clip_norm or 1.0)
        if clip_norm is not None:
            with explained("method.query"):
                declared(method.query, clip_norm, training.expected_batch_size)
        ranks, device = ranks or Ranks(), str(next(network.parameters()).device)
        choice = choose_engine(
            network.train(),
            material.losses,
            material.examples,
            training.precision,
            batch=math.ceil(training.views * training.expected_batch_size),
            size=physical_batch_size or training.physical_batch_size,
            free=None if physical_batch_size else usable_bytes(device, ranks.count),
        )
        method.check_shapes(choice.engine.flat.shapes)
        theta = choice.engine.flat.theta.clone()
        public = public_data(procedure, material.public, choice.engine)
        side, origin = side_information(procedure.method, material, choice.engine.flat, public)
        if public is not None:
            theta = public.warm(theta)
        diagnostics = Diagnostics(method, theta) if training.diagnostics else None
        return cls(
            procedure=procedure,
            units=private_units(procedure, material, choice.engine, choice.size, side),
            kept=Kept(network, material.losses, counters),
            engine_name=f"{choice.name}: {choice.reason}",
            state=State(theta, shapes=choice.engine.flat.shapes),
            known=Public(
                noise_multiplier=procedure.noise_factor * noise_multiplier,
                expected_batch_size=procedure.mechanism.denominator,
                sensitivity_factor=procedure.mechanism.sensitivity_factor,
                total_steps=procedure.steps,
                seed=derive("directions", procedure.seed),
                side_information=side,
            ),
            origin=origin,
            noise=noise_source(procedure, theta),
            sampler=sampler(procedure),
            microbatches=microbatches(procedure),
            public=public,
            average=None if training.average is None else theta,
            diagnostics=diagnostics,
            cross=privatize if diagnostics is None else diagnostics.cross,
            ranks=ranks,
            **more,
        )

    @property
    def engine(self) -> GradientEngine:
        """What turns physical batches into clipped sums."""
        return self.units.engine

    def scale_spread(self) -> float | None:
        """Return q99/q1 over coordinates of what gradients were last multiplied by, or None."""
        engine = self.engine
        scale = engine.scale if isinstance(engine, UserEngine) else self.scale
        if scale is None:
            return None
        rank = max(1, round(0.01 * len(scale)))
        low, high = (scale.kthvalue(k).values for k in (rank, len(scale) + 1 - rank))
        return float(high / low)

    def batches(self, after: int = 0) -> Iterator[Tensor]:
        """Yield the examples (or users) drawn for each of the T steps, as indices.

        Args:
            after: how many steps have been taken already.
        """
        for _ in range(after, self.procedure.steps):
            yield self.sampler.sample()

    def steps(self, clock: Clock) -> Iterator[int]:
        """Take the steps that are left, each when it is asked for.

        However many iterators there are, together they take no more than T steps.

        Args:
            clock: counts what each step takes.

        Yields:
            t, after step t.

        Raises:
            DivergenceError: a parameter is not finite.
            UserError: the network keeps something besides its trained parameters.
        """
        physical = self.units.physical
        physical.size = min(self.ranks.each(physical.size))
        while self.state.step < self.procedure.steps:
            batch = self.ranks.same(self.sampler.sample)
            with clock.training(self.engine.examples_of(batch)):
                self.step(batch)
            # Layers that are known keep nothing; at the end, every value is compared.
            last = self.state.step == self.procedure.steps
            if last or not self.engine.together:
                self.kept.require_unchanged(exactly=last)
            self.ranks.require_same(self.state.theta, self.state.step)
            if not is_finite(self.state.theta):
                raise DivergenceError(f"a parameter is not finite after step {self.state.step}")
            yield self.state.step

    def step(self, batch: Tensor) -> None:
        """Take one step on a logical batch: the run's side of `clipnoise.core.step`.

        Args:
            batch: the drawn examples (or users), indices of shape (b,); b may be 0.
        """
        t, method = self.state.step + 1, self.procedure.method
        key = self.ranks.same(lambda: self._key(t))
        batch, groups = self.ranks.share(*self.ranks.same(lambda: self._arranged(batch)))

        def clipped_sum(clipping: Clipping) -> ClippedSum:
            self.scale = clipping.scale
            m = self.procedure.mechanism.microbatches.size
            clipping = replace(clipping, key=key, examples=batch, groups=groups, group_size=m)
            if not self.procedure.clips:  # never in a private run
                clipping = replace(clipping, clip_norm=None)
            return ClippedSum(self.ranks.total(self.units.clipped_sum(batch, clipping)))

        step(
            method,
            self.state,
            self._public(t),
            clipped_sum=clipped_sum,
            noise=self._noise(method.query),
            cross=self.cross,
        )
        if self.average is not None:
            assert self.procedure.training.average is not None
            share = self.procedure.training.average.share(t, self.procedure.steps)
            self.average = torch.lerp(self.average, self._last(), share)

    def _key(self, t: int) -> int:
        """Return the key of a step, which decides the dropout masks and views of its examples.

        It follows from the seed and the step, so that a resumed run draws the same ones; with
        secure noise it is fresh and secret.
        """
        secure, seed = self.procedure.secure_noise, self.procedure.seed
        return secrets.randbits(64) if secure else derive("dropout", seed, t)

    def _arranged(self, batch: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return a batch in the order to process it, and the micro-batch of each unit, if any."""
        return (batch, None) if self.microbatches is None else self.microbatches.arrange(batch)

    def _noise(self, query: Query) -> list[Tensor]:
        """Return the noise of a step, drawn once, whatever the number of processes."""
        if not query.draws:
            return []
        like = query.noise_like(self.state.theta)
        return self.ranks.vectors(lambda: self.noise.next(query.draws), [like] * query.draws)

    def _public(self, t: int) -> Public:
        """Return what is known in a step without private data."""
        gradient, variance = None, self.noise.row_norm_squared(t)
        if self.public is not None and self.procedure.method.uses_public_gradient:
            gradient = self.public.gradient(self.state.theta, t)
        if gradient is None and variance == self.known.noise_row_norm_squared:
            return self.known
        return replace(self.known, noise_row_norm_squared=variance, gradient=gradient)

    def _parts(self) -> dict[str, Resumable]:
        parts: dict[str, Resumable | None] = {
            "state": self.state,
            "noise": self.noise,
            "sampler": self.sampler,
            "public": self.public,
            "micro-batches": self.microbatches,
            "diagnostics": self.diagnostics,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def get_state(self) -> dict[str, Tensor]:
        """Return all that changes from step to step, for a checkpoint."""
        size = torch.tensor(self.units.physical.size)
        average = {} if self.average is None else {"average": self.average}
        return {"physical": size, **average, **gather(self._parts())}

    def set_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Go to a saved position; the steps that follow are the same bit for bit.

        Raises:
            KeyError, ValueError: something is missing, or parameters of another kind are there.
        """
        if int(tensors["physical"]) < 1:
            raise ValueError("physical is less than 1")
        averaged = "average" in tensors
        self.average = self.state.saved_parameters("average", tensors) if averaged else None
        self.units.physical.size = int(tensors["physical"])
        restore(self._parts(), tensors)

    def evaluated(self) -> Tensor:
        """Return the parameters that are measured and published as the model, shape (d,)."""
        return self._last() if self.average is None else self.average

    def _last(self) -> Tensor:
        return self.procedure.method.evaluated(self.state.theta, self.state)
