"""DP-RMSProp and DP-AdaGrad: the rules as they are, on the released gradient."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.methods.base import AdaGrad, ClippedMean, PrivateMethod, RMSProp


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
