"""Noise of the nodes of a binary tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.privacy.noise.base import NoiseCorrelation

if TYPE_CHECKING:
    from clipnoise.privacy.noise_strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class TreeNoise(NoiseCorrelation):
    """DP-FTRL: each prefix sum has the noise of at most log₂ T nodes; memory for as many vectors.

    Source: Kairouz et al. 2021, "Practical and Private (Deep) Learning without Sampling or
    Shuffling" (DP-FTRL).
    """

    id: ClassVar[str] = "tree"

    def prefix_cost(self, steps: int, groups: int) -> float:
        if steps < 2:
            return 1.0
        from clipnoise.privacy.noise_strategies import prefix_cost

        return prefix_cost(steps, min(groups, steps))

    def unscaled(self, steps: int, groups: int) -> Strategy:
        from clipnoise.privacy.noise_strategies import Tree

        return Tree(steps)
