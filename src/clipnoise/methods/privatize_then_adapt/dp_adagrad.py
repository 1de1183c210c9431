"""DP-AdaGrad: AdaGrad on the released gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import ClippedMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class DPAdaGrad(PrivateMethod):
    """ν ← ν + g̃²; θ ← θ − η g̃/√ν, where 0/0 = 0.

    Source: On Design Principles for Private Adaptive Optimizers, Algorithm 3 on the released
    gradient; AdaDPS, appendix C.1.
    """

    id = "dp-adagrad"
    query = ClippedMean()

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        state["v"] = state["v"] + g.square()
        root = state["v"].sqrt()
        return -self.learning_rate * g / root.masked_fill(root == 0, 1.0)
