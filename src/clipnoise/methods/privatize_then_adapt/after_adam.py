"""DP-RAdam and DP-AdEMAMix: what came after Adam, on the released gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

from clipnoise.methods.base import (
    Adam,
    ClippedMean,
    Decay,
    Fraction,
    NonNegative,
    PrivateMethod,
    Public,
    Released,
    RootScaled,
    State,
    Tensor,
)


def rectification(t: int, beta2: float) -> float | None:
    """Return RAdam's r_t, or None where v̂ has too few gradients to be divided by.

    With ρ_∞ = 2/(1−β2) − 1 and ρ_t = ρ_∞ − 2tβ2^t/(1−β2^t), it is
    √((ρ_t−4)(ρ_t−2)ρ_∞/((ρ_∞−4)(ρ_∞−2)ρ_t)) where ρ_t > 5.

    Args:
        t: the step, from 1.
        beta2: β2 in [0, 1).
    """
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * t * beta2**t / (1 - beta2**t)
    if length <= 5:
        return None
    share = (length - 4) * (length - 2) * longest
    return math.sqrt(share / ((longest - 4) * (longest - 2) * length))


@dataclass(frozen=True, kw_only=True)
class DPRAdam(Adam, PrivateMethod):
    """θ ← θ − η r_t m̂√(1−β2^t)/(√v + γ), and θ ← θ − η m̂ in the first steps, where ρ_t ≤ 5.

    r_t = √((ρ_t−4)(ρ_t−2)ρ_∞/((ρ_∞−4)(ρ_∞−2)ρ_t)) with ρ_∞ = 2/(1−β2) − 1 and
    ρ_t = ρ_∞ − 2tβ2^t/(1−β2^t) is a warm-up that follows from β2. Under noise the variance that it
    rectifies is mostly that of the noise.

    Source: Liu et al. 2020 (On the Variance of the Adaptive Learning Rate and Beyond), Algorithm 2,
    on the released gradient, with γ and the bound 5 (the paper has 4) as in torch.optim.RAdam.
    """

    id = "dp-radam"
    query = ClippedMean()

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        m = state.average("m", g, self.betas[0])
        v = state.decay("v", g.square(), self.betas[1])
        r = rectification(state.step, self.betas[1])
        if r is None:
            return -self.learning_rate * m
        return r * math.sqrt(1 - self.betas[1] ** state.step) * self.descend(m, v)


@dataclass(frozen=True, kw_only=True)
class DPAdEMAMix(RootScaled, PrivateMethod):
    """θ ← θ − η ((m̂ + α_t n)/(√v̂ + γ) + λθ) with n ← β3,t n + (1−β3,t)g̃, a slow average.

    m̂ and v̂ are Adam's; n is not corrected. In the first W = `warmup`·T steps α_t = αt/W, and
    1/ln β3,t goes in equal steps from 1/ln β1 to 1/ln β3; then they are α and β3. A long average
    has little of the noise: of a share 1−β3 of new gradients, about (1−β3)/2 of its variance.

    Source: Pagliardini et al. 2025 (The AdEMAMix Optimizer, arXiv 2409.03137), Algorithm 1, on the
    released gradient, with the warm-ups of the authors' code, apple/ml-ademamix, over T steps.
    """

    id = "dp-ademamix"
    query = ClippedMean()

    betas: tuple[Decay, Decay, Decay] = (0.9, 0.999, 0.9999)
    alpha: NonNegative = 5.0
    warmup: Fraction = 1.0
    weight_decay: NonNegative = 0.0

    def slow(self, t: int, total_steps: int) -> tuple[float, float]:
        """Return α_t and β3,t."""
        part = t / (self.warmup * total_steps) if self.warmup else 1.0
        if part >= 1:
            return self.alpha, self.betas[2]
        first, last = (1 / math.log(max(beta, 1e-8)) for beta in (self.betas[0], self.betas[2]))
        return part * self.alpha, math.exp(1 / ((1 - part) * first + part * last))

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        m, v = state.moments(g, self.betas[:2])
        alpha, beta3 = self.slow(state.step, public.total_steps)
        change = self.descend(m + alpha * state.decay("n", g, beta3), v)
        return change - self.learning_rate * self.weight_decay * state.theta
