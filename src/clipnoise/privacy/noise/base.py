"""What every kind of noise is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.fields import STRICT
from clipnoise.kinds import Kinds, as_sealed
from clipnoise.lazy import Tensor, torch
from clipnoise.privacy.noise.source import NoiseSource

if TYPE_CHECKING:
    from clipnoise.privacy.noise_strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class NoiseCorrelation(Kinds):
    """How the noise of a run is correlated across its steps.

    For methods the only difference between kinds is the variance, which is `row_norm_squared(t)`
    times that of independent noise.
    """

    __pydantic_config__: ClassVar = STRICT
    folder: ClassVar[str] = "clipnoise.privacy.noise"
    default: ClassVar[str] = "independent"
    written: ClassVar[tuple[str, ...]] = ("kind", "bands", "cancelled", "buffers")

    def bands_over(self, steps: int) -> int:
        """Return the number of bands of C over T steps: 1 for independent noise, T for full C."""
        return max(1, steps)

    def prefix_cost(self, steps: int, groups: int) -> float:
        """Return by how much the first t < T steps may cost more than the participations in them.

        Args:
            steps, groups: as for `strategy`.
        """
        return 1.0

    def strategy(self, steps: int, groups: int) -> Strategy | None:
        """Compute the strategy matrix; None for independent noise.

        Args:
            steps: T ≥ 1.
            groups: how many steps lie between participations of an example. The strategy is scaled
                so that each of them costs one release at σ: see `fitted`.
        """
        if as_sealed(self, "bands_over")(steps) == 1:
            return None
        from clipnoise.privacy.noise_strategies import fitted

        groups = min(groups, steps)
        strategy: Strategy = as_sealed(self, "unscaled")(steps, groups)
        return fitted(strategy, groups)

    def unscaled(self, steps: int, groups: int) -> Strategy:
        """Return the strategy matrix of noise that is not independent, of any scale.

        Args:
            steps: T ≥ 2.
            groups: as for `strategy`, at most T.
        """
        raise NotImplementedError

    def source(
        self, steps: int, groups: int, generator: torch.Generator | None, like: Tensor
    ) -> NoiseSource:
        """Start the stream of noise.

        Args:
            steps, groups: as for `strategy`.
            generator, like: as for `NoiseSource`.
        """
        return NoiseSource(generator, like, as_sealed(self, "strategy")(steps, groups))
