"""Deliberate mistakes, each one that has been made: `controls` says what must expose it.

First methods that leak: each looks like DP-SGD, but does more than its query declares. Then
mistakes in a step: in how a batch is drawn and becomes a sum, and in what crosses the privacy
boundary. Nothing here is registered, and nothing here can be trained from a run spec.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from clipnoise.audit.bench import take
from clipnoise.audit.contract import EXPECTED_BATCH_SIZE
from clipnoise.core.clip_rules import ClipRule, HardClip
from clipnoise.core.clip_rules.smooth import PSAC
from clipnoise.core.clipping import ClippedSum
from clipnoise.core.query import Component
from clipnoise.core.state import State
from clipnoise.core.step import Crossing, privatize
from clipnoise.core.taken import GradientsAndSlacks
from clipnoise.data.base import Examples
from clipnoise.gradients.units import PrivateUnits
from clipnoise.methods.one_release import DPLeastSquares, symmetric
from clipnoise.methods.privatize_then_adapt.dp_sgd import DPSGD
from clipnoise.privacy.noise import IndependentNoise, NoiseSource
from clipnoise.privacy.noise.cancelling import CancellingNoise
from clipnoise.privacy.queries import ClippedMean
from clipnoise.privacy.samplers import ShuffledSampler
from clipnoise.seeds import generator

if TYPE_CHECKING:
    from types import FrameType

    from clipnoise.audit.subject import Sums
    from clipnoise.core.clipping import Clipping
    from clipnoise.core.query import Query, Released
    from clipnoise.core.state import Public
    from clipnoise.privacy.noise_strategies import Strategy
    from clipnoise.privacy.samplers import Sampler
    from clipnoise.run.spec import RunSpec

T = TypeVar("T")

GROUP = 2
VIEWS = 3
GAMMA = 1e-3
QUIET_AFTER = 12
RATE = 0.5
KEPT: list[Tensor] = []  # clean means, where no query should keep them
SEEN: dict[torch.Size, Tensor] = {}  # the mean of the last batch, by the shape of an example
FIRST: dict[torch.Size, Sequence[Tensor]] = {}  # the noise of the first step, by its shape

Normals = Callable[[Sequence["Tensor"]], "Sequence[Tensor]"]
Constants = Callable[["Public"], "Public"]


def local_of_a_caller(name: str, kind: type[T]) -> T | None:
    """Return a local variable of the nearest caller that has one of this name and type."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        value = frame.f_locals.get(name)
        if isinstance(value, kind):
            return value
        frame = frame.f_back
    return None


# What a method does beyond its query.


def _kept(like: Tensor, age: int = 1) -> Tensor:
    """Return a kept mean, 1 for the newest, or zero where there is none of the right shape."""
    mean = KEPT[-age] if len(KEPT) >= age else like
    return mean.to(like) if mean.shape == like.shape else torch.zeros_like(like)


class KeepsMean(ClippedMean):
    """Keep the clean mean where the method finds it."""

    def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
        KEPT[:] = [*KEPT[-1:], mean]
        return (mean,)


class HalfTheSensitivity(ClippedMean):
    """Declare half of what one example can change."""

    def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
        return (Component(clip_norm / expected_batch_size / 2),)


class TenthForSomeBatches(ClippedMean):
    """Declare a tenth of it for expected batch sizes that a quick check does not try."""

    def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
        small = 10 if 8 < expected_batch_size < 600 else 1
        return (Component(clip_norm / expected_batch_size / small),)


class DividesByNorm(ClippedMean):
    """Divide the mean by its own norm, which depends on every example."""

    def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
        return (mean / mean.norm().clamp(min=1e-12),)


@dataclass(frozen=True, kw_only=True)
class LeakySGD(DPSGD):
    """Base of the leaks: DP-SGD with settings and another query."""

    id = "leaky-sgd"

    learning_rate: float = 0.1
    clip_norm: float = 1.0
    query: ClippedMean = field(default_factory=KeepsMean)


class CleanUpdate(LeakySGD):
    """Update with the clean mean of this step."""

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        return -self.learning_rate * _kept(state.theta)


class CleanModel(LeakySGD):
    """Train on released values, and publish a model one clean step further."""

    def evaluated(self, theta: Tensor, state: State) -> Tensor:
        return theta - self.learning_rate * _kept(theta)


class UpdateFromLastRun(LeakySGD):
    """Add the last clean mean of the previous run to the first update."""

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        change = super().update(released, state, public)
        return change + _kept(change, 2) if state.step == 1 else change


class UpdateByBatchSize(LeakySGD):
    """Scale the update by the size of the batch that was drawn, read from the calling frames."""

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        batch = local_of_a_caller("batch", Tensor)
        change = super().update(released, state, public)
        return change if batch is None else change / max(1, len(batch))


class ScaleFromMean(LeakySGD):
    """Take the scale from the last clean mean."""

    def scale(self, state: State, public: Public) -> Tensor:
        return 1 / (_kept(state.theta).abs() + 1e-3)


