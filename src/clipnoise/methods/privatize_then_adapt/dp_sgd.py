"""DP-SGD: the released gradient as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import ClippedMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class DPSGD(PrivateMethod):
    """θ ← θ − η g̃ with g̃ = (Σ clip(g_i) + σCz)/B.

    Source: Abadi et al. 2016, Algorithm 1.
    """

    id = "dp-sgd"
    query = ClippedMean()

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        return -self.learning_rate * g
