"""DP-SGD with momentum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clipnoise.errors import UserError
from clipnoise.fields import Decay
from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import ClippedMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class DPSGDM(PrivateMethod):
    """b ← βb + g̃; θ ← θ − η_t b.

    η_t = η, or with `schedule: adam-equivalent` η_t = η(1−β)/((1−β^t)√Φ): what DP-Adam does where
    the noise dominates its second moment. (The paper prints b = (1−β)/(1−β^t)·m̂; it is
    m̂ = (1−β)/(1−β^t)·b.)

    Source: DP-AdamBC, section 3 and equation 3.
    """

    id = "dp-sgdm"
    query = ClippedMean()

    momentum: Decay = 0.9
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
        state["b"] = self.momentum * state["b"] + g
        return -self.rate(state.step, public) * state["b"]
