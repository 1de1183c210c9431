"""DP-AdamBC: DP-Adam without the noise bias of the second moment, also with AdamW's decay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from clipnoise.methods.base import (
    ClippedMean,
    Decay,
    NonNegative,
    Positive,
    PrivateMethod,
    Probability,
    Public,
    Released,
    State,
    Tensor,
)


def concentration_bound(t: int, beta2: float, phi: float, alpha: float) -> float:
    """Bound how far noise moves v̂_t − Φ: by more than ξ with probability at most α.

    Args:
        t: the step, from 1.
        beta2: β2 in [0, 1).
        phi: Φ = (σC/B)².
        alpha: α in (0, 1).

    Returns:
        ξ, the smaller of the two branches that meets its own condition; they meet where both do.

    Source: DP-AdamBC, Proposition 3, with the ν of its statement (the proof has half of it; the
    published Table 3 follows the statement).
    """
    log = math.log(2 / alpha)
    spread = math.sqrt((1 - beta2 ** (2 * t)) / (1 - beta2**2))
    deviation = 4 * phi * max(spread * math.sqrt(2 * log), 2 * log)
    return (1 - beta2) / (1 - beta2**t) * deviation


@dataclass(frozen=True, kw_only=True)
class DPAdamBC(PrivateMethod):
    """DP-Adam with the noise variance Φ subtracted from the second moment.

    θ ← θ − η m̂/√max(v̂ − Φ, γ′), with Φ = (σC/B)²; under correlated noise Φ is the bias that its
    growing variance leaves in v̂. Beyond the paper: `phi` replaces Φ by another
    number, and `gamma_schedule: bound` replaces γ′ by max(γ′, ξ_t), where ξ_t is the bound of
    Proposition 3 (for independent noise) at the probability `gamma_probability`; it shrinks with t.

    Source: DP-AdamBC, Algorithm 1 and equation 4.
    """

    id = "dp-adambc"
    query = ClippedMean()

    betas: tuple[Decay, Decay] = (0.9, 0.999)
    gamma_prime: Positive = 1e-8
    phi: NonNegative | None = None
    gamma_schedule: Literal["constant", "bound"] = "constant"
    gamma_probability: Probability = 0.05

    def floor(self, t: int, noise_variance: float) -> float:
        """Return γ′_t."""
        if self.gamma_schedule == "constant":
            return self.gamma_prime
        bound = concentration_bound(t, self.betas[1], noise_variance, self.gamma_probability)
        return max(self.gamma_prime, bound)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        m, v = state.moments(g, self.betas)
        bias = state.noise_bias(public, self.clip_norm, self.betas[1])
        phi = bias if self.phi is None else self.phi
        floor = self.floor(state.step, public.noise_variance(self.clip_norm))
        return -self.learning_rate * m / (v - phi).clamp(min=floor).sqrt()


@dataclass(frozen=True, kw_only=True)
class DPAdamWBC(DPAdamBC):
    """θ ← θ − η (m̂/√max(v̂ − Φ, γ′) + λθ): DP-AdamBC whose weight decay passes through no moment.

    The options of dp-adambc are options here, too.

    Source: Chooi et al. 2025 (DP-AdamW, arXiv 2511.07843), DP-AdamW-BC, as in the code of Opake,
    dp_adamw.py, which names its Algorithm 2 and adds an ε to the root; here γ′ alone keeps it from
    zero, as in DP-AdamBC.
    """

    id = "dp-adamw-bc"

    weight_decay: NonNegative = 0.01

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        decayed = self.learning_rate * self.weight_decay * state.theta
        return super().update(released, state, public) - decayed
