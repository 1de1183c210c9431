"""DP-Adam-Pub: Adam with momentum from both, second moment from public gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.fields import Decay, Fraction, NonNegative
from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import ClippedMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class DPAdamPub(PrivateMethod):
    """m ← β2 m + (1−β2)(β1 g̃ + (1−β1)ĝ); v ← β3 v + (1−β3)ĝ²; θ ← θ − η m̂/(√v̂ + γ).

    Source: AdaDPS, appendix C.1 (DP-Adam-Pub).
    """

    id = "dp-adam-pub"
    query = ClippedMean()
    uses_public_gradient = True

    betas: tuple[Fraction, Decay, Decay] = (0.9, 0.9, 0.999)
    gamma: NonNegative = 1e-8

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        beta1, beta2, beta3 = self.betas
        g_pub = public.require("gradient")
        m = state.average("m", beta1 * g + (1 - beta1) * g_pub, beta2)
        v = state.average("v", g_pub.square(), beta3)
        return -self.learning_rate * m / (v.sqrt() + self.gamma)
