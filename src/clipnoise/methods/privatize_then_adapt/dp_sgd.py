"""DP-SGD: alone, with momentum, and from a start that was trained on public data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from clipnoise.methods.base import (
    SGD,
    ClippedMean,
    Count,
    Decay,
    Momentum,
    NonNegative,
    Positive,
    PrivateMethod,
    Public,
    Released,
    State,
    Tensor,
    UserError,
    WarmStart,
)
from clipnoise.methods.non_private import PlainRMSProp


@dataclass(frozen=True, kw_only=True)
class DPSGD(SGD, PrivateMethod):
    """θ ← θ − η g̃ with g̃ = (Σ clip(g_i) + σCz)/B.

    Source: Abadi et al. 2016, Algorithm 1.
    """

    id = "dp-sgd"
    query = ClippedMean()


@dataclass(frozen=True, kw_only=True)
class DPSGDM(Momentum, PrivateMethod):
    """b ← βb + g̃; θ ← θ − η_t b.

    η_t = η, or with `schedule: adam-equivalent` η_t = η(1−β)/((1−β^t)√Φ): what DP-Adam does where
    the noise dominates its second moment. (The paper prints b = (1−β)/(1−β^t)·m̂; it is
    m̂ = (1−β)/(1−β^t)·b.) With tree noise this is DP-FTRLM without restarts: there
    θ_t = θ_0 − ηm_t and m_t = βm_{t−1} + Σ_{i≤t} g̃_i, and m_t − m_{t−1} is b.

    Source: DP-AdamBC, section 3 and equation 3; Kairouz et al. 2021 (DP-FTRL, arXiv 2103.00039), as
    in the authors' code, google-research/DP-FTRL, optimizers.py.
    """

    id = "dp-sgdm"
    query = ClippedMean()

    schedule: Literal["constant", "adam-equivalent"] = "constant"

    def rate(self, t: int, public: Public) -> float:
        """Return η_t.

        Raises:
            UserError: the schedule divides by the standard deviation of noise that is not there.
        """
        if self.schedule == "constant":
            return self.learning_rate
        phi = public.noise_variance(self.clip_norm)
        if phi == 0:
            raise UserError(
                "dp-sgdm.schedule: adam-equivalent divides by the noise, so the noise multiplier "
                "must not be 0. Allowed without noise: constant."
            )
        beta = self.momentum
        return self.learning_rate * (1 - beta) / ((1 - beta**t) * math.sqrt(phi))

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        return -self.rate(state.step, public) * self.velocity(g, state)


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
        rmsprop = PlainRMSProp(
            learning_rate=self.warm_learning_rate, beta=self.beta, gamma=self.gamma
        )
        return WarmStart(rmsprop, self.warm_epochs, self.warm_batch_size)
