"""DP-PMLF: per-sample momentum before the clip, a low-pass filter after the noise.

With its two halves alone, LP-DPSGD, and InnerOuter, which has ordinary momentum for the filter; and
with Adam after the filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clipnoise.methods.base import (
    SGD,
    ClippedMean,
    Count,
    Fraction,
    Momentum,
    PrivateMethod,
    Public,
    Released,
    State,
    Tensor,
)
from clipnoise.methods.filters import FilteredAdam, noise_gain, pass_noise_on, recurse


@dataclass(frozen=True, kw_only=True)
class LowPassFiltered(PrivateMethod):
    """What LP-DPSGD and DP-PMLF share: θ ← θ − η m_t/c_t.

    m_t = −Σ_{r=1..n_a} a_r m_{t−r} + Σ_{r=0..n_b} b_r g̃_{t−r}, and the normaliser c_t is the same
    recursion on a constant input of 1. The filter is post-processing.

    Source: DP-PMLF, Algorithm 1, lines 9 to 12 and equation 3.
    """

    query = ClippedMean()

    filter_a: tuple[float, ...] = (-0.9,)
    filter_b: tuple[float, ...] = (0.1,)

    def __post_init__(self) -> None:
        total = sum(self.filter_b) - sum(self.filter_a)
        if abs(total - 1) > 1e-9:
            raise ValueError(
                f"filter_a and filter_b must satisfy −Σa + Σb = 1, but the sum is {total:.10g}"
            )
        if not self.filter_b or self.filter_b[0] == 0:
            raise ValueError("filter_b must begin with a b_0 other than 0, because c_1 = b_0")

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        m, c = self.low_passed(g, state)
        return -self.learning_rate * m / c

    def low_passed(self, g: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Return m_t, shape (d,), and c_t, shape ()."""
        return recurse("m", g, self.filter_a, self.filter_b, state), self.normaliser(state)

    def normaliser(self, state: State) -> Tensor:
        """Return c_t, shape ()."""
        return recurse("c", state.theta.new_ones(()), self.filter_a, self.filter_b, state)


@dataclass(frozen=True, kw_only=True)
class LPDPSGD(LowPassFiltered):
    """DP-SGD with a low-pass filter on the released gradient.

    θ ← θ − η m_t/c_t with m_t = −Σ a_r m_{t−r} + Σ b_r g̃_{t−r}.

    Source: Zhang et al. 2024 (DOPPLER); DP-PMLF, Algorithm 1 with k = 1.
    """

    id = "lp-dpsgd"


