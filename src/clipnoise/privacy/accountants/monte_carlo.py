"""The Monte Carlo accountant: correlated noise, and examples that draw one step of every epoch.

An example draws its pattern i, the steps in which it takes part, with probability πᵢ. Once
whitened, the run releases Cx + σz, and x moves it by vectors that may depend on what was released
before. Row t moves, in pattern i, by a sum of vectors u_s of norm at most 1 with weights C[t, s].

**The dominating pair** is P = Σ πᵢ N(mᵢ, σ²I) against Q = N(0, σ²I), in both directions, where mᵢ
has the coordinates Σ_s |C[t, s]| over the steps s of pattern i. Proof. Under Q the likelihood ratio
is Σ πᵢ Mᵢ, where log Mᵢ has in step t, given what was released before, a Gaussian increment of
variance Γᵢᵢ and mean −Γᵢᵢ/2, and the covariance with that of Mⱼ is Γᵢⱼ, the inner product of what
patterns i and j move in row t, over σ². By Cauchy and Schwarz, Γᵢⱼ ≤ Kᵢⱼ = mᵢ[t] mⱼ[t]/σ².
Let V_t(x) be the mean of φ(Σ xᵢ Yᵢ), φ convex and Y the product of the factors after step t if
their covariances are K. Its second derivatives are means of φ″ Yᵢ Yⱼ ≥ 0. So along a path from Γ
to K, E V_t(x·exp(increments)) grows, at the rate ½ Σ (K − Γ)ᵢⱼ E[Mᵢ Mⱼ ∂ᵢ∂ⱼV_t] (this is Kahane's
inequality). From the last step to the first, E φ(Σ πᵢ Mᵢ) is at most its value for K, and both
hockey-stick divergences are of this form, φ(R) = (R − e^ε)₊ and (1 − e^ε R)₊. No entry of C need be
positive, and the others in a batch do not matter: given their draws, both cases share them.

**The estimate.** R is a function of v = (⟨mᵢ, y⟩/σ²), which is N(0, G) with Gᵢⱼ = ⟨mᵢ, mⱼ⟩/σ² under
Q: as many normals as there are patterns, however long the run is. To see rare values of R, y is
drawn from a density close to Q·R^k: k patterns are drawn in turn, each with probabilities that the
earlier ones raise by e^G, and y around the sum of their m. The weight of a draw is
R^(−k) Π_j N_j, N_j being the normalising sums, so that no weighted value of (R − e^ε)₊ exceeds a
bound that is known in advance: Hölder's inequality bounds N_j by its value for equal patterns, and
(R − e^ε)₊ R^(−k) ≤ e^((1−k)ε) (k − 1)^(k−1)/k^k. In the other direction y is shifted against the
mean of the m, and Jensen's inequality bounds the weights.

**The verification.** For values X ≥ 0 with second moment S, E exp(−λX) ≤ exp(−λE[X] + λ²S/2), so
the mean of n draws is below E[X] − √(2S ln(1/ρ)/n) with probability at most ρ. The same is true of
X², whose second moment is at most w²S where X ≤ w, and so bounds S. ε is the smallest at which this
bound on δ(ε) holds. All its parts fall as ε grows, so it errs only if the bound at the true ε does.

Source: Choquette-Choo et al. 2025, "Near Exact Privacy Amplification for Matrix Mechanisms"
(balls-in-bins, its dominating pair, Monte Carlo accounting); Wang et al. 2023, "A Randomized
Approach for Tight Privacy Accounting" (estimate, verify, release); Kahane 1986, "Une inégalité du
type de Slepian et Gordon sur les processus gaussiens".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.lazy import np
from clipnoise.privacy.accountants.poisson import (
    LARGEST_LOSS,
    AccountantError,
    Releases,
    refuse_tiny,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

DRAWS = 2**17
CHUNK = 2**12  # draws at a time, so that they stay in the processor's memory
# A calibration takes seconds for epochs of up to 40 steps, and about a minute at the most. T hardly
# matters for the time, but C may have T² entries.
MOST_PATTERNS, MOST_STEPS = 250, 5000
MOST_TILTS = 40  # the largest k
FAILURE = 0.01  # the share of δ that is left for the probability that the verification errs
SIGMA_GRID = 2**16  # values of σ for each factor of e; what lies between counts as the next lower
LARGEST_SIGMA = 2.0**20  # more counts as this
SIGMAS = 24 * SIGMA_GRID  # from SMALLEST_SIGMA to LARGEST_SIGMA
GRIDS = 128  # of ε; a profile looks at one of them first, which says which other one it needs
SEED = 2410_06266


def monte_carlo_epsilon(releases: Releases) -> float:
    """Bound the ε of noise of any correlation where an example draws its steps at random.

    The random numbers are the same in every call, so that a calibration can be repeated. For the
    probability that they mislead, at most δ/100 for all σ together, δ leaves room: with fresh
    numbers, the run that is released if its ε is found to be small enough is (ε, δ)-DP as a whole.

    Args:
        releases: `pattern` says in which steps an example takes part, and `steps` how many of them
            are released; σ is relative to the clip norm and to a strategy that is scaled for the
            pattern.

    Returns:
        ε under adding or removing one example.

    Raises:
        AccountantError: the noise is too small, or the run too long.
    """
    certainty = math.log(4 * SIGMAS / (FAILURE * releases.delta))  # ln(1/ρ): two bounds a direction
    return _mixture(releases).epsilon(releases.delta * (1 - FAILURE), certainty)


def monte_carlo_delta(releases: Releases, epsilons: Array) -> Array:
    """Bound δ at each ε, as `monte_carlo_epsilon` bounds ε at δ.

    The probability that the draws mislead anywhere is added to each, so each is as much of a
    guarantee as the ε that is stated.

    Args:
        releases: their δ is the smallest that matters.
        epsilons: ε ≥ 0, ascending; one of at most GRIDS, chosen by bounds at any others of them.
    """
    failure = FAILURE * releases.delta
    # Two bounds by each of three densities a direction.
    certainty = math.log(12 * SIGMAS * GRIDS * len(epsilons) / failure)
    return _mixture(releases).deltas(epsilons, releases.delta, certainty) + failure


def _mixture(releases: Releases) -> _Mixture:
    pattern = releases.pattern
    assert pattern is not None  # Budget requires it for this accountant
    refuse_tiny(releases.noise_multiplier)
    if pattern.groups > MOST_PATTERNS or pattern.steps > MOST_STEPS:
        raise AccountantError(
            f"accountant: monte-carlo covers runs of at most {MOST_STEPS} steps and epochs of at "
            f"most {MOST_PATTERNS}; got {pattern.steps} and {pattern.groups}. Allowed: larger "
            "batches, or the accountant per-epoch, which does not amplify."
        )
    log_sigma = math.log(min(releases.noise_multiplier, LARGEST_SIGMA))
    sigma = math.exp(math.floor(log_sigma * SIGMA_GRID) / SIGMA_GRID)
    return _Mixture(pattern.gram(releases.steps) / sigma**2)


@dataclass(frozen=True)
class Weighted:
    """Draws of R, each with the logarithm of its weight without the power of R.

    Attributes:
        log_ratios, log_weights: ln R and ln of the weight, shape (draws,).
        power: the weight has the factor R to this power.
        log_most: the logarithm of the largest of the other factors.
    """

    log_ratios: Array
    log_weights: Array
    power: float
    log_most: float


class _Mixture:
    """Σ N(mᵢ, I)/b against N(0, I), by the inner products of the m."""

    def __init__(self, gram: Array) -> None:
        self.gram = gram
        self.halves = np.diag(gram) / 2
        values, vectors = np.linalg.eigh(gram)
        # The symmetric root: of other roots, rounding decides which one is found.
        self.root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T

    def epsilon(self, delta: float, certainty: float) -> float:
        """Return ε at which both directions are verified."""
        removing = _bound(self.tilted(self.tilt(delta)), certainty, sign=1)
        value = _smallest(removing, delta)
        adding = _bound(self.shifted(self.shift(value)), certainty, sign=-1)
        return value if adding(value) <= delta else _smallest(adding, delta, value)

    def deltas(self, epsilons: Array, delta: float, certainty: float) -> Array:
        """Bound δ at each ε in both directions, by the best of the densities that are drawn from.

        Where removing an example says that δ is small, the draws for adding one are to be close:
        they are independent of those that say it.

        Args:
            epsilons: ascending.
            delta: the smallest δ that matters.
            certainty: ln(1/ρ).
        """
        tilts = {1, self.tilt(math.sqrt(delta)), self.tilt(delta)}
        removing = _least(
            [_bound(self.tilted(k), certainty, sign=1) for k in sorted(tilts)], epsilons
        )
        reached = [removing > level for level in (math.sqrt(delta), delta)]
        places = [epsilons[min(int(above.sum()), len(epsilons) - 1)] for above in reached]
        shifts = {0.0, *(self.shift(float(place)) for place in places)}
        adding = [_bound(self.shifted(tau), certainty, sign=-1) for tau in sorted(shifts)]
        return np.maximum(removing, _least(adding, epsilons))

    def log_normalisers(self) -> Array:
        """Bound ln Π_{j ≤ k} N_j for k = 1, 2, …, shape (MOST_TILTS,)."""
        return np.cumsum(
            [float(_log_mean_exp(j * self.gram).max()) for j in range(MOST_TILTS)], dtype=np.float64
        )

    def tilt(self, delta: float) -> int:
        """Choose k: that for which the largest weighted value is 100δ at the smallest ε."""
        if 100 * delta >= 1:
            return 1
        k = np.arange(2, MOST_TILTS + 1, dtype=np.float64)
        excess = self.log_normalisers()[1:] + _log_most_remaining(k) - math.log(100 * delta)
        return int(k[np.argmin(excess / (k - 1))])

    def tilted(self, k: int) -> Weighted:
        """Draw R from a density close to Q·R^k."""
        random = np.random.Generator(np.random.Philox(SEED))
        drawn = [self._tilted(k, random) for _ in range(DRAWS // CHUNK)]
        ratios, weights = (np.concatenate(column) for column in zip(*drawn, strict=True))
        return Weighted(ratios, weights, -k, float(self.log_normalisers()[k - 1]))

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

    def shift(self, epsilon: float) -> float:
        """Choose τ, by how many mean m to shift y, so that the largest weighted value is least."""
        shifts = np.append(0.0, np.geomspace(1e-2, 1e3, 200))
        most = [_log_most(-1, tau, epsilon) + self._log_shifted(tau) for tau in shifts]
        return float(shifts[np.argmin(most)])

    def _log_shifted(self, tau: float) -> float:
        """Return ln of the weight of a shift by τ where R = 1 and Jensen's inequality is tight."""
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
        most = self._log_shifted(tau)
        return Weighted(np.concatenate(ratios), np.concatenate(weights), tau, most)

    def normals(self, random: np.random.Generator) -> Array:
        return np.asarray(random.standard_normal((CHUNK, len(self.gram))) @ self.root)

    def log_ratios(self, v: Array) -> Array:
        return _log_mean_exp((v - self.halves).T)


