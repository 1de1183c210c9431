"""Long vectors are clipped, and short ones stay as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.core.clip_rules.base import ClipRule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class HardClip(ClipRule):
    """g_i·min(1, C/‖g_i‖).

    Source: Abadi et al. 2016, Algorithm 1.
    """

    id: ClassVar[str] = "hard"

    def factors(self, norms: Tensor, clip_norm: float) -> Tensor:
        return norms.reciprocal().mul_(clip_norm).clamp_max_(1.0)


HARD = HardClip()
EACH_LAYER = HardClip(per="layer")
