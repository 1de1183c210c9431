"""Kinds of noise that users bring: the entries of a strategy matrix, which the package scales."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar, final

from clipnoise.errors import UserError
from clipnoise.kinds import SEALED, OwnKind
from clipnoise.lazy import np
from clipnoise.privacy.noise.base import NoiseCorrelation

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from clipnoise.privacy.noise_strategies import Array, Strategy

# The largest standard deviation that the noise of one step may have at σ = 1. Beyond it, the
# coefficients amplify the noise from step to step.
LARGEST_DEVIATION = 1e6


@dataclass(frozen=True, kw_only=True)
class OwnNoise(OwnKind, NoiseCorrelation):
    """Base of the kinds of noise that users bring: the entries of a strategy matrix.

    The suite draws the noise, computes the sensitivity of the strategy under the participation of
    the run, and scales the strategy accordingly, so that σ keeps its meaning whatever the entries.

    Attributes:
        inverse: the column that `entries` returns is that of C⁻¹, not of C.
    """

    needs: ClassVar[tuple[str, ...]] = ("entries",)
    sealed: ClassVar[tuple[str, ...]] = (
        *SEALED,
        "unscaled",
        "bands_over",
        "prefix_cost",
        "source",
        "strategy",
    )
    what: ClassVar[str] = "kind of noise"
    inverse: ClassVar[bool] = False

    def entries(self, steps: int) -> ArrayLike:
        """Return the strategy matrix C of a run, of any scale.

        Args:
            steps: T ≥ 2.

        Returns:
            Either a column of b ≥ 1 numbers, the first above 0: C is Toeplitz, and these are its
            entries on the diagonal and below it. Memory is then needed for min(b, T) vectors, and
            noise of at most as many bands as the sampler cyclic-poisson has groups keeps the
            amplification. Or all of C, shape (T, T), lower triangular with a diagonal above 0;
            then memory is needed for T vectors, and there is no amplification.
        """
        raise NotImplementedError

    @final
    def bands_over(self, steps: int) -> int:
        if steps < 2:
            return 1
        entries = _entries(self, steps)
        toeplitz = entries.ndim == 1 and not self.inverse
        return len(entries) if toeplitz or len(entries) == 1 else steps

    @final  # for type checkers; at run time `sealed` refuses an override
    def strategy(self, steps: int, groups: int) -> Strategy | None:
        return super().strategy(steps, groups)

    @final
    def unscaled(self, steps: int, groups: int) -> Strategy:
        return _strategy_of(self, steps)


NoiseCorrelation.own = OwnNoise


@cache
def _entries(noise: OwnNoise, steps: int) -> Array:
    """Return the entries that describe the strategy of a run.

    Raises:
        UserError: they describe none.
    """
    with noise.explained():
        entries, again = (np.array(noise.entries(steps), dtype=np.float64) for _ in range(2))
        if not np.array_equal(entries, again, equal_nan=True):
            raise UserError("entries must be the same whenever they are asked for.")
        if entries.ndim == 1 and entries.size:
            entries = entries[:steps]
        elif noise.inverse or entries.shape != (steps, steps):
            whole = "" if noise.inverse else f", or all of C: ({steps}, {steps})"
            raise UserError(f"entries must have shape (b,){whole}; they have {entries.shape}.")
        square = np.atleast_2d(entries)
        if not (np.isfinite(entries).all() and (np.diag(square) > 0).all()):
            raise UserError("entries must be finite, and above 0 on the diagonal.")
        if entries.ndim == 2 and np.triu(entries, 1).any():
            raise UserError("entries above the diagonal must be 0: no step knows later noise.")
        return entries


@cache
def _strategy_of(noise: OwnNoise, steps: int) -> Strategy:
    """Return the strategy that the entries describe, of any scale.

    Raises:
        UserError: its noise grows from step to step without bound.
    """
    from clipnoise.privacy.noise_strategies import Dense, Toeplitz

    entries = _entries(noise, steps)
    strategy: Strategy = (
        Dense(entries) if entries.ndim == 2 else Toeplitz(entries, steps, noise.inverse)
    )
    with noise.explained(), np.errstate(over="ignore", invalid="ignore"):
        # Of the largest step, for an example that takes part once.
        variance = strategy.squared_row_norms.max() * strategy.squared_distances(steps).max()
        if not variance < LARGEST_DEVIATION**2:
            raise UserError(
                f"with these entries the noise of some step of {steps} has a standard deviation of "
                f"{variance**0.5:.2g}σ; at most {LARGEST_DEVIATION:g}σ is allowed."
            )
    return strategy
