"""Adam with independently released moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.fields import Decay, NonNegative
from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import IndependentMoments, IndependentMomentsForFree

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class IMEAdam(PrivateMethod):
    """m from ḡ + √2(σC/B)z¹, v from ḡ² + √2(2B+1)(C²/B²)σz²; θ ← θ − η m̂/(√max(v̂, 0) + γ).

    ḡ is projected onto the ball of radius C before it is squared. `for_free` leaves out both √2:
    what a second moment at no cost would bring. Non-private then.

    Source: On Design Principles for Private Adaptive Optimizers, Algorithm 6.
    """

    id = "ime-adam"
    query = IndependentMoments()

    betas: tuple[Decay, Decay] = (0.9, 0.999)
    gamma: NonNegative = 1e-8
    for_free: bool = False

    def __post_init__(self) -> None:
        if self.for_free:
            object.__setattr__(self, "query", IndependentMomentsForFree())

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        g, g_squared = released
        m = state.average("m", g, self.betas[0])
        v = state.average("v", g_squared, self.betas[1])
        return -self.learning_rate * m / (v.clamp(min=0).sqrt() + self.gamma)
