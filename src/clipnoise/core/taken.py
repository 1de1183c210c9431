"""What is taken of each example: a vector, and coordinates that follow from the vector's norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Taken:
    """What an example adds to the sum of a batch: a clipped vector, then K extra coordinates.

    The extra coordinates depend on the norm of the example's own vector alone. A class outside the
    package is refused, because nothing would hold what it adds to its bound.

    Attributes:
        losses: whether the vector is a loss, of shape (1,), and not a gradient, of shape (d,).
    """

    id: ClassVar[str]
    losses: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Refuse a class outside the package.

        Raises:
            TypeError: it is one.
        """
        super().__init_subclass__()
        if cls.__module__.partition(".")[0] != __name__.partition(".")[0]:
            raise TypeError(f"{cls.__name__}: what is taken of examples belongs to the package")

    @property
    def extra(self) -> int:
        """K, how many coordinates follow the clipped vector."""
        return 0

    @property
    def spends(self) -> float:
        """Which share of 1/σ² the noise on the sum must leave; 0 but at a minimum."""
        return 0.0

    def bound(self, clip_norm: float) -> float:
        """Return how long (clip(v), extra coordinates) can be, as one vector in L2."""
        return clip_norm

    def coordinates(self, norms: Tensor, clipped: Tensor, clip_norm: float) -> Tensor:
        """Return the extra coordinates of each example.

        Args:
            norms: ‖v_i‖, shape (b,). What is returned for a norm that is not finite is not used.
            clipped: ‖clip(v_i)‖, shape (b,), at most C up to rounding.
            clip_norm: C.

        Returns:
            Shape (b, K).
        """
        return norms.new_zeros(len(norms), self.extra)

    def vector(self, theta: Tensor) -> Tensor:
        """Return the zero vector, without extra coordinates, shape (d,), or (1,) of losses.

        Args:
            theta: θ of shape (d,), which gives dtype and device.
        """
        return theta.new_zeros(1 if self.losses else theta.numel())

    def zeros(self, theta: Tensor) -> Tensor:
        """Return the sum over no examples, shape (d + K,), or (1 + K,) of losses."""
        vector = self.vector(theta)
        return vector.new_zeros(len(vector) + self.extra) if self.extra else vector


@dataclass(frozen=True)
class Gradients(Taken):
    """The gradient of each example's loss."""

    id: ClassVar[str] = "gradients"


@dataclass(frozen=True)
class Losses(Taken):
    """Each example's loss."""

    id: ClassVar[str] = "losses"
    losses: ClassVar[bool] = True


@dataclass(frozen=True)
class GradientsAndCount(Taken):
    """Gradients, and whether each is no longer than C: 1[‖v_i‖ ≤ C] − ½.

    An example that comes or goes moves this by ½, where a count from 0 would move by 1.
    """

    id: ClassVar[str] = "gradients and a count"

    @property
    def extra(self) -> int:
        return 1

    def bound(self, clip_norm: float) -> float:
        return math.hypot(clip_norm, 0.5)

    def coordinates(self, norms: Tensor, clipped: Tensor, clip_norm: float) -> Tensor:
        return ((norms <= clip_norm).to(norms.dtype) - 0.5).unsqueeze(1)


@dataclass(frozen=True)
class GradientsAndSlacks(Taken):
    """Gradients, and how far each clipped one is from C, in K slots of at most λ = C/√K.

    √K(C − ‖clip(v_i)‖) fills the slots one after another. Vector and slots together are no longer
    than C: with n = ‖clip(v_i)‖ ≤ C, and no slot above λ, the squares of the slots add up to at
    most λ·√K(C − n) = C(C − n), and n² + C(C − n) = C² − n(C − n) ≤ C².

    Attributes:
        slots: K.

    Source: Zou et al. 2026 (SlaClip), equations 6 to 8.
    """

    id: ClassVar[str] = "gradients and slacks"
    slots: int = 1

    @property
    def extra(self) -> int:
        return self.slots

    def coordinates(self, norms: Tensor, clipped: Tensor, clip_norm: float) -> Tensor:
        import torch

        width = clip_norm / math.sqrt(self.slots)
        slack = math.sqrt(self.slots) * (clip_norm - clipped).unsqueeze(1)
        before = width * torch.arange(self.slots, dtype=slack.dtype, device=slack.device)
        return (slack - before).clamp(0.0, width)


