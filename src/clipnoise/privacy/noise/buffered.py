"""Noise of a strategy that a few buffers describe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Le

from clipnoise.fields import Count
from clipnoise.privacy.noise.optimised import OptimisedNoise

if TYPE_CHECKING:
    from clipnoise.privacy.noise_strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class BufferedNoise(OptimisedNoise):
    """BLT: a buffered linear Toeplitz strategy, optimised for prefix sums.

    Attributes:
        buffers: how many vectors are kept; more than four hardly reduce the error.

    Source: McMahan, Xu and Zhang 2024, "A Hassle-free Algorithm for Private Learning in Practice:
    Don't Use Tree Aggregation, Use BLTs".
    """

    id: ClassVar[str] = "blt"

    buffers: Annotated[Count, Le(8)]

    def unscaled(self, steps: int, groups: int) -> Strategy:
        from clipnoise.privacy.noise_strategies import optimal_buffers

        return optimal_buffers(steps, self.buffers, groups, self.weights(steps))
