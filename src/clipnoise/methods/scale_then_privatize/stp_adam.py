"""StP-Adam: scale by the last second moment, privatize, un-scale, then Adam."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.methods.base import (
    Adam,
    Clean,
    ClippedMean,
    OracleMethod,
    Positive,
    PrivateMethod,
    Public,
    Released,
    State,
    Tensor,
)


@dataclass(frozen=True, kw_only=True)
class LastMomentScale(Adam):
    """Base of StP-Adam and its oracle: s_t = 1/(√v̂_{t−1} + γ1)."""

    gamma_scale: Positive = 1e-3

    def scale(self, state: State, public: Public) -> Tensor:
        past_steps = state.step - 1
        v = state["v"] / (1 - self.betas[1] ** past_steps) if past_steps else state["v"]
        return 1 / (v.sqrt() + self.gamma_scale)


@dataclass(frozen=True, kw_only=True)
class StPAdam(LastMomentScale, PrivateMethod):
    """Clip s_t ⊙ g_i with s_t = 1/(√v̂_{t−1} + γ1), then DP-Adam with γ2 on g = u_t/s_t.

    With v̂_0 = 0 the first scale is the constant 1/γ1, so γ1 is a real hyper-parameter.

    Source: On Design Principles for Private Adaptive Optimizers, Algorithm 8.
    """

    id = "stp-adam"
    query = ClippedMean()

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        g = released[0] / self.scale(state, public)
        return self.descend(*state.moments(g, self.betas))


@dataclass(frozen=True, kw_only=True)
class StPNoiseless(LastMomentScale, OracleMethod):
    """StP-Adam with m from the noisy and v from the clean clipped mean gradient. Non-private.

    Source: On Design Principles for Private Adaptive Optimizers, Algorithm 8 with the noiseless
    preconditioner of section 4.1.
    """

    id = "stp-noiseless"
    query = ClippedMean()

    def oracle_update(
        self, released: tuple[Released, ...], state: State, public: Public, clean: Clean
    ) -> Tensor:
        s = self.scale(state, public)
        return self.update_from(released[0] / s, (clean.values[0] / s).square(), state)
