"""AdaS without public data: the scaling of AdaDPS by side information, without clip and noise."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.methods.scale_then_privatize.adadps_side import SideScale
from clipnoise.privacy.queries import PlainMean


@dataclass(frozen=True, kw_only=True)
class AdaSSide(SideScale):
    """θ ← θ − η ḡ/(A + γ) with A fixed before training. Non-private.

    Source: AdaDPS, appendix C.2 and Table 9 (AdaS without public data).
    """

    id = "adas-side"
    query = PlainMean()
