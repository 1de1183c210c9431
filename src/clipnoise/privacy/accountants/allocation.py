"""The accountant of random allocation: each example in one random step of each epoch."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from clipnoise.lazy import np
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.accountants.poisson import (
    LARGEST_LOSS,
    PLD_ROUNDING,
    AccountantError,
    Releases,
    refuse_tiny,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

INTERVAL = 1e-4  # width of the grid of privacy losses
CELLS = 60  # of the grid of likelihood ratios within one of their standard deviations
MOST_POINTS = 2**22  # of the grid of their sum
TAIL = 1e-4  # the share of δ that is left for what lies beyond the grids


def allocated_epsilon(releases: Releases) -> float:
    """Bound the ε of epochs in which each example takes part in one step, uniformly at random.

    The steps of an example are drawn independently of those of all others, so removing it changes
    nothing else. An epoch of t steps is then dominated by (1/t)Σᵢ N(eᵢ, σ²I) against N(0, σ²I), in
    both directions; epochs compose. It is so too if a step depends on what was released before:
    whatever vector v of length at most 1 the example adds, y·v + √(1 − |v|²)·noise along v, and
    noise across it, turns y from N(1, σ²) into N(v, σ²I) and from N(0, σ²) into N(0, σ²I).

    Args:
        releases: `steps` epochs of 1/q steps each; σ is relative to the clip norm.

    Returns:
        ε under adding or removing one example.

    Raises:
        AccountantError: the noise is too small, or rounding errors rival δ.

    Source: Chua et al. 2024, "Balls-and-Bins Sampling for DP-SGD" (the dominating pair); Feldman
    and Shenfeld 2026, "Efficient privacy loss accounting for subsampling and random allocation"
    (its privacy loss distribution by convolution of likelihood ratios).
    """
    if releases.steps == 0:
        return 0.0
    if releases.sampling_rate == 1:
        sigma = releases.noise_multiplier / math.sqrt(releases.steps)
        return gaussian_epsilon(sigma, releases.delta)
    composed, rounding = _composed(releases)
    value = composed.get_epsilon_for_delta(releases.delta - rounding)
    if not math.isfinite(value):
        raise _beyond(releases)
    return max(0.0, float(value))


def allocated_delta(releases: Releases, epsilons: Array) -> Array:
    """Bound δ at each ε, as `allocated_epsilon` bounds ε at δ.

    Args:
        releases: q < 1; their δ is the smallest that matters.
        epsilons: ε ≥ 0, ascending.
    """
    composed, rounding = _composed(releases)
    return np.asarray(composed.get_delta_for_epsilon(epsilons) + rounding, dtype=np.float64)


def _composed(releases: Releases) -> tuple[Any, float]:
    """Return the losses of all epochs together, and by how much rounding may change δ."""
    refuse_tiny(releases.noise_multiplier)
    tail = TAIL * releases.delta / releases.steps
    steps = math.floor(1 / releases.sampling_rate * (1 + 1e-12))
    rounding = releases.steps * PLD_ROUNDING
    if not rounding < releases.delta / 2:
        raise _beyond(releases)
    one = epoch_loss(releases.noise_multiplier, steps, 2.0 ** math.floor(math.log2(tail)))
    return one.self_compose(releases.steps), rounding


def _beyond(releases: Releases) -> AccountantError:
    return AccountantError(
        f"accountant: pld-allocation cannot bound epsilon for {releases}: what lies beyond its "
        "grids rivals delta. Give more noise, or a larger delta."
    )


@lru_cache(maxsize=4)
def epoch_loss(noise_multiplier: float, steps: int, tail: float) -> Any:
    """Return a privacy loss distribution that dominates that of one epoch.

    With N(0, σ²I) the likelihood ratio R is the mean of t independent Lᵢ = exp(xᵢ/σ − 1/(2σ²)),
    x standard normal, and both hockey-stick divergences are the mean of a convex function of R:
    (R − e^ε)₊ and (1 − e^ε R)₊. So they can only grow where each Lᵢ is spread over two points of a
    grid beside it such that its mean stays. What lies beyond the grid counts as an infinite loss.

    Args:
        noise_multiplier: σ.
        steps: t.
        tail: the probability that may lie beyond the grid.

    Returns:
        The distribution for adding and removing an example, of dp-accounting.
    """
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    absent, present, width = _likelihood_ratios(noise_multiplier, steps, tail)
    first, size = _window(absent, present, steps, tail)
    ratios = (first + np.arange(size)) * width / steps
    positive = ratios > 0
    losses = np.log(ratios[positive])
    others = float(absent.sum()) ** (steps - 1)
    rounding = steps * 2.0**-49 / width + tail

    def lacking(one: Array, noise: float) -> float:
        """Return the probability of what is beyond the grid of L, or may be misplaced."""
        return 1 - float(one.sum()) * others + noise * size + rounding

    with_it, noise = _sums(present, absent, steps, first, size)
    removing = _on_grid(losses, with_it[positive], lacking(present, noise))
    without, noise = _sums(absent, absent, steps, first, size)
    never = float(without[~positive].sum())  # the loss of a ratio of 0 is infinite
    adding = _on_grid(-losses[::-1], without[positive][::-1], lacking(absent, noise) + never)
    return PrivacyLossDistribution(removing, adding)


def _likelihood_ratios(sigma: float, steps: int, tail: float) -> tuple[Array, Array, float]:
    """Spread one L over a grid 0, h, 2h, …

    Returns:
        Its probabilities where the example is not in the step, those where it is, and h.
    """
    from scipy.special import ndtr, ndtri

    reach = -float(ndtri(tail / 4)) / sigma + 1 / (2 * sigma**2)
    if reach > LARGEST_LOSS / 2:
        raise AccountantError(
            f"noise_multiplier: {sigma:g} is too small for the accountant pld-allocation."
        )
    spread = math.sqrt(math.expm1(sigma**-2))
    # A fine grid beside the spread of L and the smallest ratios, which are seldom 0 in all t steps.
    least = math.exp(float(ndtri(tail ** (1 / steps))) / sigma - 1 / (2 * sigma**2))
    width = max(min(spread / CELLS, least / 4), math.exp(reach) / (MOST_POINTS / 4))
    points = width * np.arange(math.ceil(math.exp(reach) / width) + 1)
    with np.errstate(divide="ignore"):
        normal = sigma * np.log(points) + 1 / (2 * sigma)  # the x at which L is this point
    # Mass and mean of L in each cell, as differences on the side on which they are accurate.
    mass, mean = _differences(normal, ndtr), _differences(normal - 1 / sigma, ndtr)
    upper = np.clip(mean / width - np.arange(len(mass)) * mass, 0.0, mass)
    absent = np.zeros(len(points))
    absent[:-1] += mass - upper
    absent[1:] += upper
    return absent, absent * points, width


def _differences(x: Array, ndtr: Any) -> Array:
    """Return Φ(x₁) − Φ(x₀), … without cancellation."""
    return np.asarray(np.where(x[1:] <= 0, np.diff(ndtr(x)), -np.diff(ndtr(-x))))


def _window(absent: Array, present: Array, steps: int, tail: float) -> tuple[int, int]:
    """Return the first point and the number of points outside of which sums are too rare to matter.

    By Chernoff's bound, for the sum with the example and that without it.
    """
    from scipy.fft import next_fast_len

    grid = np.arange(len(absent))
    limit = math.log(tail / 4)
    ends = []
    for sign in (-1, 1):
        best = 0.0 if sign < 0 else float(steps * (len(grid) - 1))
        for scale in np.geomspace(1e-3, 1e3, 61):
            slope = sign * scale / len(grid)
            shift = max(0.0, slope * (len(grid) - 1))
            weights = np.exp(slope * grid - shift)
            one = math.log(float(absent @ weights)) + shift
            other = math.log(float(present @ weights)) + shift
            log_moment = (steps - 1) * one + max(one, other)
            bound = (log_moment - limit) / slope
            best = max(best, bound) if sign < 0 else min(best, bound)
        ends.append(best)
    first = max(0, math.floor(ends[0]))
    return first, next_fast_len(math.ceil(ends[1]) - first + 1, real=True)


def _sums(one: Array, other: Array, steps: int, first: int, size: int) -> tuple[Array, float]:
    """Return the distribution of the sum of one number and t − 1 others within a window.

    What lies outside of the window appears within it, too, where it can only add to a divergence.

    Returns:
        The probabilities, and by how much rounding may have made each of them too small.
    """
    from scipy.fft import irfft, rfft

    def transformed(values: Array) -> Any:
        places = np.arange(len(values)) % size
        return rfft(np.bincount(places, weights=values, minlength=size))

    product = irfft(transformed(one) * transformed(other) ** (steps - 1), n=size)
    inside = np.roll(product, -(first % size))
    noise = max(-float(inside.min()), float(inside.max()) * 2**-53)
    return np.maximum(inside, 0.0), noise


def _on_grid(losses: Array, probabilities: Array, infinite: float) -> Any:
    """Spread privacy losses over the multiples of INTERVAL beside them, as a pessimistic PLD.

    Of each loss ℓ, both its probability and e^(−ℓ) times it stay, so that the result dominates.

    Args:
        losses: ascending.
        probabilities: of each.
        infinite: the probability of an infinite loss.

    Source: Doroshenko et al. 2022, "Connect the Dots" (the same points on a grid of ε).
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    below = np.floor(losses / INTERVAL).astype(np.int64)
    share = np.expm1(-(losses - below * INTERVAL)) / np.expm1(-INTERVAL)
    above = probabilities * np.clip(share, 0.0, 1.0)
    first, size = int(below[0]), int(below[-1] - below[0]) + 2
    masses = np.bincount(below - first, weights=probabilities - above, minlength=size)
    masses += np.bincount(below - first + 1, weights=above, minlength=size)
    return DensePLDPmf(INTERVAL, first, masses, min(1.0, infinite), pessimistic_estimate=True)
