"""Noise of a strategy without structure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.privacy.noise.optimised import OptimisedNoise

if TYPE_CHECKING:
    from clipnoise.privacy.noise_strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class DenseNoise(OptimisedNoise):
    """Optimal for prefix sums if each example takes part once; memory for T vectors.

    Source: Denisov et al. 2022, "Improved Differential Privacy for SGD via Optimal Private Linear
    Operators on Adaptive Streams".
    """

    id: ClassVar[str] = "dense"

    def unscaled(self, steps: int, groups: int) -> Strategy:
        from clipnoise.privacy.noise_strategies import optimal_dense

        return optimal_dense(steps, rates=self.weights(steps))
