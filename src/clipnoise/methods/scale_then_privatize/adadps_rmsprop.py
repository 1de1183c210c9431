"""AdaDPS with RMSProp: scale by the second moment of public gradients, then privatize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.fields import Decay, Positive
from clipnoise.methods.base import PrivateMethod, Public, SingleRateMethod, State
from clipnoise.privacy.queries import ClippedMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class PublicScale(SingleRateMethod):
    """What AdaDPS with a recurrence on public gradients shares: s_t = 1/(√v_t + γ).

    The step is taken with the released u_t as it is: there is no un-scaling.

    Source: AdaDPS, Algorithm 1, option 1.
    """

    uses_public_gradient = True

    beta: Decay = 0.9
    gamma: Positive = 1e-3

    def reference(self, public: Public) -> Tensor:
        """Return ĝ, the gradient that the second moment is taken of."""
        return public.require("gradient")

    def second_moment(self, state: State, public: Public) -> Tensor:
        """Return v_t = βv_{t−1} + (1−β)ĝ², leaving the state as it is."""
        return self.beta * state["v"] + (1 - self.beta) * self.reference(public).square()

    def scale(self, state: State, public: Public) -> Tensor:
        return 1 / (self.second_moment(state, public).sqrt() + self.gamma)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (u,) = released
        state["v"] = self.second_moment(state, public)
        return -self.learning_rate * u


@dataclass(frozen=True, kw_only=True)
class AdaDPSRMSProp(PublicScale, PrivateMethod):
    """v ← βv + (1−β)ĝ² from the public ĝ; clip g_i/(√v + γ); θ ← θ − η u_t.

    Source: AdaDPS, Algorithm 1, option 1, RMSProp.
    """

    id = "adadps-rmsprop"
    query = ClippedMean()
