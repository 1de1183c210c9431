"""Noise of which the next step takes a part back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.fields import Decay
from clipnoise.privacy.noise.base import NoiseCorrelation

if TYPE_CHECKING:
    from clipnoise.privacy.noise_strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class CancellingNoise(NoiseCorrelation):
    """DP-λCGD: part of the last step's noise is taken back; memory for one vector.

    Attributes:
        cancelled: λ.

    Source: Kalinin, McKenna, Pagh and Lampert 2026, "DP-λCGD: Efficient Noise Correlation for
    Differentially Private Model Training".
    """

    id: ClassVar[str] = "lambda-cgd"

    cancelled: Decay

    def bands_over(self, steps: int) -> int:
        return 1 if self.cancelled == 0 else super().bands_over(steps)

    def unscaled(self, steps: int, groups: int) -> Strategy:
        from clipnoise.privacy.noise_strategies import cancelling

        return cancelling(steps, self.cancelled)
