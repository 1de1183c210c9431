"""StP-Adam with a second moment that noise never touched: an oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.methods.base import Public, State
from clipnoise.methods.scale_then_privatize.stp_adam import StPAdam
from clipnoise.privacy.queries import NoisyAndCleanMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class StPNoiseless(StPAdam):
    """StP-Adam with m from the noisy and v from the clean clipped mean gradient. Non-private.

    Source: On Design Principles for Private Adaptive Optimizers, Algorithm 8 with the noiseless
    preconditioner of section 4.1.
    """

    id = "stp-noiseless"
    query = NoisyAndCleanMean()

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        s = self.scale(state, public)
        noisy, clean = (u / s for u in released)
        m = state.average("m", noisy, self.betas[0])
        v = state.average("v", clean.square(), self.betas[1])
        return -self.learning_rate * m / (v.sqrt() + self.gamma)
