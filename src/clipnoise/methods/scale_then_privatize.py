"""Scale each gradient by a released or public vector, then clip and add noise.

AdaDPS scales by public knowledge: a second moment of public gradients, or side information that is
fixed before training. Beside it AdaS, the same without clip and noise, and the ideal, whose public
data are the private ones. The others scale by what earlier steps released: StP-Adam by its last
second moment, DP²-RMSProp by the releases of an earlier phase, AdaClip by mean and deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clipnoise.methods.base import (
    SGD,
    Adam,
    Clean,
    ClipNorm,
    ClippedMean,
    Count,
    Decay,
    Fraction,
    OracleMethod,
    PlainMean,
    Positive,
    PrivateMethod,
    Probability,
    Public,
    Released,
    State,
    Tensor,
    WithClipRule,
    WithSideInformation,
)


@dataclass(frozen=True, kw_only=True)
class SecondMomentScale(SGD):
    """Base of AdaDPS with RMSProp: s_t = 1/(√v_t + γ), with v_t the second moment of a given ĝ.

    The step is taken with the released u_t as it is: there is no un-scaling.

    Source: AdaDPS, Algorithm 1, option 1.
    """

    beta: Decay = 0.9
    gamma: Positive = 1e-3

    def second_moment(self, state: State, g: Tensor) -> Tensor:
        """Return v_t = βv_{t−1} + (1−β)ĝ², leaving the state as it is."""
        return self.beta * state["v"] + (1 - self.beta) * g.square()

    def scale_from(self, state: State, g: Tensor) -> Tensor:
        """Return s_t, shape (d,)."""
        return 1 / (self.second_moment(state, g).sqrt() + self.gamma)


@dataclass(frozen=True, kw_only=True)
class PublicScale(SecondMomentScale):
    """Base of the methods that take the second moment of public gradients."""

    uses_public_gradient = True

    def scale(self, state: State, public: Public) -> Tensor:
        return self.scale_from(state, public.require("gradient"))

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        state["v"] = self.second_moment(state, public.require("gradient"))
        return super().update(released, state, public)


@dataclass(frozen=True, kw_only=True)
class AdaDPSRMSProp(PublicScale, PrivateMethod):
    """v ← βv + (1−β)ĝ² from the public ĝ; clip g_i/(√v + γ); θ ← θ − η u_t.

    Source: AdaDPS, Algorithm 1, option 1, RMSProp.
    """

    id = "adadps-rmsprop"
    query = ClippedMean()


@dataclass(frozen=True, kw_only=True)
class AdaS(PublicScale):
    """v ← βv + (1−β)ĝ² from the public ĝ; θ ← θ − η ḡ/(√v + γ). Non-private.

    Source: AdaDPS, appendix C.2 and Table 9 (AdaS).
    """

    id = "adas"
    query = PlainMean()


@dataclass(frozen=True, kw_only=True)
class AdaDPSIdeal(SecondMomentScale, OracleMethod):
    """v ← βv + (1−β)ḡ² from the clean private mean ḡ; clip g_i/(√v + γ). Non-private.

    An upper bound: AdaDPS with RMSProp whose public data are as good as can be.

    Source: AdaDPS, section 6.1.2 and Table 4 (ideal).
    """

    id = "adadps-ideal"
    query = ClippedMean()

    def oracle_scale(self, state: State, public: Public, gradient: Tensor) -> Tensor:
        return self.scale_from(state, gradient)

    def oracle_update(
        self, released: tuple[Released, ...], state: State, public: Public, clean: Clean
    ) -> Tensor:
        assert clean.gradient is not None  # taken for oracle_scale
        state["v"] = self.second_moment(state, clean.gradient)
        return self.update(released, state, public)


@dataclass(frozen=True, kw_only=True)
class AdaDPSAdaGrad(SGD, PrivateMethod):
    """A² ← A² + ĝ² from the public ĝ; clip g_i/(A + γ); θ ← θ − η u_t.

    Source: AdaDPS, Algorithm 1, option 1, AdaGrad.
    """

    id = "adadps-adagrad"
    query = ClippedMean()
    uses_public_gradient = True

    gamma: Positive = 1e-3

    def sum_of_squares(self, state: State, public: Public) -> Tensor:
        """Return A_t² = A_{t−1}² + ĝ², leaving the state as it is."""
        return state["A squared"] + public.require("gradient").square()

    def scale(self, state: State, public: Public) -> Tensor:
        return 1 / (self.sum_of_squares(state, public).sqrt() + self.gamma)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        state["A squared"] = self.sum_of_squares(state, public)
        return super().update(released, state, public)


@dataclass(frozen=True, kw_only=True)
class AdaDPSAdam(SGD, PrivateMethod):
    """Clip s_t ⊙ (β g_i + (1−β)M_t), s_t = 1/(√v̂_t + γ); θ ← θ − η u_t.

    M_t ← β1 M + (1−β1)ĝ and v_t ← β2 v + (1−β2)ĝ² come from the public ĝ; v̂ is bias-corrected, M
    is not. The single decay β stands for β1 and β2 too unless `betas` gives them.

    Source: AdaDPS, Algorithm 1, option 1, Adam.
    """

    id = "adadps-adam"
    query = ClippedMean()
    uses_public_gradient = True

    beta: Decay = 0.9
    betas: tuple[Decay, Decay] | None = None
    gamma: Positive = 1e-3

    def moments(self, state: State, public: Public) -> tuple[Tensor, Tensor]:
        """Return (M_t, v_t), leaving the state as it is."""
        beta1, beta2 = self.betas or (self.beta, self.beta)
        g = public.require("gradient")
        return (
            beta1 * state["M"] + (1 - beta1) * g,
            beta2 * state["v"] + (1 - beta2) * g.square(),
        )

    def points(
        self, iterates: Sequence[Tensor], state: State, public: Public
    ) -> Sequence[tuple[float, Tensor]]:
        return [(self.beta, iterates[0])]

    def offset(self, state: State, public: Public) -> Tensor:
        m, _ = self.moments(state, public)
        return (1 - self.beta) * m

    def scale(self, state: State, public: Public) -> Tensor:
        _, v = self.moments(state, public)
        _, beta2 = self.betas or (self.beta, self.beta)
        return 1 / ((v / (1 - beta2**state.step)).sqrt() + self.gamma)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        state["M"], state["v"] = self.moments(state, public)
        return super().update(released, state, public)


@dataclass(frozen=True, kw_only=True)
class SideScale(WithSideInformation, SGD):
    """What AdaDPS with side information shares with AdaS: s = 1/(A + γ), fixed before training.

    Source: AdaDPS, Algorithm 1, option 2.
    """

    def scale(self, state: State, public: Public) -> Tensor:
        return 1 / (public.require("side_information") + self.gamma)


@dataclass(frozen=True, kw_only=True)
class AdaDPSSide(SideScale, PrivateMethod):
    """Clip g_i/(A + γ) with A fixed before training; θ ← θ − η u_t.

    Source: AdaDPS, Algorithm 1, option 2.
    """

    id = "adadps-side"
    query = ClippedMean()


@dataclass(frozen=True, kw_only=True)
class AdaSSide(SideScale):
    """θ ← θ − η ḡ/(A + γ) with A fixed before training. Non-private.

    Source: AdaDPS, appendix C.2 and Table 9 (AdaS without public data).
    """

    id = "adas-side"
    query = PlainMean()


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
    preconditioner of section 4.2.
    """

    id = "stp-noiseless"
    query = ClippedMean()

    def oracle_update(
        self, released: tuple[Released, ...], state: State, public: Public, clean: Clean
    ) -> Tensor:
        s = self.scale(state, public)
        return self.update_from(released[0] / s, (clean.values[0] / s).square(), state)