def _log_mean_exp(values: Array) -> Array:
    """Return ln of the mean of exp over the first axis."""
    most = values.max(axis=0)
    return np.asarray(np.log(np.exp(values - most).mean(axis=0)) + most)


def _log_most_remaining(k: Array) -> Array:
    """Return ln((k − 1)^(k−1)/k^k) for k > 1."""
    return np.asarray((k - 1) * np.log(k - 1) - k * np.log(k))


def _log_most(sign: int, power: float, epsilon: float) -> float:
    """Return ln of the largest value of (R − e^ε)₊ R^power, or of (1 − e^ε R)₊ R^power."""
    exponent = -power - 1 if sign == 1 else power
    if exponent == 0:
        return 0.0
    base = exponent * math.log(exponent) - (exponent + 1) * math.log(exponent + 1)
    return base - exponent * epsilon


def _bound(drawn: Weighted, certainty: float, *, sign: int) -> Callable[[float], float]:
    """Return the upper confidence bound on δ as a function of ε.

    Args:
        drawn: R and weights.
        certainty: ln(1/ρ).
        sign: 1 for removing an example, −1 for adding one.
    """
    n, power = len(drawn.log_ratios), drawn.power
    # (R − e^ε)₊ = R(1 − e^ε/R)₊
    logs = drawn.log_weights + (power + (sign == 1)) * drawn.log_ratios - drawn.log_most
    margin = math.sqrt(certainty / (2 * n))
    values, share = np.empty(n), np.empty(n)  # for every ε: it takes as long to allocate them

    def bound(epsilon: float) -> float:
        log_most = _log_most(sign, power, epsilon)
        np.subtract(epsilon, sign * drawn.log_ratios, out=share)
        np.negative(np.expm1(np.minimum(share, 0.0, out=share), out=share), out=share)
        # No larger value is below 1 where the share is not 0, and where it is, ∞·0 must not occur.
        np.minimum(np.subtract(logs, log_most, out=values), LARGEST_LOSS, out=values)
        np.multiply(np.exp(values, out=values), share, out=values)
        np.minimum(values, 1.0, out=values)
        root = margin + math.sqrt(margin**2 + float(values @ values) / n)
        most = math.exp(min(log_most + drawn.log_most, LARGEST_LOSS))
        return most * (float(values.mean()) + 2 * root * margin)

    return bound


def _least(bounds: list[Callable[[float], float]], epsilons: Array) -> Array:
    """Return the smallest of some bounds at each ε."""
    return np.array([min(bound(float(epsilon)) for bound in bounds) for epsilon in epsilons])


def _smallest(bound: Callable[[float], float], delta: float, start: float = 0.0) -> float:
    """Return an ε at which a falling bound is at most δ, close above the smallest one."""
    if bound(start) <= delta:
        return start
    low, high = start, start + 1.0
    while bound(high) > delta:
        low, high = high, 2 * high
        if high > 1e4:
            raise AccountantError(
                "noise_multiplier: too small for a bound by the accountant monte-carlo."
            )
    while high - low > 1e-7 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (low, middle) if bound(middle) <= delta else (middle, high)
    return high
