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

    Φ′ is `phi`; left out, it is the variance Φ = (σC/B)² that noise would have had.

    Source: DP-AdamBC, section 3 and Figure 2 (right).
    """

    id = "clipped-adam-biased"
    query = CleanClippedMean()

    betas: tuple[Decay, Decay] = (0.9, 0.999)
    gamma: NonNegative = 1e-8
    phi: NonNegative | None = None

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        m, v = state.moments(g, self.betas)
        bias = public.noise_variance(self.clip_norm) if self.phi is None else self.phi
        return -self.learning_rate * m / ((v + bias).sqrt() + self.gamma)
