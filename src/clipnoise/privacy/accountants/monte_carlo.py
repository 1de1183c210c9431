"""The Monte Carlo accountant: correlated noise, and examples that draw the steps of theirs.

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

**The estimate** of δ(ε), and how it is verified, are in `mixture`. Where an example keeps its turn,
there are few patterns (`turns`). Where it waits a random time between participations, there are
many, but the participations of one pattern move different rows (`separated`).

Source: Choquette-Choo et al. 2025, "Near Exact Privacy Amplification for Matrix Mechanisms"
(balls-in-bins, its dominating pair, Monte Carlo accounting); Wang et al. 2023, "A Randomized
Approach for Tight Privacy Accounting" (estimate, verify, release); Kahane 1986, "Une inégalité du
type de Slepian et Gordon sur les processus gaussiens".
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from clipnoise.privacy.accountants.mixture import Mixture
from clipnoise.privacy.accountants.patterns import Pattern
from clipnoise.privacy.accountants.poisson import AccountantError, Releases, refuse_tiny
from clipnoise.privacy.accountants.separated import Separated
from clipnoise.privacy.accountants.turns import Turns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

# A calibration takes seconds for epochs of up to 40 steps, and about a minute at the most. T hardly
# matters for the time, but C may have T² entries.
MOST_PATTERNS, MOST_STEPS = 250, 5000
# Where an example waits, it grows with T, and b is limited by how many states two patterns have.
MOST_BANDS, MOST_STEPS_OF_BANDS = 125, 2000
FAILURE = 0.01  # the share of δ that is left for the probability that the verification errs
SIGMA_GRID = 2**16  # values of σ for each factor of e; what lies between counts as the next lower
LARGEST_SIGMA = 2.0**20  # more counts as this
SIGMAS = 24 * SIGMA_GRID  # from SMALLEST_SIGMA to LARGEST_SIGMA
GRIDS = 128  # of ε; a profile looks at one of them first, which says which other one it needs


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
    # ln(1/ρ): two bounds a direction
    certainty = math.log(4 * SIGMAS / FAILURE) - math.log(releases.delta)
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
    events = 12 * SIGMAS * GRIDS * len(epsilons)
    certainty = math.log(events / FAILURE) - math.log(releases.delta)
    return _mixture(releases).deltas(epsilons, releases.delta, certainty) + failure


def _mixture(releases: Releases) -> Mixture:
    pattern = releases.pattern
    assert pattern is not None  # Budget requires it for this accountant
    refuse_tiny(releases.noise_multiplier)
    _refuse_long(pattern)
    log_sigma = math.log(min(releases.noise_multiplier, LARGEST_SIGMA))
    sigma = math.exp(math.floor(log_sigma * SIGMA_GRID) / SIGMA_GRID)
    return _of(pattern, sigma, releases.steps)


@lru_cache(maxsize=1)  # ε and the profile are of the same draws
def _of(pattern: Pattern, sigma: float, steps: int) -> Mixture:
    if pattern.sampling_rate < 1:
        return Separated(pattern.column() / sigma, pattern.sampling_rate, steps)
    return Turns(pattern.gram(steps) / sigma**2)


def _refuse_long(pattern: Pattern) -> None:
    waits = pattern.sampling_rate < 1
    steps, groups = (MOST_STEPS_OF_BANDS, MOST_BANDS) if waits else (MOST_STEPS, MOST_PATTERNS)
    if pattern.groups <= groups and pattern.steps <= steps:
        return
    raise AccountantError(
        f"accountant: monte-carlo covers runs of at most {steps} steps and "
        f"{f'noise of at most {groups} bands' if waits else f'epochs of at most {groups}'}; got "
        f"{pattern.steps} and {pattern.groups}. Allowed: "
        + (
            "fewer of them, or the sampler cyclic-poisson."
            if waits
            else "larger batches, or the accountant per-epoch, which does not amplify."
        )
    )
