"""DP-PMLF: per-sample momentum before the clip, a low-pass filter after the noise."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.methods.base import SGD, ClippedMean, Count, Fraction, PrivateMethod
from clipnoise.methods.momentum_and_filter.low_pass import LowPassFiltered


@dataclass(frozen=True, kw_only=True)
class PerSampleMomentum(PrivateMethod):
    """What DP-PMLF and its ablation share: v_i = Σ_j β̂^j ∇f_i(θ_{t−j}), clipped once.

    β̂^j = β^j/Σ_{j′} β^{j′} over the last k iterates, fewer at the start; the current iterate has
    the largest weight. The momentum of an example is recomputed at stored iterates, which are
    public, in each step that draws the example: so it enters each step once, with norm at most C.

    Source: DP-PMLF, Algorithm 1, lines 1 to 8.
    """

    beta: Fraction = 0.1
    history: Count = 2

    def iterates(self) -> int:
        return self.history

    def iterate_weights(self, available: int) -> tuple[float, ...]:
        powers = [self.beta**j for j in range(available)]
        return tuple(power / sum(powers) for power in powers)


@dataclass(frozen=True, kw_only=True)
class DPPMLF(PerSampleMomentum, LowPassFiltered):
    """Normalised per-sample momentum over k iterates, then the low-pass filter.

    v_i = Σ_j β̂^j ∇f_i(θ_{t−j}); g̃_t = (Σ clip(v_i) + σCz)/B; θ ← θ − η m_t/c_t with
    m_t = −Σ a_r m_{t−r} + Σ b_r g̃_{t−r} and c_t the same recursion on a constant 1.

    Source: DP-PMLF, Algorithm 1.
    """

    id = "dp-pmlf"


@dataclass(frozen=True, kw_only=True)
class DPPMLFWithoutFilter(SGD, PerSampleMomentum):
    """DP-PMLF without the low-pass filter: θ ← θ − η g̃.

    v_i = Σ_j β̂^j ∇f_i(θ_{t−j}); g̃_t = (Σ clip(v_i) + σCz)/B.

    Source: DP-PMLF, ablation studies and Figure 3 (w/o LF).
    """

    id = "dp-pmlf-wo-lf"
    query = ClippedMean()
