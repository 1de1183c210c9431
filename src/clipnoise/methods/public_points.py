"""Gradients at points that are computed from releases: ahead of θ, or uphill of it.

DPZero steps along a public random direction by forward passes alone; DP-SAT climbs along the last
release, or back along its step; DiSK and FiBeR filter gradients that are taken here and ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from clipnoise.methods.base import (
    ClippedLossMean,
    ClippedMean,
    Momentum,
    NonNegative,
    Positive,
    PrivateMethod,
    Probability,
    Public,
    Released,
    State,
    Tensor,
    unhashed_at,
)
from clipnoise.methods.filters import Coefficients, Correction, FilteredAdam, pass_noise_on


@dataclass(frozen=True, kw_only=True)
class DPZero(PrivateMethod):
    """θ ← θ − ηs̃_t u_t along a direction u_t of standard normal numbers, which is public.

    s_i = (f_i(θ_t + λu_t) − f_i(θ_t − λu_t))/(2λ) is one number for each example, and s̃_t =
    (Σ clip(s_i) + σCz)/B with one normal number z. The option `smoothing` is λ. Both passes are
    forward passes.

    Source: Zhang et al. 2024 (DPZero, arXiv 2310.09639), as in the authors' code, Liang137/DPZero,
    optimizers/dpzero.py. (There s_t gets another noise for each tensor of parameters, and their
    average reveals more than one of them does: here a single noisy number is released.)
    """

    id = "dpzero"
    query = ClippedLossMean()

    smoothing: Positive = 1e-3

    def passes(self) -> int:
        return 2

    def points(
        self, iterates: Sequence[Tensor], state: State, public: Public
    ) -> Sequence[tuple[float, Tensor]]:
        (theta,), u, size = iterates, public.direction(state), self.smoothing
        return [(1 / (2 * size), theta + size * u), (-1 / (2 * size), theta - size * u)]

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (s,) = released
        return -self.learning_rate * s * public.direction(state)


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


@dataclass(frozen=True, kw_only=True)
class LookingAhead(PrivateMethod):
    """What DiSK and FiBeR share: v_i = a∇f_i(θ_t + γd_t) + (1−a)∇f_i(θ_t), clipped once.

    d_t = θ_t − θ_{t−1} is how the last step has moved θ, and a = (1−κ)/(κγ). The first step has no
    d: v_i = ∇f_i(θ_1). The option `lookahead` is γ.
    """

    query = ClippedMean()

    kappa: Probability = 0.7
    lookahead: Positive = 0.5

    def iterates(self) -> int:
        return 2

    def points(
        self, iterates: Sequence[Tensor], state: State, public: Public
    ) -> Sequence[tuple[float, Tensor]]:
        theta, *past = iterates
        if not past:
            return [(1.0, theta)]
        a = (1 - self.kappa) / (self.kappa * self.lookahead)
        return [(a, theta + self.lookahead * (theta - past[0])), (1 - a, theta)]


@dataclass(frozen=True, kw_only=True)
class KalmanFiltered(LookingAhead):
    """What DiSK with any update shares: the filter keeps m_t = (1−κ)m_{t−1} + κg̃_t, m_1 = g̃_1.

    It predicts the change of the gradient from v_i.
    """

    def filtered(self, g: Tensor, state: State) -> Tensor:
        """Return m ← (1−κ)m + κg, shape (d,); g itself in the first step."""
        kept = state["kalman"] if state.step > 1 else g
        state["kalman"] = (1 - self.kappa) * kept + self.kappa * g
        return state["kalman"]


@dataclass(frozen=True, kw_only=True)
class DiSK(KalmanFiltered):
    """DP-SGD with the Kalman filter: θ ← θ − ηm_t.

    v_i = a∇f_i(θ_t + γd_t) + (1−a)∇f_i(θ_t) with d_t = θ_t − θ_{t−1} and a = (1−κ)/(κγ);
    m_t = (1−κ)m_{t−1} + κg̃_t.

    Source: Zhang et al. 2024 (DiSK, arXiv 2410.03883), as stated with the authors' code in
    Opacus, research/disk_optimizer/ReadMe.md; m_1 as in KFoptimizer.py there. (Where a is not 1,
    that code divides the noise multiplier by √(a² + (1−a)²), for which the clip of v_i gives no
    reason: here the noise is that of C.)
    """

    id = "disk"

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        return -self.learning_rate * self.filtered(g, state)


@dataclass(frozen=True, kw_only=True)
class DiSKAdam(KalmanFiltered, FilteredAdam):
    """Adam on what the Kalman filter of DiSK returns.

    v_i and m_t are those of disk; m_t takes the place of g̃_t in Adam. The filter leaves the share
    A = κ/(2−κ) of the noise. `noise_correction: stationary` takes AΦ off v̂, and `exact` what the
    noise of each step has added in expectation: more at first, because m_1 = g̃_1; then the root is
    that of max(v̂ − …, γ′).

    Source: Zhang et al. 2024 (DiSK, arXiv 2410.03883), as stated with the authors' code in
    Opacus, research/disk_optimizer/ReadMe.md, and KFoptimizer.py there, which hands m_t to any
    optimizer; Dm et al. 2026 (FiBeR, arXiv 2605.03425) for the correction.
    """

    id = "disk-adam"

    # At their defaults the method is what it always was.
    noise_correction: Annotated[Correction, unhashed_at("none")] = "none"
    gamma_prime: Annotated[Positive, unhashed_at(1e-8)] = 1e-8

    def stationary_gain(self) -> float:
        return self.kappa / (2 - self.kappa)

    def exact_gain(self, state: State) -> float:
        entering = self.clip_norm / (self.kappa if state.step == 1 else 1)  # so that m_1 = g̃_1
        variance, _ = pass_noise_on((self.kappa - 1,), (self.kappa,), entering**2, state)
        return variance / self.clip_norm**2


@dataclass(frozen=True, kw_only=True)
class FiBeR(FilteredAdam, LookingAhead):
    """Filter the innovations of DiSK's two points: r ← (1−ω)r + ω(g̃ − x), x ← x + r; AdamW on x.

    v_i = a∇f_i(θ_t + γd_t) + (1−a)∇f_i(θ_t) with d_t = θ_t − θ_{t−1} and a = (1−κ)/(κγ), and
    θ ← θ − η (m̂/(√max(v̂ − A(ω)Φ, γ′) + γ₀) + λθ) with the moments of x, from x = r = 0. The filter
    leaves the share A(ω) = (2−ω)/(4−3ω) of the variance of noise once it has run for long. The
    options `lookahead`, `gamma_prime` and `gamma` are γ, γ′ and γ₀. Beyond the paper:
    `noise_correction: exact` takes off what the noise adds to v̂ in expectation at each step, which
    is less at first, because x begins at 0; `none` takes off nothing.

    Source: Dm et al. 2026 (FiBeR, arXiv 2605.03425), as stated in junaidaliop/zij, math/fiber.md;
    A(ω) is derived again in the tests. κ, γ and ω have no values there: those of DiSK stand here,
    ω at its κ.
    """

    id = "fiber"

    omega: Probability = 0.7
    weight_decay: NonNegative = 0.0
    noise_correction: Correction = "stationary"

    def filtered(self, g: Tensor, state: State) -> Tensor:
        """Return x ← x + r with r ← (1−ω)r + ω(g − x), shape (d,)."""
        state["r"] = (1 - self.omega) * state["r"] + self.omega * (g - state["x"])
        state["x"] = state["x"] + state["r"]
        return state["x"]

    def coefficients(self) -> tuple[Coefficients, Coefficients]:
        """Return a and b of the same filter as one recursion for x."""
        return (-2 * (1 - self.omega), 1 - self.omega), (self.omega,)

    def stationary_gain(self) -> float:
        return (2 - self.omega) / (4 - 3 * self.omega)

    def exact_gain(self, state: State) -> float:
        variance, _ = pass_noise_on(*self.coefficients(), self.clip_norm**2, state)
        return variance / self.clip_norm**2

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        decayed = self.learning_rate * self.weight_decay * state.theta
        return super().update(released, state, public) - decayed
