"""Adam on clipped gradients with a bias put into its second moment: what the bias alone does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.fields import Decay, NonNegative
from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import CleanClippedMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class ClippedAdamBiased(PrivateMethod):
    """No noise; θ ← θ − η m̂/(√(v̂ + Φ′) + γ) on the clipped mean. Non-private.

    Φ′ is `phi`, for example the variance Φ = (σC/B)² of the noise that a private run would add.

    Source: DP-AdamBC, section 3 and Figure 2 (right).
    """

    id = "clipped-adam-biased"
    query = CleanClippedMean()

    betas: tuple[Decay, Decay] = (0.9, 0.999)
    gamma: NonNegative = 1e-8
    phi: NonNegative

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        m, v = state.moments(g, self.betas)
        return -self.learning_rate * m / ((v + self.phi).sqrt() + self.gamma)
