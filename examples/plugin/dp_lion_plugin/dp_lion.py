"""DP-Lion: the sign of an interpolated momentum of released gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.methods.base import ClippedMean, Decay, PrivateMethod, Public, State

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.methods.base import Released


@dataclass(frozen=True, kw_only=True)
class DPLion(PrivateMethod):
    """θ ← θ − η sign(β1 m + (1−β1) g̃), then m ← β2 m + (1−β2) g̃.

    Source: Chen et al. 2023, Algorithm 2, on released gradients.
    """

    id = "my-dp-lion"
    query = ClippedMean()  # what is released: sensitivity and noise follow from it

    betas: tuple[Decay, Decay] = (0.9, 0.99)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        direction = self.betas[0] * state["m"] + (1 - self.betas[0]) * g
        state.decay("m", g, self.betas[1])
        return -self.learning_rate * direction.sign()
