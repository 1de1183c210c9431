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


GRADIENTS, LOSSES = Gradients(), Losses()
TAKEN: Mapping[str, type[Taken]] = {
    kind.id: kind for kind in (Gradients, Losses, GradientsAndCount, GradientsAndSlacks)
}
