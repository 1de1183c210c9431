"""A clip rule of one's own: short vectors keep more of their weight than long ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.core.clipping import OwnClipRule
from clipnoise.fields import Positive

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SqrtClip(OwnClipRule):
    """C/√(‖v‖² + (rC)²): near the hard rule far above C, and smooth everywhere.

    Attributes:
        softness: r; below rC the factor hardly depends on the norm.

    Source: an example.
    """

    id: ClassVar[str] = "sqrt-clip"

    softness: Positive = 1.0

    def factor(self, norm: Tensor, clip_norm: float) -> Tensor:
        return clip_norm / (norm.square() + (self.softness * clip_norm) ** 2).sqrt()
