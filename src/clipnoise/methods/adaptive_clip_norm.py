"""Quantile clipping: C follows a quantile of the norms, by a count that is released each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clipnoise.methods.base import (
    SGD,
    SHORTEST,
    Adam,
    ClippedMeanAndCount,
    Clipping,
    Positive,
    PrivateMethod,
    Probability,
    Public,
    Released,
    State,
    Tensor,
)


@dataclass(frozen=True, kw_only=True)
class QuantileClipping(PrivateMethod):
    """Base: C ← C·exp(−η_C(b̃ − q)), b̃ the released share of vectors no longer than C.

    The count is divided by the constant B: b̃ = ½ + Σ(1[‖g_i‖ ≤ C] − ½)/B + noise. Its noise is
    σ_b = σ/(2√ρ) with ρ the `count_share`; the mean gets σ/√(1 − ρ), so that both together cost σ.
    (The paper's σ_b = B/20 is ρ = (10σ/B)².)

    Source: Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping",
    Algorithm 1, with the geometric update.
    """

    may_change = ("learning_rate", "clip_learning_rate")  # `clip_norm` is that of step 1 alone

    target_quantile: Probability = 0.5
    clip_learning_rate: Positive = 0.2
    count_share: Probability = 0.01

    @property
    def query(self) -> ClippedMeanAndCount:
        return ClippedMeanAndCount(self.count_share)

    def clip_norm_at(self, step: int) -> float | None:
        return self.clip_norm if step == 1 else None

    def clipping(self, iterates: Sequence[Tensor], state: State, public: Public) -> Clipping:
        moved = float(state.buffers.get("log C", 0.0))
        found = super().clipping(iterates, state, public)
        return replace(found, clip_norm=max(SHORTEST, self.clip_norm * math.exp(moved)))

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        g, count = released
        excess = count + 0.5 - self.target_quantile
        state["log C"] = state.buffers.get("log C", 0.0) - self.clip_learning_rate * excess
        return super().update((g,), state, public)


@dataclass(frozen=True, kw_only=True)
class DPSGDQuantile(QuantileClipping, SGD):
    """θ ← θ − η g̃ with g̃ clipped to C_t; C_{t+1} = C_t·exp(−η_C(b̃_t − q)).

    b̃ is the noisy share of gradients no longer than C_t. `clip_norm` is C_1, `target_quantile` q,
    `clip_learning_rate` η_C; `count_share` is the share of 1/σ² that b̃ takes.

    Source: Andrew et al. 2021, Algorithm 1, with gradients in place of the updates of users.
    """

    id = "dp-sgd-quantile"


@dataclass(frozen=True, kw_only=True)
class DPAdamQuantile(QuantileClipping, Adam):
    """θ ← θ − η m̂/(√v̂ + γ) on g̃ clipped to C_t; C_{t+1} = C_t·exp(−η_C(b̃_t − q)).

    b̃ is the noisy share of gradients no longer than C_t; the options are those of dp-sgd-quantile.

    Source: Andrew et al. 2021, Algorithm 1; AdaDPS, Algorithm 2 (DP-Adam).
    """

    id = "dp-adam-quantile"
