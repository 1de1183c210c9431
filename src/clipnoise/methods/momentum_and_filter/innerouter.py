"""InnerOuter: un-normalised momentum before the clip, ordinary momentum after the noise."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.methods.base import ClippedMean, Count, Fraction, Momentum, PrivateMethod


@dataclass(frozen=True, kw_only=True)
class InnerOuter(Momentum, PrivateMethod):
    """v_i = Σ_j β^j ∇f_i(θ_{t−j}) over k iterates; m ← β_o m + g̃; θ ← θ − η m.

    Source: Xiao et al. 2023 (inner-outer momentum), as compared in DP-PMLF.
    """

    id = "innerouter"
    query = ClippedMean()

    beta: Fraction = 0.1
    history: Count = 2

    def iterates(self) -> int:
        return self.history

    def iterate_weights(self, available: int) -> tuple[float, ...]:
        return tuple(self.beta**j for j in range(available))
