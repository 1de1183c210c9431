"""DP-SAT with momentum: sharpness-aware training whose ascent takes the last step back."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.methods.base import Momentum, NonNegative, Public, Released, State, Tensor
from clipnoise.methods.public_points.dp_sat import DPSAT


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
