"""DP-MicroAdam: Adam on the largest coordinates of the last few steps, with error feedback."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Le

from clipnoise.methods.base import (
    ClippedMean,
    Count,
    Decay,
    Positive,
    PrivateMethod,
    Public,
    Released,
    RootScaled,
    State,
    Tensor,
)


@dataclass(frozen=True, kw_only=True)
class DPMicroAdam(RootScaled, PrivateMethod):
    """θ ← θ − η m̂/(√v̂ + γ), m̂ and v̂ from the largest coordinates of the last `window` steps.

    a = e + g̃; u_t is a where it is largest, in the share `density` of each tensor of parameters,
    and 0 elsewhere; e ← a − u_t is what comes later. m̂ = (1−β1)/(1−β1^t)·Σ_r β1^r u_{t−r} and
    v̂ = (1−β2)/(1−β2^t)·Σ_r β2^r u_{t−r}² over the ages r < `window`. e is what is left of released
    values, unlike the error feedback of DiceSGD. Nothing here is quantised.

    Source: Hudişteanu et al. 2025 (DP-MicroAdam, arXiv 2511.20509), as in the authors' code,
    MihaelaHudisteanu/DP-Micro-Adam, dp_optimizers/dp_micro_adam_v1.py, without its weight decay,
    which is 0 there.
    """

    id = "dp-microadam"
    query = ClippedMean()

    betas: tuple[Decay, Decay] = (0.9, 0.999)
    gamma: Positive = 1e-8  # a coordinate that was not among the largest has m̂ = v̂ = 0
    density: Annotated[float, Gt(0), Le(1)] = 0.01
    window: Count = 10

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        accumulated = state["error"] + g
        state[self.slot(state, 0)] = self.largest(accumulated, state)
        state["error"] = accumulated - state[self.slot(state, 0)]
        return self.descend(*(self.moment(power, state) for power in (1, 2)))

    def largest(self, vector: Tensor, state: State) -> Tensor:
        """Return ⌈density·n⌉ coordinates of each tensor of n, and 0 elsewhere, shape (d,)."""
        kept = vector.new_zeros(vector.shape)
        for part, whole in zip(state.split(kept), state.split(vector), strict=True):
            count = math.ceil(self.density * whole.numel())
            indices = whole.flatten().abs().topk(count).indices
            part.view(-1)[indices] = whole.flatten()[indices]
        return kept

    def moment(self, power: int, state: State) -> Tensor:
        """Return m̂ for the power 1 and v̂ for 2, shape (d,)."""
        beta, total = self.betas[power - 1], state.theta.new_zeros(state.theta.shape)
        for r in range(min(state.step, self.window)):
            total.add_(state[self.slot(state, r)] ** power, alpha=beta**r)
        return (1 - beta) / (1 - beta**state.step) * total

    def slot(self, state: State, age: int) -> str:
        """Return the name under which u_{t−r} is kept, r the age."""
        return f"u {(state.step - age) % self.window}"
