"""In which steps of correlated noise an example takes part, where they are drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from clipnoise.fields import STRICT, Count, Fraction, Natural
from clipnoise.kinds import as_sealed
from clipnoise.lazy import np
from clipnoise.privacy.noise import NoiseCorrelation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Steps at least g apart: once it may take part, an example does so with some probability.

    At rate 1 it takes part in every g-th step, from one of the first g that is drawn uniformly.
    Below 1, it may take part in step 1 as often as in any other one.

    Attributes:
        noise: how it is correlated.
        groups: g; below rate 1, at least the number of bands.
        steps: T.
        sampling_rate: of the steps in which an example may take part.
    """

    __pydantic_config__: ClassVar = STRICT

    noise: NoiseCorrelation
    groups: Count
    steps: Natural
    sampling_rate: Fraction = 1.0

    def column(self) -> Array:
        """Bound the sizes of the entries of a column of C from its diagonal down, shape (g,)."""
        strategy = as_sealed(self.noise, "strategy")(self.steps, self.groups)
        column = np.zeros(self.groups)
        column[0] = 1.0
        if strategy is not None:
            sizes = np.abs(strategy.matrix())
            rows = range(min(self.groups, self.steps))
            column[: len(rows)] = [np.diagonal(sizes, -row).max() for row in rows]
        return column

    def gram(self, steps: int) -> Array:
        """Return the inner products of what the example moves the first t ≤ T rows of Cx by at σ=1.

        At rate 1, where each of the first g steps is a turn.

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
