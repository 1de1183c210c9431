"""AdaClip: clip what is left of a gradient without its mean, in units of its deviation."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.methods.base import (
    ClippedMean,
    Decay,
    Positive,
    PrivateMethod,
    Public,
    Released,
    State,
    Tensor,
)


@dataclass(frozen=True, kw_only=True)
class AdaClip(PrivateMethod):
    """Clip w_i = (g_i − m)/b to C; θ ← θ − ηg̃ with g̃ = b ⊙ w̃ + m, w̃ the released mean of the w_i.

    b_j = √(s_j Σ_k s_k), which adds the least noise among all b with the same Σ_j s_j²/b_j². The
    mean m and the variance s² of each coordinate follow the releases: m ← β1 m + (1−β1)g̃ and
    s² ← β2 s² + (1−β2)v, v = (g̃ − m)² − b²Φ between `lowest_variance` and `highest_variance`, with
    the m before the step and with b²Φ the variance of the noise on g̃. At first m = 0, and s² is the
    geometric mean of its two bounds: this start and the defaults are choices of this suite.

    Source: Pichapati et al. 2019 (AdaCliP, arXiv 1908.07643), as in code of others:
    soominkwon/DP-dSNE, adaclip.py, and for b and the m in v ntasnim2/dp-macadam,
    dp_macadam/optimizers.py (Tasnim et al. 2026, who build on it). The paper's C is 1.
    """

    id = "adaclip"
    query = ClippedMean()

    betas: tuple[Decay, Decay] = (0.99, 0.9)
    lowest_variance: Positive = 1e-12
    highest_variance: Positive = 1e-4

    def __post_init__(self) -> None:
        if self.lowest_variance > self.highest_variance:
            raise ValueError("lowest_variance must not be above highest_variance")

    def offset(self, state: State, public: Public) -> Tensor:
        return -state["m"]

    def scale(self, state: State, public: Public) -> Tensor:
        return 1 / self.unit(state)

    def variance(self, state: State) -> Tensor:
        """Return s² before the step, shape (d,)."""
        if state.step > 1:
            return state["s squared"]
        start = (self.lowest_variance * self.highest_variance) ** 0.5
        return state.like.new_full(state.like.shape, start)

    def unit(self, state: State) -> Tensor:
        """Return b, shape (d,)."""
        s = self.variance(state).sqrt()
        return (s * s.sum()).sqrt()

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (w,) = released
        b, m = self.unit(state), state["m"]
        g = b * w + m
        noise = public.noise_variance(self.clip_norm) * public.noise_row_norm_squared
        v = (g - m).square() - noise * b.square()
        v = v.clamp(self.lowest_variance, self.highest_variance)
        state["s squared"] = self.betas[1] * self.variance(state) + (1 - self.betas[1]) * v
        state.decay("m", g, self.betas[0])
        return -self.learning_rate * g
