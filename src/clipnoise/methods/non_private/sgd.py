"""SGD without privacy: the reference that shows what privacy costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.fields import Decay
from clipnoise.methods.base import Public, SingleRateMethod, State
from clipnoise.privacy.queries import PlainMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class SGD(SingleRateMethod):
    """b ← βb + ḡ; θ ← θ − η b, with ḡ the plain mean gradient. Without momentum β is 0.

    Source: Robbins and Monro 1951; momentum as in DP-AdamBC, section 3.
    """

    id = "sgd"
    query = PlainMean()

    momentum: Decay = 0.0

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        if self.momentum:
            state["b"] = self.momentum * state["b"] + g
            return -self.learning_rate * state["b"]
        return -self.learning_rate * g
