"""RMSProp without privacy: for warm starts on public data, and as a reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.fields import Decay, NonNegative
from clipnoise.methods.base import Public, SingleRateMethod, State
from clipnoise.privacy.queries import PlainMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class RMSProp(SingleRateMethod):
    """v ← βv + (1−β)ḡ²; θ ← θ − η ḡ/(√v + γ), with ḡ the plain mean gradient.

    Source: Hinton, Srivastava and Swersky 2012; AdaDPS, section 4.
    """

    id = "rmsprop"
    query = PlainMean()

    beta: Decay = 0.9
    gamma: NonNegative = 1e-8

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        v = state.decay("v", g.square(), self.beta)
        return -self.learning_rate * g / (v.sqrt() + self.gamma)
