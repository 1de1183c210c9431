"""AdaDPS with the clean private gradients in place of public ones: an oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.methods.base import PrivateMethod, Public
from clipnoise.methods.scale_then_privatize.adadps_rmsprop import PublicScale
from clipnoise.privacy.queries import OracleMean

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class AdaDPSIdeal(PublicScale, PrivateMethod):
    """v ← βv + (1−β)ḡ² from the clean private mean ḡ; clip g_i/(√v + γ). Non-private.

    An upper bound: AdaDPS with RMSProp whose public data are as good as can be.

    Source: AdaDPS, section 6.1.2 and Table 4 (ideal).
    """

    id = "adadps-ideal"
    query = OracleMean()
    uses_public_gradient = False
    uses_clean_gradient = True

    def reference(self, public: Public) -> Tensor:
        return public.require("clean_gradient")
