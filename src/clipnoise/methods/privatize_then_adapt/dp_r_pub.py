"""DP-R-Pub: RMSProp with the second moment of public gradients."""

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
class DPRPub(PrivateMethod):
    """v ← βv + (1−β)ĝ² from the public ĝ; θ ← θ − η g̃/(√v + γ).

    Source: AdaDPS, section 6.1.1 (DP-R-Pub).
    """

    id = "dp-r-pub"
    query = ClippedMean()
    uses_public_gradient = True

    beta: Decay = 0.9
    gamma: NonNegative = 1e-8

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        v = state.decay("v", public.require("gradient").square(), self.beta)
        return -self.learning_rate * g / (v.sqrt() + self.gamma)
