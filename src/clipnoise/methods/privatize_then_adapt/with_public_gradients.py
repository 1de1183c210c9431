"""Released gradients joined with public ones after the privacy boundary."""

from __future__ import annotations

import math
from dataclasses import dataclass

from clipnoise.methods.base import (
    ClippedMean,
    Decay,
    Fraction,
    PrivateMethod,
    Public,
    Released,
    RMSProp,
    RootScaled,
    State,
    Tensor,
)


@dataclass(frozen=True, kw_only=True)
class DPAdamPub(RootScaled, PrivateMethod):
    """m ← β2 m + (1−β2)(β1 g̃ + (1−β1)ĝ); v ← β3 v + (1−β3)ĝ²; θ ← θ − η m̂/(√v̂ + γ).

    With β1 = 1 only the preconditioner is public: Algorithm 9 of the design-principles paper, with
    public gradients taken during training as its side information.

    Source: AdaDPS, appendix C.1 (DP-Adam-Pub).
    """

    id = "dp-adam-pub"
    query = ClippedMean()
    uses_public_gradient = True

    betas: tuple[Fraction, Decay, Decay] = (0.9, 0.9, 0.999)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        beta1, beta2, beta3 = self.betas
        g_pub = public.require("gradient")
        m = state.average("m", beta1 * g + (1 - beta1) * g_pub, beta2)
        v = state.average("v", g_pub.square(), beta3)
        return self.descend(m, v)


@dataclass(frozen=True, kw_only=True)
class DPRPub(RMSProp, PrivateMethod):
    """v ← βv + (1−β)ĝ² from the public ĝ; θ ← θ − η g̃/(√v + γ).

    Source: AdaDPS, section 6.1.1 (DP-R-Pub).
    """

    id = "dp-r-pub"
    query = ClippedMean()
    uses_public_gradient = True

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        return self.descend(g, state.decay("v", public.require("gradient").square(), self.beta))


@dataclass(frozen=True, kw_only=True)
class PDADPMD(PrivateMethod):
    """α_t = cos(πt/2T); θ ← θ − η(α_t g̃ + (1−α_t)ĝ).

    Source: Amid et al. 2022, the first-order approximation; AdaDPS, section 6.1.1.
    """

    id = "pda-dpmd"
    query = ClippedMean()
    uses_public_gradient = True

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        alpha = math.cos(math.pi * state.step / (2 * public.total_steps))
        return -self.learning_rate * (alpha * g + (1 - alpha) * public.require("gradient"))