@dataclass(frozen=True, kw_only=True)
class DP2RMSProp(WithClipRule):
    """Cycles of s1 + s2 steps; phase 1 is DP-SGD that gathers, phase 2 scales by what it gathered.

    Phase 1: θ ← θ − η1 g̃ with C1, and G ← G + g̃; at its end v ← βv + (1−β)(G/s1)², G ← 0.
    Phase 2: clip g_i/(√v + γ) to C2; θ ← θ − η2 u_t. There is no bias correction.

    Source: Li et al. 2023 (DP²), Algorithm 1; DP-AdamBC, appendix D.
    """

    id = "dp2-rmsprop"
    query = ClippedMean()

    phase_lengths: tuple[Count, Count]
    learning_rates: tuple[Positive, Positive]
    clip_norms: tuple[ClipNorm, ClipNorm]
    beta: Decay = 0.9
    gamma: Positive = 1e-3

    def phase(self, step: int) -> int:
        """Return the phase of step t, counted from 1: 0 or 1."""
        return int((step - 1) % sum(self.phase_lengths) >= self.phase_lengths[0])

    def clip_norm_at(self, step: int) -> float:
        return self.clip_norms[self.phase(step)]

    def scale(self, state: State, public: Public) -> Tensor | None:
        return 1 / (state["v"].sqrt() + self.gamma) if self.phase(state.step) else None

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (u,) = released
        if self.phase(state.step) == 0:
            state["G"] = state["G"] + u
            if state.step % sum(self.phase_lengths) == self.phase_lengths[0]:
                state.decay("v", (state["G"] / self.phase_lengths[0]).square(), self.beta)
                state["G"] = u.new_zeros(u.shape)
        return -self.learning_rates[self.phase(state.step)] * u