@dataclass(frozen=True)
class AtMinimum(Taken):
    """Σ s(θ·u_i) u_i at the θ that minimises Σ log(1 + e^{m + θ·u_i}) + (λ/2)‖θ‖² + b·θ.

    u_i is the clipped vector of an example, s(x) = 1/(1 + e^{−m−x}), and b noise of standard
    deviation C/S. The sum is released with b. At the minimum that is −λθ, so that θ alone is
    released: objective perturbation, as one Gaussian mechanism.

    **Theorem.** With κ = C²/(4λ), θ is μ-GDP for adding or removing an example, where
    μ = S/2 − Φ⁻¹(Φ(−S/2)/(1 + κ)).

    Proof. θ and b determine each other: b = −Σ s(θ·u_i) u_i − λθ. Let D have an example u that D′
    has not. With a = s(θ·u)‖u‖S/C in [0, S], and t the coordinate of b along u in units of C/S,
    which is standard normal under D, the densities of θ have the ratio p/p′ = J e^{a²/2 + at}. Here
    J = 1 + s(1 − s) u·H⁻¹u with a Hessian H ≥ λ, so 1 ≤ J ≤ 1 + κ; and the exponent is convex in a,
    so at most max(0, G), G = S²/2 + St. Under D′, in the same way, p′/p ≤ e^{max(0, S²/2 − St)}
    with a standard normal t. Let δ_S(x) = E max(0, 1 − e^{x − G}) be the profile of S-GDP. Then
    δ(ε) ≤ δ_S(ε − log(1 + κ)) of D against D′ for ε ≥ log(1 + κ), and δ(ε) ≤ δ_S(ε) of D′ against D
    for ε ≥ 0. At 0 both orders have the same δ, so for ε below log(1 + κ) the former is at most
    δ_S(0). The bound on D against D′ is the trade-off function G_S((1 + κ)α) up to
    α = Φ(−S/2)/(1 + κ). It is above that of μ-GDP if μ ≥ S + z(α) − z((1 + κ)α), z(α) = Φ⁻¹(1 − α).
    As −dz/d log α is the Mills ratio of z, which falls with z, the right side grows with α; at the
    largest α it is the μ of the theorem. This μ is at least S, which covers the other order. ∎

    **The approximate minimum.** A solver stops where the gradient of the objective has a norm of at
    most τ. As the sum is monotone in θ, it is then within τ of the one at the minimum. A second
    noise, of standard deviation σ_o, goes on what is released: given θ, that is (2τ/σ_o)-GDP.

    Together they may be 1/σ-GDP. The noise on the sum takes all but ρ of 1/σ², the second release
    ρ/4, and the second noise is ρ/4 of the variance. κ has what is left; λ and τ follow.

    Source: Chaudhuri et al. 2011; Iyengar et al. 2019 (approximate minima); Redberg, Koskela and
    Wang 2023 (arXiv 2401.00583), whose bounds are for slopes of either sign. s has one sign.

    Attributes:
        share: ρ in (0, 1).
        margin: m ≥ 0, where −θ·u_i is no longer worth much.
    """

    id: ClassVar[str] = "gradients at a minimum"
    share: float = 0.3
    margin: float = 0.0

    @property
    def spends(self) -> float:
        return self.share

    def slopes(self, products: Tensor) -> Tensor:
        """Return s(θ·u_i), in [0, 1], for each θ·u_i."""
        return (products + self.margin).sigmoid()

    @property
    def second(self) -> float:
        """ρ/4."""
        return self.share / 4

    def ridge(self, noise_multiplier: float, clip_norm: float) -> float:
        """Return λ.

        Args:
            noise_multiplier: σ. At 0, as in audits, nothing is protected, and κ is 1.
            clip_norm: C.
        """
        from scipy.special import log_ndtr

        if not noise_multiplier:
            return clip_norm**2 / 4
        mu = math.sqrt(1 - self.second) / noise_multiplier
        s = math.sqrt((1 - self.share) / (1 - self.second)) / noise_multiplier
        return clip_norm**2 / (4 * math.expm1(log_ndtr(-s / 2) - log_ndtr(s / 2 - mu)))

    def tolerance(self, clip_norm: float) -> float:
        """Return τ.

        Args:
            clip_norm: C.
        """
        return self.second * clip_norm / (2 * math.sqrt(1 - self.share))


GRADIENTS, LOSSES = Gradients(), Losses()
TAKEN: Mapping[str, type[Taken]] = {
    kind.id: kind for kind in (Gradients, Losses, GradientsAndCount, GradientsAndSlacks, AtMinimum)
}
