"""DP-Adam with a second moment that noise never touched: an oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.fields import Decay, NonNegative
from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import NoisyAndCleanMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class DPAdamNoiseless(PrivateMethod):
    """DP-Adam with m from the noisy and v from the clean clipped mean gradient. Non-private.

    Source: On Design Principles for Private Adaptive Optimizers, section 4.1 (noiseless
    preconditioner).
    """

    id = "dp-adam-noiseless"
    query = NoisyAndCleanMean()

    betas: tuple[Decay, Decay] = (0.9, 0.999)
    gamma: NonNegative = 1e-8

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        noisy, clean = released
        m = state.average("m", noisy, self.betas[0])
        v = state.average("v", clean.square(), self.betas[1])
        return -self.learning_rate * m / (v.sqrt() + self.gamma)
