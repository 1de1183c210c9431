"""Schedule-Free SGD and AdamW: gradients at y, a model x that averages the iterates z."""

from __future__ import annotations

import math
from dataclasses import dataclass

from clipnoise.methods.base import (
    ClippedMean,
    Decay,
    NonNegative,
    PrivateMethod,
    Public,
    Released,
    State,
    Tensor,
)


@dataclass(frozen=True, kw_only=True)
class ScheduleFree(PrivateMethod):
    """What both share: gradients are taken at y = (1−β)z + βx, and x is the model.

    z and x start at θ_0, from which the state has their distances: θ is y. The average takes the
    place of a schedule of η, and its weights are those of an η that is the same at every step.
    """

    query = ClippedMean()
    may_change = ("weight_decay", "clip_norm")

    beta: Decay = 0.9

    def advance(self, step: Tensor, c: float, state: State) -> Tensor:
        """Take z ← z − step and x ← (1−c)x + cz, and return the change of y, shape (d,)."""
        before = self._y(state)
        state["z"] = state["z"] - step
        state["x"] = (1 - c) * state["x"] + c * state["z"]
        return self._y(state) - before

    def evaluated(self, theta: Tensor, state: State) -> Tensor:
        return theta + (state["x"] - self._y(state))

    def _y(self, state: State) -> Tensor:
        return (1 - self.beta) * state["z"] + self.beta * state["x"]


@dataclass(frozen=True, kw_only=True)
class DPScheduleFree(ScheduleFree):
    """z ← z − η g̃(y), x ← (1−1/t)x + z/t, y = (1−β)z + βx; the model is x, the mean of all z.

    Source: Defazio et al. 2024 (The Road Less Scheduled), section 1, on the released gradient, with
    the weight 1/t of its released code (SGDScheduleFreeReference): θ_0 is not part of the mean.
    """

    id = "dp-schedule-free"

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        return self.advance(self.learning_rate * g, 1 / state.step, state)


@dataclass(frozen=True, kw_only=True)
class DPScheduleFreeAdamW(ScheduleFree):
    """z ← z − η_t (g̃/(√v + γ) + λy), x ← (1−c_t)x + c_t z, y = (1−β)z + βx; the model is x.

    v ← β2 v + (1−β2) g̃², η_t = η√(1−β2^t) and c_t = η_t²/Σ_{i≤t} η_i², without a warm-up.

    Source: Defazio et al. 2024 (The Road Less Scheduled), Algorithm 1, on the released gradient;
    its released code (AdamWScheduleFreePaper).
    """

    id = "dp-schedule-free-adamw"

    beta2: Decay = 0.999
    gamma: NonNegative = 1e-8
    weight_decay: NonNegative = 0.0

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        t, correction = state.step, 1 - self.beta2**state.step
        direction = g / (state.decay("v", g.square(), self.beta2).sqrt() + self.gamma)
        direction = direction + self.weight_decay * state.theta
        total = t - self.beta2 * correction / (1 - self.beta2)  # Σ_{i≤t} (1 − β2^i)
        rate = self.learning_rate * math.sqrt(correction)
        return self.advance(rate * direction, correction / total, state)
