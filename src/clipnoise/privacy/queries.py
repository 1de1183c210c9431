"""The queries that methods choose from: what is released, and how far one example can move it.

`Query` says what a query is; the classes here are the concrete ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.core.query import Adjacency, Component, Query, Released
from clipnoise.core.taken import LOSSES, AtMinimum, GradientsAndCount, GradientsAndSlacks

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ClippedMean(Query):
    """g̃ = (Σ clip(v_i) + σ C z)/B: the sum moves by at most C when one example comes or goes.

    Extra coordinates are released with it, as one vector, whose sensitivity is that of both.

    Source: Abadi et al. 2016, Algorithm 1.
    """

    formulas: ClassVar[tuple[str, ...]] = ("C/B",)

    def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
        return (Component(sensitivity=self.of.bound(clip_norm) / expected_batch_size),)


@dataclass(frozen=True)
class ClippedLossMean(ClippedMean):
    """s̃ = (Σ clip(s_i) + σ C z)/B, s_i = Σ_j w_j f_i(p_j) one number per example: its losses.

    Source: Zhang et al. 2024 (DPZero, arXiv 2310.09639).
    """

    of = LOSSES


@dataclass(frozen=True)
class ClippedMeanAndCount(Query):
    """(g̃, c̃): the clipped mean, and how many vectors are no longer than C, less half of them all.

    When an example comes or goes, Σ (1[‖v_i‖ ≤ C] − ½) moves by ½. The two together cost one
    Gaussian mechanism at σ: σ²/(1 − ρ) is what the mean gets, σ²/ρ the count, for the standard
    deviations C and ½. In the paper's terms σ_b = σ/(2√ρ).

    Attributes:
        share: ρ in (0, 1), the share of 1/σ² that the count takes.

    Source: Andrew et al. 2021, Algorithm 1 and Theorem 1.
    """

    formulas: ClassVar[tuple[str, ...]] = ("C/B", "1/(2B)")
    of = GradientsAndCount()
    share: float = 0.01

    def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
        b = expected_batch_size
        return (
            Component(clip_norm / b, 1 / math.sqrt(1 - self.share)),
            Component(0.5 / b, 1 / math.sqrt(self.share)),
        )

    def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
        return (mean[:-1], mean[-1:])


@dataclass(frozen=True)
class ClippedMeanAndSlacks(ClippedMean):
    """(g̃, s̃): the clipped mean and the mean of the slots, released as one vector.

    Both together move by at most C/B, so the slots cost nothing beyond the clipped mean.

    Attributes:
        slots: K.

    Source: Zou et al. 2026 (SlaClip), equations 6 to 11.
    """

    slots: int = 1

    @property
    def of(self) -> GradientsAndSlacks:
        return GradientsAndSlacks(self.slots)


@dataclass(frozen=True)
class PerturbedMinimum(Query):
    """(Σ s(θ·u_i) u_i + noise)/B at a minimum of a perturbed objective: see `AtMinimum`.

    Attributes:
        share: ρ in (0, 1), the share of 1/σ² that curvature and the approximate minimum take.
        margin: m of the loss.

    Source: as of `AtMinimum`.
    """

    formulas: ClassVar[tuple[str, ...]] = ("C/B",)
    share: float = 0.3
    margin: float = 0.0

    @property
    def of(self) -> AtMinimum:
        return AtMinimum(self.share, self.margin)

    def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
        return (Component(clip_norm / expected_batch_size, 1 / math.sqrt(1 - self.share)),)


@dataclass(frozen=True)
class ClippedUserMean(ClippedMean):
    """Δ̃ = (Σ clip(Δ_u) + σ C z)/b over the updates of users: a user comes or goes with all data.

    Source: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models".
    """

    adjacency: ClassVar[Adjacency] = "add-remove-user"


@dataclass(frozen=True)
class PlainMean(Query):
    """The mean gradient as it is: no clipping, no noise. Only for references marked non-private."""

    formulas: ClassVar[tuple[str, ...]] = ("∞",)
    private: ClassVar[bool] = False

    def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
        return (Component(sensitivity=math.inf, noise_factor=0.0),)


@dataclass(frozen=True)
class PlainUserMean(PlainMean):
    """The mean update of users as it is. Only for references marked non-private."""

    adjacency: ClassVar[Adjacency] = "add-remove-user"


@dataclass(frozen=True)
class CleanClippedMean(Query):
    """ḡ = Σ clip(v_i)/B without noise: shows what clipping alone does. Non-private."""

    formulas: ClassVar[tuple[str, ...]] = ("C/B",)
    private: ClassVar[bool] = False

    def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
        return (Component(sensitivity=clip_norm / expected_batch_size, noise_factor=0.0),)


@dataclass(frozen=True)
class IndependentMoments(Query):
    """ḡ and its elementwise square, each with noise of its own.

    The published bound on the square, (2B+1)C²/B², assumes a batch of at most B examples. A Poisson
    batch can be larger, so ḡ is projected onto the ball of radius C before it is squared: then
    ‖ḡ² − ḡ′²‖ ≤ ‖ḡ − ḡ′‖·‖ḡ + ḡ′‖_∞ ≤ (C/B)·2C, within the published bound. A √2 on each noise
    makes the pair cost one Gaussian mechanism at σ.

    Source: On Design Principles for Private Adaptive Optimizers, Algorithm 6 and section 3.2.
    """

    formulas: ClassVar[tuple[str, ...]] = ("C/B", "(2B+1)C²/B²")
    noise_factor: ClassVar[float] = math.sqrt(2)

    def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
        b = expected_batch_size
        return (
            Component(clip_norm / b, self.noise_factor),
            Component((2 * b + 1) * clip_norm**2 / b**2, self.noise_factor),
        )

    def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
        return (mean, project(mean, clip_norm).square())


@dataclass(frozen=True)
class IndependentMomentsForFree(IndependentMoments):
    """Both moments at the noise of one: what a second moment at no cost would be. Non-private."""

    private: ClassVar[bool] = False
    noise_factor: ClassVar[float] = 1.0


@dataclass(frozen=True)
class JointMoments(Query):
    """(ḡ, cḡ²) noised as one vector, under replacement of an example.

    With ḡ projected before squaring, replacing an example moves ḡ by at most 2C/B and ḡ² by at most
    (2C/B)·2C, hence the pair by at most (2C/B)·√(1 + 4c²C²). Both halves get noise for that. The
    published sensitivity of the pair, 2C/B, holds for x and x² of one vector; the square of a mean
    moves with the other examples too (B = 2, C = 1: e beside e against −e
    moves ḡ by 1 and ḡ² by 1).

    Attributes:
        weight: c; None means 1/(2C²).

    Source: On Design Principles for Private Adaptive Optimizers, section 3.2.
    """

    formulas: ClassVar[tuple[str, ...]] = ("2C/B", "4C²/B")
    adjacency: ClassVar[Adjacency] = "replace"
    weight: float | None = None

    def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
        cc = self._weighted_norm(clip_norm)
        of_mean = 2 * clip_norm / expected_batch_size
        of_square = of_mean * 2 * clip_norm
        ratio = self._pair_ratio(cc)
        return (Component(of_mean, ratio), Component(of_square, ratio / cc))

    def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
        return (mean, project(mean, clip_norm).square())

    def _weighted_norm(self, clip_norm: float) -> float:
        """Return 2cC, how far cḡ² can move relative to ḡ."""
        weight = 1 / (2 * clip_norm**2) if self.weight is None else self.weight
        return 2 * weight * clip_norm

    def _pair_ratio(self, weighted_norm: float) -> float:
        """Return the sensitivity of the pair relative to that of ḡ."""
        return math.sqrt(1 + weighted_norm**2)


@dataclass(frozen=True)
class JointMomentsAsPublished(JointMoments):
    """The pair with noise for the published sensitivity 2C/B, which it exceeds: non-private."""

    private: ClassVar[bool] = False

    def _pair_ratio(self, weighted_norm: float) -> float:
        return 1.0


def project(vector: Tensor, radius: float) -> Tensor:
    """Return the nearest vector of norm at most `radius`.

    Args:
        vector: shape (d,).
        radius: at least 0.
    """
    factor: Tensor = (radius / vector.double().norm()).clamp(max=1.0)
    return vector * factor.to(vector.dtype)
