"""A mistake in the noise: half of what the accountant is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clipnoise.privacy.queries import ClippedMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released, Unreleased


@dataclass(frozen=True)
class HalfNoise(ClippedMean):
    """The clipped mean with noise at σ/2, accounted at σ."""

    def release(
        self,
        total: Unreleased,
        noise: Sequence[Tensor],
        *,
        noise_multiplier: float,
        **constants: Any,
    ) -> tuple[Released, ...]:
        """Release with half the noise."""
        return super().release(total, noise, noise_multiplier=noise_multiplier / 2, **constants)
