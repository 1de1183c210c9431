"""DP-AdamW-BC: DP-AdamBC with the weight decay of AdamW."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.methods.base import NonNegative, Public, Released, State, Tensor
from clipnoise.methods.privatize_then_adapt.dp_adambc import DPAdamBC


@dataclass(frozen=True, kw_only=True)
class DPAdamWBC(DPAdamBC):
    """θ ← θ − η (m̂/√max(v̂ − Φ, γ′) + λθ): DP-AdamBC whose weight decay passes through no moment.

    The options of dp-adambc are options here, too.

    Source: Chooi et al. 2025 (DP-AdamW, arXiv 2511.07843), DP-AdamW-BC, as in the code of Opake,
    dp_adamw.py, which names its Algorithm 2 and adds an ε to the root; here γ′ alone keeps it from
    zero, as in DP-AdamBC.
    """

    id = "dp-adamw-bc"

    weight_decay: NonNegative = 0.01

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        decayed = self.learning_rate * self.weight_decay * state.theta
        return super().update(released, state, public) - decayed
