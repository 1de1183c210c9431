"""DP-SGD on a projected mean: a method with a query of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.methods.base import SGD, ClippedMean, PrivateMethod
from clipnoise.privacy.queries import project

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ProjectedMean(ClippedMean):
    """The clipped mean, projected onto the ball of radius C before the noise.

    A Poisson batch of more than B examples can have a longer mean. A projection onto a convex set
    moves no two points further apart, so the sensitivity stays C/B.

    Source: Bubeck 2015, "Convex Optimization", lemma 3.1 (projections).
    """

    formulas: ClassVar[tuple[str, ...]] = ("C/B",)

    def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
        return (project(mean, clip_norm),)


@dataclass(frozen=True, kw_only=True)
class DPSGDProjected(SGD, PrivateMethod):
    """θ ← θ − ηg̃, g̃ the projected mean with noise.

    Source: an example; Abadi et al. 2016, Algorithm 1, without the projection.
    """

    id = "dp-sgd-projected"
    query = ProjectedMean()
