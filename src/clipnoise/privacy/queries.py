"""Queries: what a method learns about a batch in one step, and how far one example can move it.

A query is the part of a method before the privacy boundary. It is given the clipped sum over the
batch and returns released values; its components declare the sensitivity from which the noise
follows. Nothing else in the suite adds privacy noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NewType

if TYPE_CHECKING:
    from torch import Tensor

    Unreleased = NewType("Unreleased", Tensor)  # depends on private data; must not leave a query
    Released = NewType("Released", Tensor)  # safe to post-process in any way

Adjacency = Literal["add-remove", "add-remove-user", "add-remove-node", "replace"]


@dataclass(frozen=True)
class Clipping:
    """How per-example vectors are formed and bounded: v_i = clip(s ⊙ (Σ_j w_j g_i(θ_{t−j}) + o)).

    Every field is public: fixed before the step from released or public values.

    Attributes:
        clip_norm: C, the L2 bound on each v_i; None means no clipping (non-private runs only).
        weights: w_j over the current iterate and those before it, newest first.
        scale: s of shape (d,), or None for all ones.
        offset: o of shape (d,), or None for zero.
        group_size: m, by which the sum of a micro-batch is divided before clipping; 1 clips each
            example by itself.
        groups: the micro-batch of each example of the batch, int64 of shape (b,), equal ones next
            to each other; None where each example is by itself.
    """

    clip_norm: float | None
    weights: tuple[float, ...] = (1.0,)
    scale: Tensor | None = None
    offset: Tensor | None = None
    group_size: int = 1
    groups: Tensor | None = None


@dataclass(frozen=True)
class Component:
    """One value a query releases.

    Attributes:
        sensitivity: L2 distance that adding or removing one example can cause (or replacing one,
            for a query with replace adjacency), before noise.
        noise_factor: the noise standard deviation is noise_factor · σ · sensitivity. The joint
            release costs one Gaussian mechanism at σ when Σ 1/noise_factor² ≤ 1.
    """

    sensitivity: float
    noise_factor: float = 1.0


@dataclass(frozen=True)
class Query:
    """Base of all queries: turns the clipped sum of a batch into released values."""

    formulas: ClassVar[tuple[str, ...]]  # the sensitivity of each component, in C and B
    private: ClassVar[bool] = True
    adjacency: ClassVar[Adjacency] = "add-remove"

    @property
    def draws(self) -> int:
        """How many standard normal tensors a release uses: one per noisy component."""
        return sum(component.noise_factor > 0 for component in self.components(1.0, 1.0))

    def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
        """Declare what is released and how sensitive it is.

        Args:
            clip_norm: C.
            expected_batch_size: B = q·n, a public constant.

        Returns:
            One component per released value; empty when nothing is protected.
        """
        raise NotImplementedError

    def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
        """Compute the noise-free values from the clipped mean.

        Args:
            mean: Σ v_i / B, shape (d,).
            clip_norm: C.

        Returns:
            One tensor per component.
        """
        return (mean,)

    def release(
        self,
        total: Unreleased,
        noise: Sequence[Tensor],
        *,
        noise_multiplier: float,
        clip_norm: float,
        expected_batch_size: float,
        sensitivity_factor: float = 1.0,
    ) -> tuple[Released, ...]:
        """Cross the privacy boundary: divide by the constant B, add calibrated noise.

        Args:
            total: Σ v_i over the batch, shape (d,).
            noise: one standard normal tensor per noisy component, in order; any more are not used.
            noise_multiplier: σ.
            clip_norm: C.
            expected_batch_size: B; never the realised batch size.
            sensitivity_factor: how far one example can move the sum relative to what the components
                assume: 1, or 2 for micro-batches. Every component moves in proportion to the sum.

        Returns:
            The released values, one per component.
        """
        values = self.values(total / expected_batch_size, clip_norm)
        components = self.components(clip_norm, expected_batch_size)
        normals = iter(noise)
        released = []
        for value, component in zip(values, components, strict=True):
            if component.noise_factor > 0:
                sensitivity = sensitivity_factor * component.sensitivity
                deviation = component.noise_factor * noise_multiplier * sensitivity
                value = value.add(next(normals), alpha=deviation)
            released.append(value)
        return tuple(released)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ClippedMean(Query):
    """g̃ = (Σ clip(v_i) + σ C z)/B: the sum moves by at most C when one example comes or goes.

    Source: Abadi et al. 2016, Algorithm 1.
    """

    formulas: ClassVar[tuple[str, ...]] = ("C/B",)

    def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
        return (Component(sensitivity=clip_norm / expected_batch_size),)


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
class OracleMean(ClippedMean):
    """The clipped mean with noise, of vectors formed with private knowledge: non-private."""

    private: ClassVar[bool] = False


@dataclass(frozen=True)
class CleanClippedMean(Query):
    """ḡ = Σ clip(v_i)/B without noise: shows what clipping alone does. Non-private."""

    formulas: ClassVar[tuple[str, ...]] = ("C/B",)
    private: ClassVar[bool] = False

    def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
        return (Component(sensitivity=clip_norm / expected_batch_size, noise_factor=0.0),)


@dataclass(frozen=True)
class NoisyAndCleanMean(Query):
    """The clipped mean twice, with noise and without, for oracles. Non-private."""

    formulas: ClassVar[tuple[str, ...]] = ("C/B", "C/B")
    private: ClassVar[bool] = False

    def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
        sensitivity = clip_norm / expected_batch_size
        return (Component(sensitivity), Component(sensitivity, noise_factor=0.0))

    def values(self, mean: Tensor, clip_norm: float) -> tuple[Tensor, ...]:
        return (mean, mean)


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
