"""AdaDPS with Adam: public moments, mixed into each gradient before the clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.fields import Decay, Positive
from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import ClippedMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class AdaDPSAdam(PrivateMethod):
    """Clip s_t ⊙ (β g_i + (1−β)M_t), s_t = 1/(√v̂_t + γ); θ ← θ − η u_t.

    M_t ← β1 M + (1−β1)ĝ and v_t ← β2 v + (1−β2)ĝ² come from the public ĝ; v̂ is bias-corrected, M
    is not. The single decay β stands for β1 and β2 too unless `betas` gives them.

    Source: AdaDPS, Algorithm 1, option 1, Adam.
    """

    id = "adadps-adam"
    query = ClippedMean()
    uses_public_gradient = True

    beta: Decay = 0.9
    betas: tuple[Decay, Decay] | None = None
    gamma: Positive = 1e-3

    def moments(self, state: State, public: Public) -> tuple[Tensor, Tensor]:
        """Return (M_t, v_t), leaving the state as it is."""
        beta1, beta2 = self.betas or (self.beta, self.beta)
        g = public.require("gradient")
        return (
            beta1 * state["M"] + (1 - beta1) * g,
            beta2 * state["v"] + (1 - beta2) * g.square(),
        )

    def iterate_weights(self, available: int) -> tuple[float, ...]:
        return (self.beta,)

    def offset(self, state: State, public: Public) -> Tensor:
        m, _ = self.moments(state, public)
        return (1 - self.beta) * m

    def scale(self, state: State, public: Public) -> Tensor:
        _, v = self.moments(state, public)
        _, beta2 = self.betas or (self.beta, self.beta)
        return 1 / ((v / (1 - beta2**state.step)).sqrt() + self.gamma)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (u,) = released
        state["M"], state["v"] = self.moments(state, public)
        return -self.learning_rate * u
