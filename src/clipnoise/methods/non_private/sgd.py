"""SGD without privacy: the reference that shows what privacy costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.methods.base import Public, SingleRateMethod, State
from clipnoise.privacy.queries import PlainMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class SGD(SingleRateMethod):
    """θ ← θ − η ḡ, with ḡ the plain mean gradient.

    Source: Robbins and Monro 1951.
    """

    id = "sgd"
    query = PlainMean()

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        return -self.learning_rate * g
