"""AdaS: the scaling of AdaDPS without clip and noise."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.methods.scale_then_privatize.adadps_rmsprop import PublicScale
from clipnoise.privacy.queries import PlainMean


@dataclass(frozen=True, kw_only=True)
class AdaS(PublicScale):
    """v ← βv + (1−β)ĝ² from the public ĝ; θ ← θ − η ḡ/(√v + γ). Non-private.

    Source: AdaDPS, appendix C.2 and Table 9 (AdaS).
    """

    id = "adas"
    query = PlainMean()
