"""PDA-DPMD: from the released gradient to the public one along a cosine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import ClippedMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class PDADPMD(PrivateMethod):
    """α_t = cos(πt/2T); θ ← θ − η(α_t g̃ + (1−α_t)ĝ).

    Source: Amid et al. 2022, the first-order approximation; AdaDPS, section 6.1.1.
    """

    id = "pda-dpmd"
    query = ClippedMean()
    uses_public_gradient = True

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        alpha = math.cos(math.pi * state.step / (2 * public.total_steps))
        return -self.learning_rate * (alpha * g + (1 - alpha) * public.require("gradient"))
