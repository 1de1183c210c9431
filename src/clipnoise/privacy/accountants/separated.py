"""Examples that wait at least b steps between participations, as a mixture of normals.

An example that may take part does so with probability p, and then waits for b − 1 steps. With noise
of at most b bands, its participations move disjoint rows of Cx. So a pattern i with the steps s has
Mᵢ = Π_s a_s, with a_s = exp(⟨c_s, y⟩/σ² − |c_s|²/(2σ²)) and c_s the column of step s, and
R = Σ πᵢ Mᵢ follows from a recursion over the steps: with F_t the part of R from step t on for an
example that may take part in it, F_t = (1 − p) F_{t+1} + p a_t F_{t+b}. The bound takes the columns
of the last b − 1 steps as if they were whole, so as if the run released b − 1 rows more.

To see rare values of R, y is drawn from the density Q·R^k/E[R^k]. With k independent patterns,
E[R^k] = E exp(Σ_{l<m} ⟨m_l, m_m⟩/σ²), and as only participations less than b steps apart overlap,
this expectation is one over a Markov chain, whose state is how many of the k patterns took part how
long ago. One pass from the last step to the first gives its value and the law of the patterns in
which y is drawn around the sum of their m; the weight of a draw is R^(−k) E[R^k].

For adding an example, δ(ε) is the mean of (1 − e^ε R)₊ under Q, of which plain draws show nothing
below one over their number. But ln R is convex in y, so by Ehrhard's inequality Φ⁻¹(P(ln R ≤ x)) is
concave in x: left of two of its points it lies below the line through them. Confidence bounds on
two quantiles give a line that does so, and with it the δ(ε) of a Gaussian mechanism.

Source: Dong and Ganesh 2026, "Privacy Amplification for BandMF via b-Min-Sep Subsampling" (the
sampler, and Monte Carlo accounting by the recursion); Ehrhard 1983, "Symétrisation dans l'espace de
Gauss".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from functools import cached_property
from itertools import combinations
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
    too_small,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Counts = NDArray[np.int8]

MOST_DRAWS, FEWEST_DRAWS = 2**18, 2**14
MOST_WORK = 2**23  # draws times steps, unless there would be fewer than FEWEST_DRAWS draws
MOST_STATES = 8000  # of k patterns
QUANTILES = (0.001, 0.01, 0.05, 0.2, 0.5)  # of ln R, through two of which a line is drawn
LARGEST_EXPONENT = 600.0  # of a_s, so that products of two do not overflow


class Separated(Mixture):
    """The mixture over all patterns of T steps, by the column of C."""

    def __init__(self, column: Array, rate: float, steps: int) -> None:
        """Take the sizes of the column of C over σ, shape (b,), 0 < p < 1 and T ≥ 1.

        Where there are fewer bands than steps between participations, the last sizes are 0.
        """
        self.column, self.rate, self.steps = column, rate, steps
        self.log_moments: dict[int, float] = {}  # ln E[R^k]
        self.bands = len(column)
        self.draws = min(MOST_DRAWS, max(FEWEST_DRAWS, MOST_WORK // steps // CHUNK * CHUNK))
        self.most_tilts = max(
            k for k in range(1, MOST_TILTS + 1) if math.comb(k + self.bands - 1, k) <= MOST_STATES
        )

    @property
    def eligible(self) -> float:
        """The probability that an example may take part in a step: that of step 1 is stationary."""
        return 1 / (1 + (self.bands - 1) * self.rate)

    @cached_property
    def starts(self) -> Array:
        """The probability that an example may take part first in step 1, 2, …, b."""
        return self.eligible * np.append(1.0, np.full(self.bands - 1, self.rate))

    def log_normaliser(self, k: int) -> float:
        if k not in self.log_moments:
            self.log_moments[k] = _Patterns(self, k).log_moment
        return self.log_moments[k]

    def tilted(self, k: int) -> Weighted:
        random = np.random.Generator(np.random.Philox(SEED))
        patterns = _Patterns(self, k)
        counts = patterns.draw(self.draws, random)
        found = []
        for drawn in np.split(counts, self.draws // CHUNK, axis=1):
            y = self._normals(random)
            for row, size in enumerate(self.column):
                y[row : row + self.steps] += size * drawn
            found.append(self.log_ratios(y))
        weights = np.full(self.draws, patterns.log_moment)
        return Weighted(np.concatenate(found), weights, -k, patterns.log_moment)

    @cached_property
    def absent(self) -> Array:
        """ln R, drawn from Q, ascending."""
        random = np.random.Generator(np.random.Philox(SEED + 1))
        drawn = [self.log_ratios(self._normals(random)) for _ in range(self.draws // CHUNK)]
        return np.sort(np.concatenate(drawn))

    def adding(self, places: Collection[float], certainty: float) -> Bound:
        certainty += math.log(1 + len(QUANTILES))  # these, and both bounds of plain draws
        plain = Weighted(self.absent, np.zeros(self.draws), 0.0, 0.0)
        return least([bound(plain, certainty, sign=-1), *_tails(self.absent, certainty)])

    def _normals(self, random: np.random.Generator) -> Array:
        return np.asarray(random.standard_normal((self.steps + self.bands - 1, CHUNK)))

    def log_ratios(self, y: Array) -> Array:
        """Return ln R.

        Args:
            y: what is released, over σ, shape (T + b − 1, draws).

        Returns:
            Shape (draws,).

        Raises:
            AccountantError: the noise is so small that R is beyond the range of float64.
        """
        a = sum(size * y[row : row + self.steps] for row, size in enumerate(self.column))
        a = np.asarray(a) - self.column @ self.column / 2
        if a.max() > LARGEST_EXPONENT:
            raise too_small()
        a = self.rate * np.exp(a, out=a)
        ratios = np.ones((self.bands, y.shape[1]))  # F_s/F_{s+1} of the last b steps, by s mod b
        later = np.ones(y.shape[1])  # F_{t+1}/F_{t+b}: the product of b − 1 of them
        log_f, first = np.zeros(y.shape[1]), np.zeros((self.bands, y.shape[1]))  # ln F_1 … ln F_b
        for step in range(self.steps - 1, -1, -1):
            ratio = (1 - self.rate) + a[step] / later
            ratios[step % self.bands] = ratio
            later = later * ratio / ratios[(step - 1) % self.bands]
            log_f = log_f + np.log(ratio)
            if step < self.bands:
                first[step] = log_f
        most = first.max(axis=0)
        found = np.asarray(most + np.log(self.starts @ np.exp(first - most)))
        if not np.isfinite(found).all():  # no comparison of a bound with δ would notice
            raise too_small()
        return found


def _tails(log_ratios: Array, certainty: float) -> Iterator[Bound]:
    """Yield bounds on δ for adding an example, from quantiles of ln R under Q.

    Args:
        log_ratios: independent draws, ascending.
        certainty: ln(1/ρ) for each quantile and direction.
    """
    from scipy.special import ndtri
    from scipy.stats import beta

    draws = len(log_ratios)
    ranks = np.array([max(1, round(share * draws)) for share in QUANTILES])
    values, chance = log_ratios[ranks - 1], math.exp(-certainty)
    highest = np.asarray(ndtri(beta.isf(chance, ranks, draws + 1 - ranks)))
    lowest = np.asarray(ndtri(beta.ppf(chance, ranks, draws + 1 - ranks)))
    for low, high in combinations(range(len(ranks)), 2):
        if lowest[high] > highest[low] and values[high] > values[low]:
            slope = (lowest[high] - highest[low]) / (values[high] - values[low])
            yield _tail(values[low], highest[low] - slope * values[low], slope)


def _tail(below: float, offset: float, slope: float) -> Bound:
    """Return the bound on δ where P(ln R ≤ x) ≤ Φ(offset + slope·x) for x ≤ below."""

    from scipy.special import log_ndtr, ndtr

    def at(epsilon: float) -> float:
        if -epsilon > below:
            return 1.0
        z = offset - slope * epsilon
        shift = epsilon - offset / slope + 1 / (2 * slope**2)
        return float(ndtr(z) - math.exp(shift + log_ndtr(z - 1 / slope)))

    return at


class _Patterns:
    """k patterns, each two of which are made likelier by e^(⟨m_l, m_m⟩/σ²).

    A state is how many of them took part 1, 2, …, b − 1 steps ago.

    Attributes:
        log_moment: ln E[R^k].
    """

    def __init__(self, of: Separated, k: int) -> None:
        from scipy.special import gammaln, logsumexp
        from scipy.stats import binom

        self.steps, self.bands = of.steps, of.bands
        every = list(_states(k, of.bands - 1))
        places = {state: place for place, state in enumerate(every)}
        self.states = np.array(every, dtype=np.int64).reshape(len(every), of.bands - 1)
        free = k - self.states.sum(axis=1)
        # The state that follows if j take part; where so many may not, the place does not matter.
        self.following = np.array(
            [[places.get((j, *state)[: of.bands - 1], 0) for j in range(k + 1)] for state in every]
        )
        j = np.arange(k + 1)
        self.products = np.correlate(of.column, of.column, "full")[of.bands - 1 :]
        chances = binom.logpmf(j, free[:, None], of.rate)  # −∞ beyond free
        self.alone = chances + j * (j - 1) / 2 * self.products[0]
        busy = self.states.sum(axis=1)
        ways = gammaln(k + 1) - gammaln(free + 1) - gammaln(self.states + 1).sum(axis=1)
        self.start = ways + k * math.log(of.eligible) + busy * math.log(of.rate)
        self.weights = [self._weights(step) for step in range(of.bands)]  # the last one stays
        self.values = self._values()
        self.log_moment = float(logsumexp(self.start + self.values[0]))

    def _weights(self, step: int) -> Array:
        """Return ln of the weight of j participations in a step from 0, shape (states, k + 1).

        What took part before the run began moved nothing.
        """
        within = np.arange(1, self.bands) <= step
        overlaps = self.states @ (self.products[1:] * within)
        return np.asarray(self.alone + np.arange(self.alone.shape[1]) * overlaps[:, None])

    def _values(self) -> Array:
        """Return ln of the expected weight from each step on, shape (T + 1, states)."""
        values = np.zeros((self.steps + 1, len(self.states)))
        for step in range(self.steps - 1, -1, -1):
            logs = self._logs(step, values[step + 1])
            most = logs.max(axis=1)
            values[step] = most + np.log(np.exp(logs - most[:, None]).sum(axis=1))
        return values

    def _logs(self, step: int, after: Array) -> Array:
        return np.asarray(self.weights[min(step, self.bands - 1)] + after[self.following])

    def draw(self, count: int, random: np.random.Generator) -> Counts:
        """Draw how many of the patterns take part in each step, int8 of shape (T, count)."""
        chances = np.cumsum(np.exp(self.start + self.values[0] - self.log_moment))
        state = np.minimum(np.searchsorted(chances, random.random(count)), len(chances) - 1)
        drawn = np.empty((self.steps, count), dtype=np.int8)
        for step in range(self.steps):
            logs = self._logs(step, self.values[step + 1]) - self.values[step][:, None]
            chances = np.cumsum(np.exp(logs), axis=1)
            drawn[step] = (chances[state, :-1] < random.random(count)[:, None]).sum(axis=1)
            state = self.following[state, drawn[step]]
        return drawn


def _states(most: int, places: int) -> Iterator[tuple[int, ...]]:
    """Yield all tuples of counts whose sum is at most `most`."""
    if places == 0:
        yield ()
        return
    for first in range(most + 1):
        for rest in _states(most - first, places - 1):
            yield (first, *rest)
