"""Rules that give every vector nearly the same norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge

from clipnoise.core.clip_rules.base import SHORTEST, ClipRule

if TYPE_CHECKING:
    from torch import Tensor

Gamma = Annotated[float, Ge(SHORTEST)]
GAMMA = 0.01


def _check(gamma: float | None) -> None:
    """Refuse a γ at which factors would exceed C/‖v‖, also where Python code makes the rule."""
    if gamma is not None and not SHORTEST <= gamma < math.inf:
        raise ValueError(f"gamma must be finite and at least {SHORTEST:g}, got {gamma:g}")


@dataclass(frozen=True, kw_only=True)
class AutomaticClip(ClipRule):
    """g_i·C/(‖g_i‖ + γ).

    All vectors, short ones too, end up near C, and with a small γ the gradient is normalised.

    Attributes:
        gamma: γ; 0.01 where it is not given.

    Source: Bu et al. 2023, "Automatic Clipping", equation 4.1 (AUTO-S).
    """

    id: ClassVar[str] = "automatic"

    gamma: Gamma | None = None

    def __post_init__(self) -> None:
        _check(self.gamma)

    def factors(self, norms: Tensor, clip_norm: float) -> Tensor:
        return clip_norm / (norms + (self.gamma or GAMMA))


@dataclass(frozen=True, kw_only=True)
class PSAC(ClipRule):
    """g_i·C/(‖g_i‖ + γ/(‖g_i‖ + γ)).

    The weights end at C/(2√γ − γ), that of ‖g_i‖ = √γ − γ: 5.26 C at γ = 0.01, where those of
    automatic end at 100 C.

    Attributes:
        gamma: γ, called r in the paper; 0.01 where it is not given.

    Source: Xia et al. 2023, "Per-Sample Adaptive Clipping", Algorithm 1.
    """

    id: ClassVar[str] = "psac"

    gamma: Gamma | None = None

    def __post_init__(self) -> None:
        _check(self.gamma)

    def factors(self, norms: Tensor, clip_norm: float) -> Tensor:
        gamma = self.gamma or GAMMA
        return clip_norm / (norms + gamma / (norms + gamma))
