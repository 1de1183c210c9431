"""InnerOuter: un-normalised momentum before the clip, ordinary momentum after the noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.fields import Count, Decay, Fraction
from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import ClippedMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class InnerOuter(PrivateMethod):
    """v_i = Σ_j β^j ∇f_i(θ_{t−j}) over k iterates; m ← β_o m + g̃; θ ← θ − η m.

    Source: Xiao et al. 2023 (inner-outer momentum), as compared in DP-PMLF.
    """

    id = "innerouter"
    query = ClippedMean()

    beta: Fraction = 0.1
    history: Count = 2
    momentum: Decay = 0.9

    def iterates(self) -> int:
        return self.history

    def iterate_weights(self, available: int) -> tuple[float, ...]:
        return tuple(self.beta**j for j in range(available))

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        state["m"] = self.momentum * state["m"] + g
        return -self.learning_rate * state["m"]
