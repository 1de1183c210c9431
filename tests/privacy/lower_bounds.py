"""Lower bounds on ε from nothing but the two distributions that must look alike.

Every accountant's ε is compared with these. No code or theorem is shared with the accountants, nor
with Opacus or dp-accounting: the outputs of the mechanism on two neighbouring datasets are cut
into cells, and what tells the cells apart tells the datasets apart, so that

    δ(ε) = max_S P(S) − e^ε Q(S)

over sets S of cells is never above the true value. Over T releases the statistic is the sum of
log-likelihood ratios, each rounded to a grid. Its distributions under P and under Q are T-fold
convolutions. Rounding loses a little (a relative (h/s)²/12 of the divergence, for a grid of h and
log-likelihood ratios of standard deviation s) and can never gain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq
from scipy.special import log_ndtr, logsumexp

Array = NDArray[np.float64]

CELLS_PER_SIGMA = 100
REACH = 12  # standard deviations of the noise beyond the outermost means
GRID = 0.15  # h, in standard deviations of the log-likelihood ratio
POINTS = 2**19  # of the grid; more are never used
WRAPPED = 1e-12  # probability of the sums that leave the circle
ROUNDING = 1e-15  # relative error of a convolution, per release
SHARES = (0.0, 1.0)  # of the tilt: none is better where the losses have a long tail


@dataclass(frozen=True)
class Pair:
    """One release on two neighbouring datasets.

    Attributes:
        log_p: log of the mass of each cell under P.
        loss: log(P/Q) of each cell.
    """

    log_p: Array
    loss: Array


def gaussian_mixtures(p: Mapping[float, float], q: Mapping[float, float], sigma: float) -> Pair:
    """Return the pair of a number whose mean is random and whose noise is N(0, σ²).

    Args:
        p: probability of each mean under P.
        q: the same under Q.
        sigma: σ.
    """
    means = [*p, *q]
    low, high = min(means) - REACH * sigma, max(means) + REACH * sigma
    edges = np.linspace(low, high, math.ceil(CELLS_PER_SIGMA * (high - low) / sigma) + 1)
    edges[0], edges[-1] = -np.inf, np.inf
    base = _log_cells(edges / sigma)
    excess_p, excess_q = (_log_excess(edges, base, mixture, sigma) for mixture in (p, q))
    return Pair(base + excess_p, excess_p - excess_q)


def sampled(sigma: float, rate: float, shift: float = 1.0) -> Pair:
    """Return the pair of a sum to which an example adds `shift` with probability `rate`."""
    return gaussian_mixtures({0.0: 1 - rate, shift: rate}, {0.0: 1.0}, sigma)


def revealed(weights: Mapping[float, float], sigma: float) -> Pair:
    """Return the pair of a sum to which a random shift is added, the shift being seen, too."""
    pairs = [(math.log(weight), sampled(sigma, 1.0, by)) for by, weight in weights.items()]
    return Pair(
        np.concatenate([log_weight + pair.log_p for log_weight, pair in pairs]),
        np.concatenate([pair.loss for _, pair in pairs]),
    )


def reverse(pair: Pair) -> Pair:
    """Exchange P and Q."""
    return Pair(pair.log_p - pair.loss, -pair.loss)


def epsilon_at_least(releases: Sequence[tuple[Pair, int]], delta: float) -> float:
    """Return an ε that no (ε, δ)-DP bound for the releases together can be below.

    Args:
        releases: each kind of release, and how often it is made.
        delta: δ.
    """
    if sum(steps for _, steps in releases) == 1:
        return _of_one(releases[0][0], delta)
    tilt = _tilt(releases, delta)
    return max(_at_tilt(_compose(releases, share * tilt), delta) for share in SHARES)


def _at_tilt(composed: _Composed, delta: float) -> float:
    def excess(epsilon: float) -> float:
        return composed.log_delta(epsilon) - math.log(delta)

    points = np.linspace(max(0.0, composed.sums[0]), max(0.0, composed.sums[-1]), 16)
    held = [number for number, point in enumerate(points) if excess(point) > 0]
    if not held:
        return 0.0
    return float(brentq(excess, points[held[-1]], points[held[-1] + 1], xtol=1e-9, rtol=1e-9))


def _of_one(pair: Pair, delta: float) -> float:
    """Return the largest ε at which P(S) − e^ε Q(S) still exceeds δ, S being loss > ε."""
    order = np.argsort(-pair.loss)
    loss, p = pair.loss[order], np.exp(pair.log_p[order])
    with np.errstate(over="ignore", invalid="ignore"):
        log_q = pair.log_p[order] - loss
        # With the first k cells as S, P(S) − e^ε Q(S) = δ at ε = log((P(S) − δ)/Q(S)).
        in_p, log_in_q = np.cumsum(p), np.logaddexp.accumulate(log_q)
        usable = in_p > delta
        values = np.log(in_p[usable] - delta) - log_in_q[usable]
    return max(0.0, float(values.max(initial=0.0)))


@dataclass(frozen=True)
class _Composed:
    """A sum of rounded losses, both of its distributions tilted by e^(λ·sum).

    Attributes:
        sums: the values it can have.
        p: under P, tilted and normalised.
        q: under Q multiplied by e^sum, then as p.
        tilt: λ.
        log_mass_p: log of what p was divided by.
        log_mass_q: log of what q was divided by.
        lost: allowance for wrap-around and for rounding errors of the convolutions.
    """

    sums: Array
    p: Array
    q: Array
    tilt: float
    log_mass_p: float
    log_mass_q: float
    lost: float

    def log_delta(self, epsilon: float) -> float:
        """Return log of a lower bound on δ(ε): S is every sum at which P/Q is about e^ε or more."""
        shift = max(0.0, self.log_mass_q - self.log_mass_p)  # what rounding made of the ratio
        first = int(np.searchsorted(self.sums, epsilon + shift))
        above = self.sums[first:] - epsilon - shift
        ratio = np.exp(self.log_mass_q - self.log_mass_p - shift - above)
        gain = np.exp(-self.tilt * above) @ (self.p[first:] - ratio * self.q[first:])
        sure = max(float(gain) - 2 * self.lost, 1e-300)
        return self.log_mass_p - self.tilt * (epsilon + shift) + math.log(sure)


def _tilt(releases: Sequence[tuple[Pair, int]], delta: float) -> float:
    """Return λ ≥ 0 such that sums near the ε that is sought are likely after tilting by e^(λ·sum).

    Any λ gives a valid bound; a good one keeps it precise for tiny δ.
    """

    def log_probability(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        log_mass, mean, variance = np.sum(
            [steps * np.array(_moments(pair, tilt)) for pair, steps in releases], axis=0
        )
        prefactor = 1 / (tilt * (1 + tilt) * math.sqrt(2 * math.pi * variance))
        return float(log_mass - tilt * mean + math.log(min(1.0, prefactor)) - math.log(delta))

    low, high = math.log(1e-4), math.log(1e7)
    if log_probability(low) <= 0:
        return 0.0
    if log_probability(high) >= 0:
        return math.exp(high)
    return math.exp(brentq(log_probability, low, high, xtol=1e-3))


def _moments(pair: Pair, tilt: float) -> tuple[float, float, float]:
    """Return log E_P[e^(λ·loss)], and mean and variance of the tilted loss."""
    logs = pair.log_p + tilt * pair.loss
    mass = _log_sum(logs)
    weights = np.exp(logs - mass)
    return mass, float(weights @ pair.loss), _spread(pair.loss, logs)


@dataclass(frozen=True)
class _Rounded:
    """The losses of one release, rounded to an offset plus multiples of the grid.

    Attributes:
        places: the multiples, ascending.
        losses: the rounded losses.
        log_p: log of P·e^(λ·loss) of each.
        log_q: log of Q·e^((1 + λ)·loss) of each.
        steps: T, how often the release is made.
    """

    places: NDArray[np.int64]
    losses: Array
    log_p: Array
    log_q: Array
    steps: int


def _round(pair: Pair, steps: int, grid: float, tilt: float) -> _Rounded:
    places, inverse = np.unique(np.rint(pair.loss / grid).astype(np.int64), return_inverse=True)
    log_p, log_q = (_log_sums(logs, inverse) for logs in (pair.log_p, pair.log_p - pair.loss))
    losses = grid * places
    tilted = log_p + tilt * losses
    losses = losses + np.exp(tilted - _log_sum(tilted)) @ (log_p - log_q - losses)
    return _Rounded(places, losses, log_p + tilt * losses, log_q + (1 + tilt) * losses, steps)


def _log_sums(logs: Array, groups: NDArray[np.intp]) -> Array:
    """Add numbers given by their logs within each group."""
    top = np.full(groups.max() + 1, -np.inf)
    np.maximum.at(top, groups, logs)
    return np.asarray(top + np.log(np.bincount(groups, np.exp(logs - top[groups]))))


def _compose(releases: Sequence[tuple[Pair, int]], tilt: float) -> _Composed:
    """Convolve the rounded losses, on a circle so large that hardly anything wraps around."""
    variance = sum(steps * _moments(pair, tilt)[2] for pair, steps in releases)
    grid = GRID * math.sqrt(variance / sum(steps for _, steps in releases))
    while True:
        rounded = [_round(pair, steps, grid, tilt) for pair, steps in releases]
        low, high = _window(rounded)
        size = next_fast_len(math.ceil((high - low) / grid) + 2, real=True)
        if size <= POINTS:
            break
        grid *= 2 * size / POINTS
    offset = sum(one.steps * (one.losses[0] - grid * one.places[0]) for one in rounded)
    first = math.floor((low - offset) / grid)
    composed, log_masses = [], []
    lost = WRAPPED + ROUNDING * sum(one.steps for one in rounded)
    for side in ("log_p", "log_q"):
        spectrum, log_mass = np.ones(size // 2 + 1, dtype=complex), 0.0
        for one in rounded:
            mass = _log_sum(getattr(one, side))
            weights = np.exp(getattr(one, side) - mass)
            spectrum *= rfft(np.bincount(one.places % size, weights, size)) ** one.steps
            log_mass += one.steps * mass
        composed.append(np.roll(irfft(spectrum, size), -(first % size)))
        log_masses.append(log_mass)
    return _Composed(
        offset + grid * np.arange(first, first + size), *composed, tilt, *log_masses, lost
    )


def _window(rounded: Sequence[_Rounded]) -> tuple[float, float]:
    """Return bounds that the sum leaves with a probability below WRAPPED (Chernoff)."""
    ends = {1: -math.inf, -1: -math.inf}
    for sign, side in itertools.product(ends, ("log_p", "log_q")):
        spread = sum(one.steps * _spread(one.losses, getattr(one, side)) for one in rounded)
        reaches = []
        for scale in range(-4, 3):
            rate = math.exp(scale) * 7.5 / math.sqrt(spread)
            moment = 0.0
            for one in rounded:
                logs = getattr(one, side)
                tilted = _log_sum(logs + sign * rate * one.losses)
                moment += one.steps * (tilted - _log_sum(logs))
            reaches.append((moment - math.log(WRAPPED / 4)) / rate)
        ends[sign] = max(ends[sign], min(reaches))
    return -ends[-1], ends[1]


def _log_sum(logs: Array) -> float:
    """Return log Σ e^x."""
    top = logs.max()
    return float(top + np.log(np.exp(logs - top).sum()))


def _spread(values: Array, logs: Array) -> float:
    """Return the variance of values with weights given by their logs."""
    weights = np.exp(logs - _log_sum(logs))
    return max(float(weights @ (values - weights @ values) ** 2), 1e-300)


def _log_cells(edges: Array) -> Array:
    """Return log of the standard normal's mass between each edge and the next."""
    left, right = edges[:-1], edges[1:]
    flip = left >= 0  # so that both logs stay far from 0
    larger = log_ndtr(np.where(flip, -left, right))
    smaller = log_ndtr(np.where(flip, -right, left))
    return np.asarray(larger + np.log(-np.expm1(smaller - larger)))


def _log_excess(edges: Array, base: Array, mixture: Mapping[float, float], sigma: float) -> Array:
    """Return log of a mixture's mass over that of N(0, σ²), by cell, precise also near 0."""
    means = np.array(list(mixture))[:, None]
    weights = np.array(list(mixture.values()))[:, None]
    ratios = np.stack([_log_cells((edges - mean) / sigma) for mean in means[:, 0]]) - base
    far = logsumexp(ratios, b=weights, axis=0)
    near = np.log1p(np.sum(weights * np.expm1(np.clip(ratios, -1, 1)), axis=0) / weights.sum())
    return np.where(np.abs(ratios).max(axis=0) < 1, near, far)
