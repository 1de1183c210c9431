"""In which steps of correlated noise an example takes part, where its turn is drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from clipnoise.fields import STRICT, Count, Natural
from clipnoise.kinds import as_sealed
from clipnoise.lazy import np
from clipnoise.privacy.noise import NoiseCorrelation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Every g-th step, from one of the first g that is drawn uniformly.

    Attributes:
        noise: how it is correlated.
        groups: g.
        steps: T.
    """

    __pydantic_config__: ClassVar = STRICT

    noise: NoiseCorrelation
    groups: Count
    steps: Natural

    def gram(self, steps: int) -> Array:
        """Return the inner products of what the example moves the first t ≤ T rows of Cx by at σ=1.

        Args:
            steps: t.

        Returns:
            One for each two turns, shape (g, g).
        """
        rows = _distances(self)[:steps]
        products = np.zeros((self.groups, self.groups))
        turns = rows.shape[1]
        products[:turns, :turns] = rows.T @ rows
        return products


@lru_cache(maxsize=4)
def _distances(of: Pattern) -> Array:
    """Bound how far each turn of an example moves each row of Cx, shape (T, min(g, T))."""
    strategy = as_sealed(of.noise, "strategy")(of.steps, of.groups)
    if strategy is None:
        return np.asarray(np.arange(of.steps)[:, None] % of.groups == np.arange(of.groups), float)
    return np.asarray(strategy.distances(of.groups))
