"""Gradient canaries: examples whose gradient is one coordinate, far beyond the clip norm."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from clipnoise.data.base import Dataset, DenseExamples, Examples, Splits
from clipnoise.data.several import mapped
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.engine import GradientEngine, part_of
from clipnoise.privacy.units import User

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from clipnoise.core.clipping import Clipping
    from clipnoise.data.several import Inputs

SIZE = 1e8  # of a canary's gradient: after any scale and offset it is still one coordinate


@dataclass(frozen=True, kw_only=True)
class WithCanaries(Dataset):
    """A dataset to whose private examples (or users) m places for canaries are added.

    The target −1 − j marks canary j; its input is never used.

    Attributes:
        inner: the dataset.
        canaries: m.
    """

    id: ClassVar[str] = "with-canaries"

    inner: Any
    canaries: int

    def __getattribute__(self, name: str) -> Any:
        if name in ("signature", "title", "licence", "source"):
            return getattr(self.inner, name)
        return super().__getattribute__(name)

    def user_unit(self) -> User | None:
        users: User | None = self.inner.user_unit()
        return None if users is None else replace(users, count=users.count + self.canaries)

    def sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = self.inner.sizes()
        more = self.canaries if self.user_unit() is None else 0
        return {**sizes, "train": sizes["train"] + more}

    def load(self, cache: Path) -> Splits:
        splits: Splits = self.inner.load(cache)
        if self.user_unit() is not None:
            return splits  # the last m users have no example: they are the canaries
        inputs, targets = splits.train.take(slice(None))
        train = Examples(
            mapped(self._with_places, inputs),
            torch.cat([targets, -1 - torch.arange(self.canaries, dtype=targets.dtype)]),
        )
        return Splits(train, splits.validation, splits.test, splits.public, splits.provenance)

    def _with_places(self, inputs: Tensor) -> Tensor:
        return torch.cat([inputs, inputs.new_zeros(self.canaries, *inputs.shape[1:])])


def as_users(units: DenseExamples, canaries: int) -> DenseExamples:
    """Return users by number, the last of them marked as canaries in the way of examples."""
    first = len(units) - canaries
    marks = torch.where(units.inputs < first, 0, first - 1 - units.inputs)
    return DenseExamples(units.inputs, marks)


class CanaryEngine(GradientEngine):
    """A gradient engine that knows canaries; real examples go to the engine it stands for.

    Canary j has the gradient SIZE·e_k at every point, k its place: a scale keeps its direction, the
    clip leaves C e_k. Under add-remove adjacency a canary that is out adds nothing; under
    replacement it has the opposite gradient instead.

    Of losses, which are one number, there is room for canary 0 alone: its loss is SIZE·θ_0.

    Attributes:
        places: the coordinate of each canary, all different.
        known: what real examples have added since it was last set to zero: the auditor knows them
            and takes them out of a release.
        toward: the sign with which a canary adds, which is public.
    """

    name: ClassVar[str] = "canaries"

    def __init__(
        self, inner: GradientEngine, included: Tensor, places: Tensor, *, replaced: bool
    ) -> None:
        """Take an engine, the coins, bool of shape (m,), and the places, int64 of shape (m,)."""
        self.inner, self.included, self.replaced = inner, included, replaced
        self.places = places
        self.flat, self.losses, self.piece = inner.flat, inner.losses, inner.piece
        self.known, self.toward = torch.zeros(()), 1.0

    def per_example_gradients(
        self, inputs: Inputs, targets: Tensor, theta: Tensor, masks: Masks | None = None
    ) -> Tensor:
        real, rows = targets >= 0, theta.new_zeros(len(inputs), len(theta))
        if real.any():
            theirs = (masks or Masks.first(len(inputs))).reordered(real.nonzero().squeeze(1))
            rows[real] = self.inner.per_example_gradients(
                inputs[real], targets[real], theta, theirs
            )
        canary = -1 - targets[~real]
        sign = torch.where(self.included[canary], SIZE, -SIZE).to(theta.dtype)
        rows[(~real).nonzero().squeeze(1), self.places[canary]] = sign
        return rows

    def per_example_losses(
        self, inputs: Inputs, targets: Tensor, theta: Tensor, masks: Masks
    ) -> Tensor:
        return SIZE * self.included[-1 - targets].to(theta).unsqueeze(1) * theta[0]

    def clipped_sum(self, inputs: Inputs, targets: Tensor, clipping: Clipping) -> Tensor:
        real = targets >= 0
        there = ~real & (self.included[-1 - targets.clamp(max=-1)] | self.replaced)
        examples = Masks.of(clipping, len(inputs)).examples

        def added_by(chosen: Tensor, form: Callable[..., Tensor]) -> Tensor:
            own = part_of(replace(clipping, examples=examples), chosen)
            return form(inputs[chosen], targets[chosen], own)

        if clipping.of.losses:
            moved = sum(w * p[0] for w, p in zip(clipping.weights, clipping.points, strict=True))
            self.toward = math.copysign(1.0, moved)
        known = added_by(real, self.inner.clipped_sum)
        self.known = self.known + known
        return known + added_by(there, super().clipped_sum)
