"""DP-SGD from a start that was trained on public data."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.fields import Count, Decay, NonNegative, Positive
from clipnoise.methods.base import WarmStart
from clipnoise.methods.non_private.rmsprop import RMSProp
from clipnoise.methods.privatize_then_adapt.dp_sgd import DPSGD


@dataclass(frozen=True, kw_only=True)
class DPSGDWarm(DPSGD):
    """Some epochs of RMSProp on the public examples, then DP-SGD: θ ← θ − η g̃.

    Source: AdaDPS, appendix C.1, Table 7 (DP-SGD w/ warm start).
    """

    id = "dp-sgd-warm"

    warm_epochs: Count = 10
    warm_learning_rate: Positive = 1e-3
    warm_batch_size: Count = 64
    beta: Decay = 0.9
    gamma: NonNegative = 1e-8

    def warm_start(self) -> WarmStart:
        rmsprop = RMSProp(learning_rate=self.warm_learning_rate, beta=self.beta, gamma=self.gamma)
        return WarmStart(rmsprop, self.warm_epochs, self.warm_batch_size)
