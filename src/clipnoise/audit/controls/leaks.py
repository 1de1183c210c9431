"""Methods that leak: each looks like DP-SGD, but does more than its query declares."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from clipnoise.core.query import Component
from clipnoise.methods.privatize_then_adapt.dp_sgd import DPSGD
from clipnoise.privacy.queries import ClippedMean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from clipnoise.core.query import Released
    from clipnoise.core.state import Public, State

T = TypeVar("T")
KEPT: list[Tensor] = []  # clean means, where no query should keep them


def local_of_a_caller(name: str, kind: type[T]) -> T | None:
    """Return a local variable of the nearest caller that has one of this name and type."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        value = frame.f_locals.get(name)
        if isinstance(value, kind):
            return value
        frame = frame.f_back
    return None


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
        return -self.learning_rate * _kept(state.like)


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
        return 1 / (_kept(state.like).abs() + 1e-3)


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


class TrainsNothing(LeakySGD):
    """Return no change, whatever is released."""

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        return torch.zeros_like(state.like)
