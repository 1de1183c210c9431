"""DP-RMSProp: RMSProp on the released gradient."""

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
class DPRMSProp(PrivateMethod):
    """v ← βv + (1−β)g̃²; θ ← θ − η g̃/(√v + γ), without bias correction.

    Source: AdaDPS, appendix C.1.
    """

    id = "dp-rmsprop"
    query = ClippedMean()

    beta: Decay = 0.9
    gamma: NonNegative = 1e-8

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        v = state.decay("v", g.square(), self.beta)
        return -self.learning_rate * g / (v.sqrt() + self.gamma)
