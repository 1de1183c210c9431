"""Noise of a banded strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.fields import Count
from clipnoise.privacy.noise.optimised import OptimisedNoise

if TYPE_CHECKING:
    from clipnoise.privacy.noise_strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class BandedNoise(OptimisedNoise):
    """A banded Toeplitz strategy, optimised for prefix sums over T steps.

    Attributes:
        bands: b: memory for b vectors, and with the sampler cyclic-poisson b steps between
            participations.

    Source: McKenna 2024, "Scaling up the Banded Matrix Factorization Mechanism", section 3.
    """

    id: ClassVar[str] = "banded"

    bands: Count

    def bands_over(self, steps: int) -> int:
        return max(1, min(self.bands, steps))

    def unscaled(self, steps: int, groups: int) -> Strategy:
        from clipnoise.privacy.noise_strategies import optimal_toeplitz

        return optimal_toeplitz(steps, self.bands, self.weights(steps))
