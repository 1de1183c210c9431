"""AdaDPS with AdaGrad: scale by the root of the summed squares of public gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.fields import Positive
from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import ClippedMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class AdaDPSAdaGrad(PrivateMethod):
    """A² ← A² + ĝ² from the public ĝ; clip g_i/(A + γ); θ ← θ − η u_t.

    Source: AdaDPS, Algorithm 1, option 1, AdaGrad.
    """

    id = "adadps-adagrad"
    query = ClippedMean()
    uses_public_gradient = True

    gamma: Positive = 1e-3

    def sum_of_squares(self, state: State, public: Public) -> Tensor:
        """Return A_t² = A_{t−1}² + ĝ², leaving the state as it is."""
        return state["A squared"] + public.require("gradient").square()

    def scale(self, state: State, public: Public) -> Tensor:
        return 1 / (self.sum_of_squares(state, public).sqrt() + self.gamma)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (u,) = released
        state["A squared"] = self.sum_of_squares(state, public)
        return -self.learning_rate * u