@dataclass(frozen=True, kw_only=True)
class AdaClip(PrivateMethod):
    """Clip w_i = (g_i − m)/b to C; θ ← θ − ηg̃ with g̃ = b ⊙ w̃ + m, w̃ the released mean of the w_i.

    b_j = √(s_j Σ_k s_k), which adds the least noise among all b with the same Σ_j s_j²/b_j². The
    mean m and the variance s² of each coordinate follow the releases: m ← β1 m + (1−β1)g̃ and
    s² ← β2 s² + (1−β2)v, v = (g̃ − m)² − b²Φ between `lowest_variance` and `highest_variance`, with
    the m before the step and with b²Φ the variance of the noise on g̃. At first m = 0, and s² is the
    geometric mean of its two bounds: this start and the defaults are choices of this suite.

    Source: Pichapati et al. 2019 (AdaCliP, arXiv 1908.07643), as in code of others:
    soominkwon/DP-dSNE, adaclip.py, and for b and the m in v ntasnim2/dp-macadam,
    dp_macadam/optimizers.py (Tasnim et al. 2026, who build on it). The paper's C is 1.
    """

    id = "adaclip"
    query = ClippedMean()

    betas: tuple[Decay, Decay] = (0.99, 0.9)
    lowest_variance: Positive = 1e-12
    highest_variance: Positive = 1e-4

    def __post_init__(self) -> None:
        if self.lowest_variance > self.highest_variance:
            raise ValueError("lowest_variance must not be above highest_variance")

    def offset(self, state: State, public: Public) -> Tensor:
        return -state["m"]

    def scale(self, state: State, public: Public) -> Tensor:
        return 1 / self.unit(state)

    def variance(self, state: State) -> Tensor:
        """Return s² before the step, shape (d,)."""
        if state.step > 1:
            return state["s squared"]
        start = (self.lowest_variance * self.highest_variance) ** 0.5
        return state.theta.new_full(state.theta.shape, start)

    def unit(self, state: State) -> Tensor:
        """Return b, shape (d,)."""
        s = self.variance(state).sqrt()
        return (s * s.sum()).sqrt()

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (w,) = released
        b, m = self.unit(state), state["m"]
        g = b * w + m
        noise = public.noise_variance(self.clip_norm) * public.noise_row_norm_squared
        v = (g - m).square() - noise * b.square()
        v = v.clamp(self.lowest_variance, self.highest_variance)
        state["s squared"] = self.betas[1] * self.variance(state) + (1 - self.betas[1]) * v
        state.decay("m", g, self.betas[0])
        return -self.learning_rate * g


