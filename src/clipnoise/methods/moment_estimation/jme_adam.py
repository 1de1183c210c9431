"""Adam with jointly released moments, under replace adjacency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clipnoise.fields import Decay, NonNegative, Positive
from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import JointMoments, JointMomentsAsPublished

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class JMEAdam(PrivateMethod):
    """Release (ḡ, cḡ²) as one vector; m and v from its halves; θ ← θ − η m̂/(√max(v̂, 0) + γ).

    c is `moment_weight`, 1/(2C²) unless given. Its ε is for replacing an example, not comparable
    with add/remove. `accounting: as-published` adds noise for the sensitivity 2C/B of ḡ alone: that
    holds for the square of one gradient, not of a mean of several, so it is marked non-private.

    Source: On Design Principles for Private Adaptive Optimizers, section 3.2; Kalinin et al. 2025.
    """

    id = "jme-adam"
    query = JointMoments()

    betas: tuple[Decay, Decay] = (0.9, 0.999)
    gamma: NonNegative = 1e-8
    moment_weight: Positive | None = None
    accounting: Literal["corrected", "as-published"] = "corrected"

    def __post_init__(self) -> None:
        largest = 1 / (2 * self.clip_norm**2)
        if self.moment_weight is not None and self.moment_weight > largest:
            raise ValueError(f"moment_weight must be at most 1/(2C²) = {largest:.6g}")
        kind = JointMoments if self.accounting == "corrected" else JointMomentsAsPublished
        object.__setattr__(self, "query", kind(self.moment_weight))

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        g, g_squared = released
        m = state.average("m", g, self.betas[0])
        v = state.average("v", g_squared, self.betas[1])
        return -self.learning_rate * m / (v.clamp(min=0).sqrt() + self.gamma)
