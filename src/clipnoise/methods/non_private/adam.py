"""Adam without privacy: the reference that shows what privacy costs."""

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
class Adam(SingleRateMethod):
    """θ ← θ − η m̂/(√v̂ + γ) on the plain mean gradient.

    Source: Kingma and Ba 2015, Algorithm 1; On Design Principles for Private Adaptive Optimizers,
    Algorithm 4.
    """

    id = "adam"
    query = PlainMean()

    betas: tuple[Decay, Decay] = (0.9, 0.999)
    gamma: NonNegative = 1e-8

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        m, v = state.moments(g, self.betas)
        return -self.learning_rate * m / (v.sqrt() + self.gamma)