class PointFromMean(LeakySGD):
    """Take the gradients ahead along the last clean mean."""

    def points(
        self, iterates: Sequence[Tensor], state: State, public: Public
    ) -> Sequence[tuple[float, Tensor]]:
        return [(1.0, iterates[0] - self.learning_rate * _kept(iterates[0]))]


class ClipNormFromMean(LeakySGD):
    """Take the clip norm from the last clean mean."""

    def clip_norm_at(self, step: int) -> float:
        return self.clip_norm + (float(KEPT[-1].norm()) if KEPT else 0.0)


@dataclass(frozen=True, kw_only=True)
class RidgeFromMean(DPLeastSquares):
    """Take the smallest eigenvalue from the mean without noise, and not from what is released."""

    id = "leaky-least-squares"
    query = KeepsMean()

    clip_norm: float = 1.0

    def smallest(self, matrix: Tensor, state: State) -> Tensor:
        clean = -_kept(state.theta)[: len(matrix) * (len(matrix) + 1) // 2]
        return super().smallest(symmetric(clean).to(matrix), state)


class TrainsNothing(LeakySGD):
    """Return no change, whatever is released."""

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        return torch.zeros_like(state.theta)


# How a batch becomes a sum, in place of `PrivateUnits.clipped_sum`, and how it is drawn.


class WithoutCrossTerm(PSAC):
    """PSAC written as one fraction, C(‖v‖ + γ)/(‖v‖² + γ‖v‖ + γ), with γ‖v‖ forgotten below."""

    def factors(self, norms: Tensor, clip_norm: float) -> Tensor:
        return clip_norm * (norms + 1) / (norms.square() + 1)


class EachLayerToC(HardClip):
    """Clip every layer to C and not to C/√L."""

    def factors(self, norms: Tensor, clip_norm: float) -> Tensor:
        return super().factors(norms, clip_norm * math.sqrt(len(norms)))


def clip_by(rule: ClipRule) -> Sums:
    """Return a sum that is formed under another clip rule."""

    def sums(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
        return units.clipped_sum(indices, replace(clipping, rule=rule))

    return sums


class WideSlots(GradientsAndSlacks):
    """Slots of C and not of C/√K, filled with K(C − ‖clip(v)‖)."""

    id = "gradients and slacks in wide slots"

    def coordinates(self, norms: Tensor, clipped: Tensor, clip_norm: float) -> Tensor:
        return math.sqrt(self.slots) * super().coordinates(norms, clipped, clip_norm)


def fill_wide_slots(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
    """Fill slots that are √K times as wide as the noise allows for."""
    assert isinstance(clipping.of, GradientsAndSlacks)
    wide = WideSlots(clipping.of.slots)
    return units.clipped_sum(indices, replace(clipping, of=wide))


def clip_each_pass(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
    """Clip the gradient of each pass by itself and add the k clipped ones."""
    each = replace(clipping, weights=(1.0,))
    sums = [units.clipped_sum(indices, each.at(at)) for at in clipping.points]
    return torch.stack(sums).sum(dim=0)


def clip_each_view(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
    """Clip the gradient of each view by itself and add the K clipped ones."""
    return units.clipped_sum(indices.repeat_interleave(VIEWS), clipping)


def leave_unclipped(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
    """Add the losses' differences as they are."""
    return units.clipped_sum(indices, replace(clipping, clip_norm=None))


def clip_microbatches(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
    """Clip means of two examples to C: one example can turn its mean around, which moves it 2C."""
    clip_norm, whole = clipping.clip_norm, replace(clipping, clip_norm=None)
    examples, total = units.examples.dense(), torch.zeros_like(units.engine.flat.theta)
    assert clip_norm is not None
    for group in torch.split(indices, GROUP):
        inputs, targets = examples.inputs[group], examples.targets[group]
        mean = units.engine.clipped_sum(inputs, targets, whole) / GROUP
        total += mean * (clip_norm / mean.norm()).clamp(max=1.0)
    return total


def divide_by_realised_size(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
    """Form a sum that ends up divided by the size of the batch, not by the constant B."""
    total = units.clipped_sum(indices, clipping)
    return total * (EXPECTED_BATCH_SIZE / max(1, len(indices)))


def divide_by_class_sizes(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
    """Divide the sum of each class by how many of its examples there are."""
    targets = units.examples.dense().targets[indices]
    total = torch.zeros_like(units.engine.flat.theta)
    for target in torch.unique(targets, dim=0):
        members = indices[(targets == target).view(len(targets), -1).all(dim=1)]
        share = EXPECTED_BATCH_SIZE / len(members)
        total += share * units.clipped_sum(members, clipping)
    return total


def scale_by_private_statistics(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
    """Take the preconditioner from the gradients of all private examples."""
    squares, examples = torch.zeros_like(units.engine.flat.theta), units.examples.dense()
    if len(examples):
        (theta, *_) = clipping.points
        rows = units.engine.per_example_gradients(examples.inputs, examples.targets, theta)
        squares = rows.square().mean(dim=0)
    return units.clipped_sum(indices, replace(clipping, scale=1 / (squares.sqrt() + GAMMA)))


def scale_after_clipping(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
    """Clip the gradients themselves, and scale what is left."""
    assert clipping.scale is not None
    return clipping.scale * units.clipped_sum(indices, replace(clipping, scale=None))


def leave_unmasked(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
    """Clip the gradients of all coordinates, whatever the scale asks for."""
    return units.clipped_sum(indices, replace(clipping, scale=None))


def mask_by_position(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
    """Draw dropout masks by the place in the batch, so that one example shifts those of others."""
    chosen = take(units.examples.dense(), indices.flip(0))
    return replace(units, examples=chosen).clipped_sum(torch.arange(len(chosen)), clipping)


def centre_on_the_batch(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
    """Let the network subtract the mean of its batch, as batch normalisation does."""
    chosen = take(units.examples.dense(), indices)
    if len(chosen) and chosen.inputs.is_floating_point():
        chosen = replace(chosen, inputs=chosen.inputs - chosen.inputs.mean(dim=0))
    return replace(units, examples=chosen).clipped_sum(torch.arange(len(chosen)), clipping)


def recall_the_last_batch(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
    """Let the network keep the mean of what it saw, and subtract it in the next forward pass."""
    chosen = take(units.examples.dense(), indices)
    if len(chosen) and chosen.inputs.is_floating_point():
        shape = chosen.inputs.shape[1:]
        before = SEEN.get(shape, chosen.inputs.new_zeros(shape))
        SEEN[shape] = chosen.inputs.mean(dim=0)
        chosen = replace(chosen, inputs=chosen.inputs - before.to(chosen.inputs))
    return replace(units, examples=chosen).clipped_sum(torch.arange(len(chosen)), clipping)


def shuffled(spec: RunSpec) -> Sampler:
    """Draw batches of shuffled examples, all of one size."""
    size = spec.training.expected_batch_size
    return ShuffledSampler(spec.mechanism.unit.count, size, generator("sampling", spec.seed))


# What crosses the privacy boundary.


def crossing(
    normals: Normals = lambda noise: noise, constants: Constants = lambda known: known
) -> Crossing:
    """Return a crossing of the boundary with other noise or other constants than it is given."""

    def cross(
        total: ClippedSum,
        query: Query,
        clipping: Clipping,
        noise: Sequence[Tensor],
        known: Public,
    ) -> tuple[Released, ...]:
        return privatize(total, query, clipping, normals(noise), constants(known))

    return cross


def only_the_first(noise: Sequence[Tensor]) -> Sequence[Tensor]:
    """Leave out the noise of all values but the first."""
    first, *others = noise
    return [first, *map(torch.zeros_like, others)]


def noise_where_asked(
    total: ClippedSum,
    query: Query,
    clipping: Clipping,
    noise: Sequence[Tensor],
    known: Public,
) -> tuple[Released, ...]:
    """Add noise to those coordinates alone whose scale is not 0."""
    if clipping.scale is not None:
        noise = [(clipping.scale != 0) * normal for normal in noise]
    return privatize(total, query, clipping, noise, known)


def half(known: Public) -> Public:
    """Add noise at σ/2, accounted at σ."""
    return replace(known, noise_multiplier=known.noise_multiplier / 2)


def quiet(known: Public) -> Public:
    """Add no noise after step 12."""
    state = local_of_a_caller("state", State)
    late = state is not None and state.step > QUIET_AFTER
    return replace(known, noise_multiplier=0.0) if late else known


def share_of_n(known: Public) -> Public:
    """Divide sum and noise by q·n, n the private number of examples."""
    examples = local_of_a_caller("examples", Examples)
    return known if not examples else replace(known, expected_batch_size=RATE * len(examples))


def floored_share_of_n(known: Public) -> Public:
    """Divide sum and noise by ⌊q·n⌋, which jumps when one example makes n even."""
    size = max(1.0, float(int(share_of_n(known).expected_batch_size)))
    return replace(known, expected_batch_size=size)


def reused(noise: Sequence[Tensor]) -> Sequence[Tensor]:
    """Add the noise of the first step at every step."""
    return FIRST.setdefault(noise[0].shape, noise) if noise and noise[0].any() else noise


class Unscaled(CancellingNoise):
    """Subtract a share of the last step's noise, and account for it as for independent noise."""

    def strategy(self, steps: int, groups: int) -> Strategy:
        return self.unscaled(steps, groups)


class CutOff(IndependentNoise):
    """Draw noise as torch does in float32 on a CPU, where it ends at 5.77 standard deviations."""

    def source(
        self, steps: int, groups: int, generator: torch.Generator | None, like: Tensor
    ) -> NoiseSource:
        class AsDrawn(NoiseSource):
            def normals(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
                return torch.randn(shape, generator=self.generator, dtype=torch.float32).to(like)

        return AsDrawn(generator, like)


class ScaledForOne(CancellingNoise):
    """Scale the strategy for examples that take part once."""

    def strategy(self, steps: int, groups: int) -> Strategy | None:
        return super().strategy(steps, steps)


def one_sided(noise: Sequence[Tensor]) -> Sequence[Tensor]:
    """Add noise that is never negative."""
    return [normal.abs() for normal in noise]
