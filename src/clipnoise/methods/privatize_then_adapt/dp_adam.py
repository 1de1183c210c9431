"""DP-Adam: Adam on the released gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.fields import Decay, NonNegative
from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import ClippedMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class DPAdam(PrivateMethod):
    """θ ← θ − η m̂/(√v̂ + γ) on the released gradient.

    The noise adds Φ = (σC/B)² to v̂.

    Source: AdaDPS, Algorithm 2; On Design Principles for Private Adaptive Optimizers, Algorithm 5.
    """

    id = "dp-adam"
    query = ClippedMean()

    betas: tuple[Decay, Decay] = (0.9, 0.999)
    gamma: NonNegative = 1e-8

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        m, v = state.moments(g, self.betas)
        return -self.learning_rate * m / (v.sqrt() + self.gamma)