@dataclass(frozen=True, kw_only=True)
class LowPassAdam(FilteredAdam, LowPassFiltered):
    """What LP-DPAdam and DP-PMLF with Adam share: Adam on m_t/c_t."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_correction != "none":
            self.stationary_gain()  # refuses a filter that is not stable

    def filtered(self, g: Tensor, state: State) -> Tensor:
        m, c = self.low_passed(g, state)
        return m / c

    def stationary_gain(self) -> float:
        return noise_gain(self.filter_a, self.filter_b)

    def exact_gain(self, state: State) -> float:
        variance, c = pass_noise_on(self.filter_a, self.filter_b, self.clip_norm**2, state)
        return variance / (c * self.clip_norm) ** 2


@dataclass(frozen=True, kw_only=True)
class LPDPAdam(LowPassAdam):
    """Adam on the low-pass filtered gradient m_t/c_t of lp-dpsgd, which takes the place of g̃_t.

    The filter leaves the share A = Σ_r h_r² of the noise, h its impulse response: 0.053 at the
    default coefficients. `noise_correction: stationary` takes AΦ off v̂, and `exact` what the noise
    of each step has added in expectation; then the root is that of max(v̂ − …, γ′). The correction
    is that of FiBeR, which states that A can be computed for any stable linear filter.

    Source: Zhang et al. 2024 (DOPPLER, arXiv 2408.13460), whose filter goes before any optimizer;
    Dm et al. 2026 (FiBeR, arXiv 2605.03425) for the correction.
    """

    id = "lp-dpadam"


@dataclass(frozen=True, kw_only=True)
class DPPMLFWithoutMomentum(LPDPSGD):
    """DP-PMLF without per-sample momentum: LP-DPSGD under the name of the ablation.

    Source: DP-PMLF, ablation studies and Figure 3 (w/o PM).
    """

    id = "dp-pmlf-wo-pm"


@dataclass(frozen=True, kw_only=True)
class PerSampleMomentum(PrivateMethod):
    """What DP-PMLF and its ablation share: v_i = Σ_j β̂^j ∇f_i(θ_{t−j}), clipped once.

    β̂^j = β^j/Σ_{j′} β^{j′} over the last k iterates, fewer at the start; the current iterate has
    the largest weight. The momentum of an example is recomputed at stored iterates, which are
    public, in each step that draws the example: so it enters each step once, with norm at most C.

    Source: DP-PMLF, Algorithm 1, lines 1 to 8.
    """

    beta: Fraction = 0.1
    history: Count = 2

    def iterates(self) -> int:
        return self.history

    def points(
        self, iterates: Sequence[Tensor], state: State, public: Public
    ) -> Sequence[tuple[float, Tensor]]:
        powers = [self.beta**j for j in range(len(iterates))]
        return [(power / sum(powers), theta) for power, theta in zip(powers, iterates, strict=True)]


@dataclass(frozen=True, kw_only=True)
class DPPMLF(PerSampleMomentum, LowPassFiltered):
    """Normalised per-sample momentum over k iterates, then the low-pass filter.

    v_i = Σ_j β̂^j ∇f_i(θ_{t−j}); g̃_t = (Σ clip(v_i) + σCz)/B; θ ← θ − η m_t/c_t with
    m_t = −Σ a_r m_{t−r} + Σ b_r g̃_{t−r} and c_t the same recursion on a constant 1.

    Source: DP-PMLF, Algorithm 1.
    """

    id = "dp-pmlf"


@dataclass(frozen=True, kw_only=True)
class DPPMLFAdam(PerSampleMomentum, LowPassAdam):
    """Adam on what DP-PMLF's per-sample momentum and low-pass filter return, m_t/c_t.

    With `noise_correction` it is DP-AdamBC after DP-PMLF: v̂ loses what the filter has left of the
    noise, AΦ or, with `exact`, what it is at each step. The options are those of dp-pmlf and
    lp-dpadam.

    Source: DP-PMLF, Algorithm 1, lines 1 to 11; DP-AdamBC, Algorithm 1, with the noise after the
    filter as in Dm et al. 2026 (FiBeR, arXiv 2605.03425). Together they are of this suite.
    """

    id = "dp-pmlf-adam"


@dataclass(frozen=True, kw_only=True)
class DPPMLFReleased(DPPMLF):
    """DP-PMLF with the weights, iterates and normaliser of the authors' optimizer.

    v_i = Σ_j w_j ∇f_i(θ_{t−j}) at j = 0, 2, …, k, with w proportional to β^{k−1}, 1, β, …, β^{k−2}:
    θ_t has the smallest weight, θ_{t−1} none, and the first iterate stands for all before it. c_t
    is the filter of a constant that begins one step early: c_1 = b_0 + b_1. Clip and noise are
    those of dp-pmlf.

    Source: DP-PMLF, Algorithm 1 as released in combined_optimizer.py. (The released training script
    steps with the sum of k gradients, each normalised by itself: there β plays no part.)
    """

    id = "dp-pmlf-released"

    def iterates(self) -> int:
        return self.history + 1 if self.history > 1 else 1

    def points(
        self, iterates: Sequence[Tensor], state: State, public: Public
    ) -> Sequence[tuple[float, Tensor]]:
        k, last = self.history, len(iterates) - 1
        powers = [self.beta ** (k - 1), 0.0, *(self.beta**j for j in range(k - 1))]
        weights = [power / sum(powers) for power in powers]
        return list(zip((*weights[:last], sum(weights[last:])), iterates, strict=True))

    def normaliser(self, state: State) -> Tensor:
        passed = state.theta.new_full((), sum(self.filter_b[: state.step + 1]))
        return recurse("c", passed, self.filter_a, (1.0,), state)


@dataclass(frozen=True, kw_only=True)
class DPPMLFWithoutFilter(SGD, PerSampleMomentum):
    """DP-PMLF without the low-pass filter: θ ← θ − η g̃.

    v_i = Σ_j β̂^j ∇f_i(θ_{t−j}); g̃_t = (Σ clip(v_i) + σCz)/B.

    Source: DP-PMLF, ablation studies and Figure 3 (w/o LF).
    """

    id = "dp-pmlf-wo-lf"
    query = ClippedMean()


@dataclass(frozen=True, kw_only=True)
class InnerOuter(Momentum, PrivateMethod):
    """v_i = Σ_j β^j ∇f_i(θ_{t−j}) over k iterates; m ← β_o m + g̃; θ ← θ − η m.

    Source: Xiao et al. 2023 (inner-outer momentum), as compared in DP-PMLF.
    """

    id = "innerouter"
    query = ClippedMean()

    beta: Fraction = 0.1
    history: Count = 2

    def iterates(self) -> int:
        return self.history

    def points(
        self, iterates: Sequence[Tensor], state: State, public: Public
    ) -> Sequence[tuple[float, Tensor]]:
        return [(self.beta**j, theta) for j, theta in enumerate(iterates)]
