"""Noise of a strategy whose inverse is banded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.fields import Count
from clipnoise.privacy.noise.base import NoiseCorrelation

if TYPE_CHECKING:
    from clipnoise.privacy.noise_strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class BandedInverseNoise(NoiseCorrelation):
    """BISR: each noise is a mixture of the last few independent ones.

    Attributes:
        bands: p: memory for p vectors.

    Source: Kalinin, McKenna, Upadhyay and Lampert 2025, "Back to Square Roots" (BISR).
    """

    id: ClassVar[str] = "banded-inverse"

    bands: Count

    def bands_over(self, steps: int) -> int:
        return 1 if self.bands == 1 else super().bands_over(steps)

    def unscaled(self, steps: int, groups: int) -> Strategy:
        from clipnoise.privacy.noise_strategies import inverse_square_root

        return inverse_square_root(steps, self.bands)
