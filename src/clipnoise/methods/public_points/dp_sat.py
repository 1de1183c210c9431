"""DP-SAT: sharpness-aware training that climbs along the last release, or back along its step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clipnoise.methods.base import (
    ClippedMean,
    Momentum,
    NonNegative,
    PrivateMethod,
    Public,
    Released,
    State,
    Tensor,
)


@dataclass(frozen=True, kw_only=True)
class DPSAT(PrivateMethod):
    """v_i = ∇f_i(θ_t + ρg̃_{t−1}/‖g̃_{t−1}‖), with g̃_0 = 0; θ ← θ − ηg̃_t.

    Sharpness-aware training climbs along the gradient of the same batch, which is private. The last
    release is public: the climb costs neither privacy nor a second pass.

    Source: Park et al., ICML 2023 (DP-SAT, arXiv 2306.05651), as in the authors' code,
    JinseongP/DPSAT, src/optim/minimizer.py, class DPSAT.
    """

    id = "dp-sat"
    query = ClippedMean()

    rho: NonNegative = 0.01

    def points(
        self, iterates: Sequence[Tensor], state: State, public: Public
    ) -> Sequence[tuple[float, Tensor]]:
        g = state["g"]
        length = g.norm()
        return [(1.0, iterates[0] + self.rho * g / (length + (length == 0)))]

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        state["g"] = g
        return -self.learning_rate * g


@dataclass(frozen=True, kw_only=True)
class DPSATMomentum(Momentum, DPSAT):
    """v_i = ∇f_i(θ_t + ρb_{t−1}/‖b_{t−1}‖), with b_0 = 0; b ← βb + g̃; θ ← θ − ηb.

    The climb is towards θ_{t−1}, because θ_{t−1} − θ_t = ηb_{t−1}. Without momentum (β = 0) this is
    dp-sat.

    Source: Park et al., ICML 2023 (DP-SAT, arXiv 2306.05651), as in the authors' code,
    JinseongP/DPSAT, src/optim/minimizer.py, class DPSATMomentum; ρ and β as in
    examples/EX_CIFAR10_DPSATMomentum_DPNASNet_EPS3.ipynb there.
    """

    id = "dp-sat-momentum"

    rho: NonNegative = 0.1

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        state["g"] = self.velocity(g, state)  # what the next step climbs along
        return -self.learning_rate * state["g"]