@dataclass(frozen=True, kw_only=True)
class DPMacAdam(Adam, PrivateMethod):
    """Clip (g_i − m̂_{t−1})/b_{t−1} to C, and give Adam g̃ = b_{t−1} ⊙ w̃ + m̂_{t−1}, w̃ the release.

    w̃ is the released mean of the clipped vectors. Adam's m̂ is also what is subtracted before the
    clip, and b = √(ŝ Σ_k ŝ_k) as in adaclip, ŝ² the variance of g̃ without that of the noise:
    s² ← β1 s² + (1−β1)(g̃ − m̂_t)(g̃ − m̂_{t−1}) and ŝ² = s²/κ_t − b_{t−1}²Φ between
    `lowest_variance` and `highest_variance`, with κ_t = 2(β1 − β1^t)/(1 + β1). That product has no
    bias then; the statement of the algorithm has (g̃ − m̂_t)² and the authors' code (g̃ − m̂_{t−1})²,
    which κ_t does not fit. b is 1/d in the first step, as in that code, and in the second, because
    one release has no variance. The upper bound is a choice of this suite.

    Source: Tasnim, Sankar and Kosut 2026 (DP-MacAdam, arXiv 2606.05435), as stated in
    junaidaliop/zij, math/dpmacadam.md, and the authors' code, ntasnim2/dp-macadam, dp_macadam.py
    and dp_macadam/optimizers.py, whose C is 1.
    """

    id = "dp-macadam"
    query = ClippedMean()

    lowest_variance: Positive = 1e-9
    highest_variance: Positive = 1e-2

    def __post_init__(self) -> None:
        if self.lowest_variance > self.highest_variance:
            raise ValueError("lowest_variance must not be above highest_variance")

    def mean(self, state: State) -> Tensor:
        """Return m̂_{t−1}, shape (d,)."""
        return (
            state["m"] / (1 - self.betas[0] ** (state.step - 1)) if state.step > 1 else state["m"]
        )

    def unit(self, state: State) -> Tensor:
        """Return b_{t−1}, shape (d,)."""
        if state.step <= 2:
            return state.theta.new_full(state.theta.shape, 1 / state.theta.numel())
        return state["b"]

    def offset(self, state: State, public: Public) -> Tensor:
        return -self.mean(state)

    def scale(self, state: State, public: Public) -> Tensor:
        return 1 / self.unit(state)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (w,) = released
        b, before = self.unit(state), self.mean(state)
        g = b * w + before
        m, v = state.moments(g, self.betas)
        squared = state.decay("s squared", (g - m) * (g - before), self.betas[0])
        if state.step > 1:
            beta = self.betas[0]
            kappa = 2 * (beta - beta**state.step) / (1 + beta)
            noise = public.noise_variance(self.clip_norm) * public.noise_row_norm_squared
            unbiased = squared / kappa - b.square() * noise
            s = unbiased.clamp(self.lowest_variance, self.highest_variance).sqrt()
            state["b"] = (s * s.sum()).sqrt()
        return self.descend(m, v)


@dataclass(frozen=True, kw_only=True)
class TPTopK(PrivateMethod):
    """Clip m ⊙ g_i, m = 1 for the coordinates with the largest Σ g̃² of a warm-up; θ ← θ − ηm ⊙ g̃.

    The first steps, the share `warmup` of all, are DP-SGD on every coordinate. The share `active`
    with the largest mean of g̃² goes on, and all others stay as they are. The paper takes Φ off that
    mean, which does not change the order, because Φ is the same for every coordinate. It also
    allows the warm-up a σ of its own: here one σ holds for all steps, and where the warm-up has
    another C, `clip_norm` follows a schedule. Both defaults are choices of this suite.

    Source: Zhang and Xie 2026 (TP-TopK, arXiv 2606.04375), as stated in junaidaliop/zij,
    math/tptopk.md.
    """

    id = "tp-topk"
    query = ClippedMean()

    warmup: Probability = 0.1
    active: Fraction = 0.1

    def __post_init__(self) -> None:
        if self.active == 0:
            raise ValueError("active must be above 0")

    def warm_steps(self, public: Public) -> int:
        """Return how many steps the warm-up has, at least one."""
        return max(1, round(self.warmup * public.total_steps))

    def scale(self, state: State, public: Public) -> Tensor | None:
        return state["m"] if state.step > self.warm_steps(public) else None

    def mask(self, score: Tensor) -> Tensor:
        """Return 1 for the ⌊ρd⌋ coordinates with the largest score, at least one, and 0 elsewhere.

        Args:
            score: shape (d,). Of equal ones the first coordinate counts as larger.
        """
        count = max(1, int(self.active * len(score)))
        chosen = score.argsort(descending=True, stable=True)[:count]
        return score.new_zeros(score.shape).index_fill_(0, chosen, 1.0)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        last = self.warm_steps(public)
        if state.step > last:
            return -self.learning_rate * state["m"] * g
        state["score"] = state["score"] + g.square()
        if state.step == last:
            state["m"] = self.mask(state["score"])
        return -self.learning_rate * g
