"""DP-Adam, DP-AdamW, DP-RMSProp and DP-AdaGrad: the rules as they are, on the released gradient.

With two non-private variants that show what the second moment of DP-Adam suffers from.
"""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.methods.base import (
    AdaGrad,
    Adam,
    Clean,
    CleanClippedMean,
    ClippedMean,
    ClippingMethod,
    NonNegative,
    OracleMethod,
    PrivateMethod,
    Public,
    Released,
    RMSProp,
    State,
    Tensor,
)


@dataclass(frozen=True, kw_only=True)
class DPAdam(Adam, PrivateMethod):
    """θ ← θ − η m̂/(√v̂ + γ) on the released gradient.

    The noise adds Φ = (σC/B)² to v̂.

    Source: AdaDPS, Algorithm 2; On Design Principles for Private Adaptive Optimizers, Algorithm 5.
    """

    id = "dp-adam"
    query = ClippedMean()


@dataclass(frozen=True, kw_only=True)
class DPAdamW(Adam, PrivateMethod):
    """θ ← θ − η (m̂/(√v̂ + γ) + λθ): DP-Adam whose weight decay does not pass through its moments.

    Source: Loshchilov and Hutter 2019, Algorithm 2 (AdamW), on the released gradient; Chooi et al.
    2025 (DP-AdamW).
    """

    id = "dp-adamw"
    query = ClippedMean()

    weight_decay: NonNegative = 0.01

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        decayed = self.learning_rate * self.weight_decay * state.theta
        return super().update(released, state, public) - decayed


@dataclass(frozen=True, kw_only=True)
class DPAdamNoiseless(Adam, OracleMethod):
    """DP-Adam with m from the noisy and v from the clean clipped mean gradient. Non-private.

    Source: On Design Principles for Private Adaptive Optimizers, section 4.2 (noiseless
    preconditioner).
    """

    id = "dp-adam-noiseless"
    query = ClippedMean()

    def oracle_update(
        self, released: tuple[Released, ...], state: State, public: Public, clean: Clean
    ) -> Tensor:
        return self.update_from(released[0], clean.values[0].square(), state)


@dataclass(frozen=True, kw_only=True)
class ClippedAdamBiased(Adam, ClippingMethod):
    """No noise; θ ← θ − η m̂/(√(v̂ + Φ′) + γ) on the clipped mean. Non-private.

    Φ′ is `phi`, for example the variance Φ = (σC/B)² of the noise that a private run would add.

    Source: DP-AdamBC, section 3 and Figure 2 (right), where the text has m/√(v + Φ′); its released
    code has the hats and γ, as here.
    """

    id = "clipped-adam-biased"
    query = CleanClippedMean()

    phi: NonNegative

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        m, v = state.moments(g, self.betas)
        return self.descend(m, v + self.phi)


@dataclass(frozen=True, kw_only=True)
class DPRMSProp(RMSProp, PrivateMethod):
    """v ← βv + (1−β)g̃²; θ ← θ − η g̃/(√v + γ), without bias correction.

    Source: AdaDPS, appendix C.1.
    """

    id = "dp-rmsprop"
    query = ClippedMean()


@dataclass(frozen=True, kw_only=True)
class DPAdaGrad(AdaGrad, PrivateMethod):
    """ν ← ν + g̃²; θ ← θ − η g̃/√ν, where 0/0 = 0.

    Source: On Design Principles for Private Adaptive Optimizers, Algorithm 3 on the released
    gradient; AdaDPS, appendix C.1.
    """

    id = "dp-adagrad"
    query = ClippedMean()
