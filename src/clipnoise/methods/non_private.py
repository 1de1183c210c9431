"""SGD, RMSProp and Adam without privacy: the references that show what privacy costs."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.methods.base import Adam, Decay, Momentum, PlainMean, RMSProp


@dataclass(frozen=True, kw_only=True)
class PlainSGD(Momentum):
    """b ← βb + ḡ; θ ← θ − η b, with ḡ the plain mean gradient. Without momentum β is 0.

    Source: Robbins and Monro 1951; momentum as in DP-AdamBC, section 3.
    """

    id = "sgd"
    query = PlainMean()

    momentum: Decay = 0.0


@dataclass(frozen=True, kw_only=True)
class PlainRMSProp(RMSProp):
    """v ← βv + (1−β)ḡ²; θ ← θ − η ḡ/(√v + γ), with ḡ the plain mean gradient.

    Also what trains a warm start on public examples.

    Source: Hinton, Srivastava and Swersky 2012; AdaDPS, section 4.
    """

    id = "rmsprop"
    query = PlainMean()


@dataclass(frozen=True, kw_only=True)
class PlainAdam(Adam):
    """θ ← θ − η m̂/(√v̂ + γ) on the plain mean gradient.

    Source: Kingma and Ba 2015, Algorithm 1; On Design Principles for Private Adaptive Optimizers,
    Algorithm 4.
    """

    id = "adam"
    query = PlainMean()
