"""Fresh noise at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clipnoise.privacy.noise.base import NoiseCorrelation


@dataclass(frozen=True, kw_only=True)
class IndependentNoise(NoiseCorrelation):
    """Fresh noise at every step, as in DP-SGD."""

    id: ClassVar[str] = "independent"

    def bands_over(self, steps: int) -> int:
        return 1
