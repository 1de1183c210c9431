"""Examples that draw one step of every epoch, as a mixture of as many normals as there are steps.

R is a function of v = (⟨mᵢ, y⟩/σ²), which is N(0, G) with Gᵢⱼ = ⟨mᵢ, mⱼ⟩/σ² under Q: as many
normals as there are patterns, however long the run is. To see rare values of R, y is drawn from a
density close to Q·R^k: k patterns are drawn in turn, each with probabilities that the earlier ones
raise by e^G, and y around the sum of their m. The weight of a draw is R^(−k) Π_j N_j, N_j being the
normalising sums, so that its largest value is known in advance: Hölder's inequality bounds N_j by
its value for equal patterns. In the other direction y is shifted against the mean of the m, and
Jensen's inequality bounds the weights.

Source: Choquette-Choo et al. 2025, "Near Exact Privacy Amplification for Matrix Mechanisms".
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING

from clipnoise.lazy import np
from clipnoise.privacy.accountants.mixture import (
    CHUNK,
    MOST_TILTS,
    SEED,
    Bound,
    Mixture,
    Weighted,
    bound,
    least,
    log_mean_exp,
    log_most,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

DRAWS = 2**17


class Turns(Mixture):
    """Σ N(mᵢ, I)/b against N(0, I), by the inner products of the m."""

    most_tilts = MOST_TILTS

    def __init__(self, gram: Array) -> None:
        self.gram = gram
        self.halves = np.diag(gram) / 2
        values, vectors = np.linalg.eigh(gram)
        # The symmetric root: of other roots, rounding decides which one is found.
        self.root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T

    @cached_property
    def _log_normalisers(self) -> Array:
        """Bound ln Π_{j ≤ k} N_j for k = 1, 2, …, shape (MOST_TILTS,)."""
        return np.cumsum(
            [float(log_mean_exp(j * self.gram).max()) for j in range(MOST_TILTS)], dtype=np.float64
        )

    def log_normaliser(self, k: int) -> float:
        return float(self._log_normalisers[k - 1])

    def tilted(self, k: int) -> Weighted:
        random = np.random.Generator(np.random.Philox(SEED))
        drawn = [self._tilted(k, random) for _ in range(DRAWS // CHUNK)]
        ratios, weights = (np.concatenate(column) for column in zip(*drawn, strict=True))
        return Weighted(ratios, weights, -k, self.log_normaliser(k))

    def _tilted(self, k: int, random: np.random.Generator) -> tuple[Array, Array]:
        count = len(self.gram)
        chosen = random.integers(count, size=CHUNK)
        moved, log_weights = self.gram[chosen], np.zeros(CHUNK)
        for uniform in random.random((k - 1, CHUNK)):
            most = moved.max(axis=1)
            sums = np.cumsum(np.exp(moved - most[:, None]), axis=1)
            log_weights += np.log(sums[:, -1] / count) + most
            chosen = (sums < (uniform * sums[:, -1])[:, None]).sum(axis=1)
            moved = moved + self.gram[np.minimum(chosen, count - 1)]
        return self.log_ratios(moved + self.normals(random)), log_weights

    def adding(self, places: Collection[float], certainty: float) -> Bound:
        shifts = {self.shift(place) for place in places}
        return least([bound(self.shifted(tau), certainty, sign=-1) for tau in sorted(shifts)])

    def shift(self, epsilon: float) -> float:
        """Choose τ, by how many mean m to shift y, so that the largest weighted value is least."""
        shifts = np.append(0.0, np.geomspace(1e-2, 1e3, 200))
        most = [log_most(-1, tau, epsilon) + self.log_shifted(tau) for tau in shifts]
        return float(shifts[np.argmin(most)])

    def log_shifted(self, tau: float) -> float:
        """Bound ln of the weight of a shift, without the power of R, by Jensen's inequality."""
        return float(tau * self.halves.mean() + tau**2 / 2 * self.gram.mean())

    def shifted(self, tau: float) -> Weighted:
        """Draw R with y shifted by −τ times the mean of the m."""
        random = np.random.Generator(np.random.Philox(SEED + 1))
        ratios, weights = [], []
        for _ in range(DRAWS // CHUNK):
            v = self.normals(random) - tau * self.gram.mean(axis=1)
            log_ratios = self.log_ratios(v)
            ratios.append(log_ratios)
            weights.append(tau * v.mean(axis=1) + tau**2 / 2 * self.gram.mean() - tau * log_ratios)
        most = self.log_shifted(tau)
        return Weighted(np.concatenate(ratios), np.concatenate(weights), tau, most)

    def normals(self, random: np.random.Generator) -> Array:
        return np.asarray(random.standard_normal((CHUNK, len(self.gram))) @ self.root)

    def log_ratios(self, v: Array) -> Array:
        return log_mean_exp((v - self.halves).T)
