"""C follows the norms of the vectors, by numbers that are released with the mean in each step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from clipnoise.methods.base import (
    SGD,
    SHORTEST,
    Adam,
    ClipNorm,
    ClippedMeanAndCount,
    ClippedMeanAndSlacks,
    Clipping,
    Count,
    Positive,
    PrivateMethod,
    Probability,
    Public,
    Released,
    State,
    Tensor,
)


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipNorm(PrivateMethod):
    """Base: C_t = C_1·exp(x_t), x_1 = 0, and x follows what is released beside the mean."""

    may_change = ("learning_rate", "clip_learning_rate")  # `clip_norm` is that of step 1 alone

    def log_change(self, state: State) -> Tensor:
        """Return x_t, shape (1,)."""
        return state.buffers.get("log C", state.theta.new_zeros(1))

    def current_clip_norm(self, state: State) -> float:
        """Return C_t."""
        return max(SHORTEST, self.clip_norm * math.exp(float(self.log_change(state))))

    def clip_norm_at(self, step: int) -> float | None:
        return self.clip_norm if step == 1 else None

    def clipping(self, state: State, public: Public) -> Clipping:
        found = super().clipping(state, public)
        return replace(found, clip_norm=self.current_clip_norm(state))


@dataclass(frozen=True, kw_only=True)
class QuantileClipping(AdaptiveClipNorm):
    """Base: C ← C·exp(−η_C(b̃ − q)), b̃ the released share of vectors no longer than C.

    The count is divided by the constant B: b̃ = ½ + Σ(1[‖g_i‖ ≤ C] − ½)/B + noise. Its noise is
    σ_b = σ/(2√ρ) with ρ the `count_share`; the mean gets σ/√(1 − ρ), so that both together cost σ.
    (The paper's σ_b = B/20 is ρ = (10σ/B)².)

    Source: Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping",
    Algorithm 1, with the geometric update.
    """

    target_quantile: Probability = 0.5
    clip_learning_rate: Positive = 0.2
    count_share: Probability = 0.01

    @property
    def query(self) -> ClippedMeanAndCount:
        return ClippedMeanAndCount(self.count_share)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        g, count = released
        excess = count + 0.5 - self.target_quantile
        state["log C"] = self.log_change(state) - self.clip_learning_rate * excess
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


@dataclass(frozen=True, kw_only=True)
class DPSGDSlaClip(AdaptiveClipNorm, SGD):
    """θ ← θ − ηg̃ with g̃ clipped to C_t; C_{t+1} = C_t·exp(η_C(γ_t − s̃_1)), s̃ the noisy slots.

    √K(C − ‖clip(g_i)‖) fills K slots of at most C/√K one after another, and each slot of s̃ is the
    noisy sum over examples, divided by B·C/√K: s̃_1 is near the share of gradients that are not near
    C, and s̃_K near that of the gradients near 0. γ_t = (1 + r_t)/2 with r_t = s̃_K/C_t between 0
    and 1. Gradient and slots have a norm of at most C together, so s̃ takes no noise from g̃.

    `slots` is K, for which the paper proposes ⌊(B/(5.152σ))^(2/3)⌋, `clip_norm` C_1, and
    `clip_learning_rate` η_C; C stays between `lowest_clip_norm` and `highest_clip_norm`. That r_t
    is divided by C_t, though s̃_K is a share already, is the paper's.

    Source: Zou et al. 2026 (SlaClip, ICML), equations 6 to 11, 28 to 30 and 36, as stated by the
    authors in meta-pytorch/opacus, pull request 824, research/slaclip/README.md.
    """

    id = "dp-sgd-slaclip"

    slots: Count = 8
    clip_learning_rate: Positive = 0.5
    lowest_clip_norm: ClipNorm = 0.1
    highest_clip_norm: ClipNorm = 50.0

    def __post_init__(self) -> None:
        if self.lowest_clip_norm > self.highest_clip_norm:
            raise ValueError("lowest_clip_norm must not be above highest_clip_norm")

    @property
    def query(self) -> ClippedMeanAndSlacks:
        return ClippedMeanAndSlacks(self.slots)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (value,) = released
        clip_norm = self.current_clip_norm(state)
        filled = value[-self.slots :] * (math.sqrt(self.slots) / clip_norm)
        near_zero = (filled[-1:] / clip_norm).clamp(0.0, 1.0)
        moved = self.clip_learning_rate * ((1 + near_zero) / 2 - filled[:1])
        low, high = (
            math.log(bound / self.clip_norm)
            for bound in (self.lowest_clip_norm, self.highest_clip_norm)
        )
        state["log C"] = (self.log_change(state) + moved).clamp(low, high)
        return -self.learning_rate * value[: -self.slots]
