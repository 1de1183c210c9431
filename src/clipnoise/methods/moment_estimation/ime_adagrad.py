"""AdaGrad with independently released moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import IndependentMoments, IndependentMomentsForFree

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class IMEAdaGrad(PrivateMethod):
    """ν ← ν + (ḡ² with noise of its own); θ ← θ − η g̃/max(1, √max(ν, 0)).

    Source: On Design Principles for Private Adaptive Optimizers, section 3.2 and the
    one-dimensional study of section 5.
    """

    id = "ime-adagrad"
    query = IndependentMoments()

    for_free: bool = False

    def __post_init__(self) -> None:
        if self.for_free:
            object.__setattr__(self, "query", IndependentMomentsForFree())

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        g, g_squared = released
        state["v"] = state["v"] + g_squared
        return -self.learning_rate * g / state["v"].clamp(min=1).sqrt()
