"""StP-Adam: scale by the last second moment, privatize, un-scale, then Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.fields import Decay, NonNegative, Positive
from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import ClippedMean, Query

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class StPAdam(PrivateMethod):
    """Clip s_t ⊙ g_i with s_t = 1/(√v̂_{t−1} + γ1), then DP-Adam with γ2 on g = u_t/s_t.

    With v̂_0 = 0 the first scale is the constant 1/γ1, so γ1 is a real hyper-parameter.

    Source: On Design Principles for Private Adaptive Optimizers, Algorithm 8.
    """

    id = "stp-adam"
    query: ClassVar[Query] = ClippedMean()

    betas: tuple[Decay, Decay] = (0.9, 0.999)
    gamma_scale: Positive = 1e-3
    gamma: NonNegative = 1e-8

    def scale(self, state: State, public: Public) -> Tensor:
        past_steps = state.step - 1
        v = state["v"] / (1 - self.betas[1] ** past_steps) if past_steps else state["v"]
        return 1 / (v.sqrt() + self.gamma_scale)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (u,) = released
        g = u / self.scale(state, public)
        m, v = state.moments(g, self.betas)
        return -self.learning_rate * m / (v.sqrt() + self.gamma)
