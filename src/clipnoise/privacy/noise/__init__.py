"""Noise: sources of standard normals, independent or correlated across steps (DP-MF).

`NoiseCorrelation` is how a run spec chooses one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.fields import STRICT, Count

if TYPE_CHECKING:
    import torch

    from clipnoise.privacy.noise.independent import NoiseSource
    from clipnoise.privacy.noise.strategies import Strategy

Kind = Literal["independent", "banded", "dense"]


@dataclass(frozen=True, kw_only=True)
class NoiseCorrelation:
    """How the noise of a run is correlated across its steps.

    Attributes:
        kind: "independent" (DP-SGD), "banded" (Toeplitz, optimised for prefix sums over T steps) or
            "dense" (optimal if each example takes part once; memory for T vectors).
        bands: b for "banded": memory for b vectors, and at least b steps between participations.
    """

    __pydantic_config__: ClassVar = STRICT

    kind: Kind = "independent"
    bands: Count | None = None

    def __post_init__(self) -> None:
        if (self.kind == "banded") != (self.bands is not None):
            raise ValueError("bands is required for kind banded and not allowed otherwise")

    def bands_over(self, steps: int) -> int:
        """Return the number of bands over T steps: 1 for independent noise, T for dense noise."""
        if self.kind == "dense":
            return max(1, steps)
        return min(self.bands or 1, max(1, steps))

    def strategy(self, steps: int) -> Strategy | None:
        """Compute the strategy matrix over T ≥ 1 steps; None for independent noise."""
        if self.bands_over(steps) == 1:
            return None
        from clipnoise.privacy.noise.strategies import optimal_dense, optimal_toeplitz

        if self.kind == "dense":
            return optimal_dense(steps)
        return optimal_toeplitz(steps, self.bands_over(steps))

    def source(
        self, steps: int, generator: torch.Generator | None, like: torch.Tensor
    ) -> NoiseSource:
        """Start the stream of noise.

        Args:
            steps: T.
            generator: a stream of random numbers on the device of `like`, used by nothing else;
                None draws from a cryptographic source.
            like: a tensor with the shape (d,), dtype and device of the parameters.
        """
        from clipnoise.privacy.noise.independent import IndependentNoise

        strategy = self.strategy(steps)
        if strategy is None:
            return IndependentNoise(generator, like)
        from clipnoise.privacy.noise.correlated import CorrelatedNoise

        return CorrelatedNoise(generator, like, strategy)
