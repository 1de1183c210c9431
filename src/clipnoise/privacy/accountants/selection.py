"""The cost of tuning: what choosing the best of several private runs costs in ε."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from clipnoise.lazy import np
from clipnoise.privacy.accountants.poisson import (
    ORDERS,
    PLD_ROUNDING,
    loss_distribution,
    rdp_curve,
    renyi_delta,
    renyi_epsilon,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clipnoise.privacy.trials import DrawnTrials

    Array = NDArray[np.float64]

Releases = tuple[float, float, int]  # σ, q and T of a run: Poisson-subsampled Gaussians

CELLS = 1500  # of the probability of a better score
SMALLEST_CELL = 1e-14
SMALLEST_RATIO = 1e-300
POINTS = 4000  # on each side of 0, at which profiles are tabulated
THINNED = 20  # every so many of them bounds how a better score becomes more likely
REACH = 60.0  # the largest ε that is tabulated
BEYOND = 1e-3  # the share of δ that may lie beyond what is tabulated
ROUNDING = 1e-6  # relative error of sums


def selected_epsilon(
    trials: DrawnTrials, trial: Releases, *, delta: float, then: Releases | None = None
) -> float:
    """Bound the ε of publishing the best of a drawn number of private runs, and a run after it.

    K is drawn first and stays secret. Each of K trials takes its hyper-parameters at random, in the
    same way for all, and draws its own batches and noise. Its score may depend on what it
    releases and on public values (a validation set that is public, or not to be protected), and
    on nothing else. The best one is published; the others, their scores and K are not. Choosing
    from a fixed grid costs more. Choosing by runs on public data costs nothing.

    The smaller of two bounds: of Rényi divergences (`selected_curve`), and of the privacy profile
    (`selected_profile`) of the loss distribution of a trial.

    Args:
        trials: the law of K.
        trial: σ, q and T of a trial, whatever its hyper-parameters.
        delta: δ of the result.
        then: a run with the hyper-parameters of the best trial, which is published too; None if the
            trial itself is what is published.

    Returns:
        ε under adding or removing one example.
    """
    return min(bound(trials, trial, then, delta) for bound in (_by_divergences, _by_profile))


def composed_epsilon(mechanisms: Iterable[Releases], *, delta: float) -> float:
    """Bound the ε of publishing everything that several runs release.

    Args:
        mechanisms: σ, q and T of each run: Poisson-subsampled Gaussians with noise and batches
            drawn independently of the other runs.
        delta: δ of all together.

    Returns:
        ε under adding or removing one example: Rényi divergences add up at each order.

    Source: Mironov 2017, "Rényi Differential Privacy", proposition 1.
    """
    curves = [steps * rdp_curve(sigma, rate) for sigma, rate, steps in mechanisms if steps]
    return renyi_epsilon(np.sum(curves, axis=0), delta) if curves else 0.0


def selected_curve(trials: DrawnTrials, single: Array, orders: Array) -> Array:
    """Bound the Rényi divergences of the best of a drawn number of trials.

    At order α, with ε(α) that of a trial and m = E[K]:

    - negative binomial (Theorem 2): ε(α) + log(m)/(α − 1) + (1 + η)((1 − 1/α̂)ε(α̂) + log(1/γ)/α̂),
      for the best α̂ of `orders`;
    - Poisson (Theorem 6): ε(α) + μδ̂ + log(m)/(α − 1), where a trial is (ε̂, δ̂)-DP with
      ε̂ = log(1 + 1/(α − 1)). The theorem has log(μ), of a number that may be 0. With 0 left out,
      the distributions under both datasets are divided by 1 − e^−μ, and their divergence grows by
      −log(1 − e^−μ)/(α − 1): m = μ/(1 − e^−μ).

    Args:
        trials: the law of K.
        single: ε(α) of a trial at each order.
        orders: α > 1.

    Source: Papernot, Steinke 2022, "Hyperparameter Tuning with Rényi Differential Privacy".
    """
    base = single + math.log(trials.mean) / (orders - 1)
    if trials.law == "poisson":
        slack = renyi_delta(single, np.log1p(1 / (orders - 1)), orders)
        return np.asarray(base + trials.rate * slack)
    spread = (1 - 1 / orders) * single + math.log1p(trials.odds) / orders
    return np.asarray(base + (1 + trials.shape) * min(spread))


def selected_profile(trials: DrawnTrials, levels: Array, deltas: Array) -> tuple[Array, Array]:
    """Return the weights w and shifts s with which δ(ε) ≤ Σ_j w_j δ₁(ε + s_j) for the best trial.

    δ₁ is the privacy profile of a trial, the larger of both directions. Let the outputs of a trial
    be ordered by their scores, equal ones at random, and u be the probability, under one dataset,
    of an output better than y (and of y itself for a share of it that is uniform). Then y is the
    best with density P(y)φ(u), φ(u) = E[K(1 − u)^(K−1)]; under the other dataset, with density
    Q(y)φ(u′). That something better is seen is an event, so u′ ≤ U(u) = min_ε e^ε u + δ₁(ε). φ
    falls, so that for all x = e^ε

        P φ(u) − x Q φ(u′) ≤ Q h(P/Q),  h(r) = max(0, max_u φ(u) r − x φ(U(u))).

    h is convex and linear between breakpoints xρ_j, where its slope grows by w_j: the sum over y is
    Σ_j w_j times the hockey-stick divergence at xρ_j, whatever the mechanism, and s_j = log ρ_j.
    u runs over cells here, with φ at the lower end of each and U at the upper one.

    Args:
        trials: the law of K.
        levels: some ε, of any sign.
        deltas: upper bounds of δ₁ there.

    Source: Koskela, Redberg, Wang 2024, "Privacy Profiles for Private Selection", bound it by one
    term, E[K] δ₁(ε − log sup φ(u)/φ(u′)); h is at most that one.
    """
    edges = np.concatenate([[0.0], np.geomspace(SMALLEST_CELL, 1.0, CELLS)])
    upper = np.min(np.exp(levels) * edges[1:, None] + deltas, axis=1)
    slopes = trials.slope(edges[:-1])
    heights = trials.slope(np.minimum(1.0, upper))
    return _breakpoints(slopes, heights)


def _breakpoints(slopes: Array, heights: Array) -> tuple[Array, Array]:
    """Return by how much the slope of max(0, max_i a_i r − b_i) grows, and log r where it does.

    Args:
        slopes, heights: a and b, all positive.
    """
    leading = [(0.0, 0.0, 0.0)]  # a, b, and r from where the line leads
    for a, b in sorted(zip(slopes.tolist(), heights.tolist(), strict=True)):
        while a > leading[-1][0]:
            slope, height, start = leading[-1]
            place = (b - height) / (a - slope)
            if place > start or len(leading) == 1:
                leading.append((a, b, max(place, SMALLEST_RATIO)))
            else:
                leading.pop()
    rows = np.array(leading)
    return np.diff(rows[:, 0]), np.log(rows[1:, 2])


def _by_divergences(
    trials: DrawnTrials, trial: Releases, then: Releases | None, delta: float
) -> float:
    chosen = selected_curve(trials, _curve(trial), np.array(ORDERS))
    return renyi_epsilon(chosen if then is None else chosen + _curve(then), delta)


def _curve(releases: Releases) -> Array:
    sigma, rate, steps = releases
    return np.asarray(steps * rdp_curve(sigma, rate))


def _by_profile(trials: DrawnTrials, trial: Releases, then: Releases | None, delta: float) -> float:
    """Bound ε by the loss distributions of a trial and of the run that follows.

    Profiles are tabulated, and taken to be linear in e^ε in between, above the true ones, which are
    convex. The greatest convex function below a bound of a convex function bounds it as well.
    """
    reach = _by_divergences(trials, trial, then, BEYOND * delta)
    if not reach <= REACH:
        return math.inf
    grid = np.linspace(-reach, reach, 2 * POINTS + 1)
    single = _profile(trial, grid)
    weights, shifts = selected_profile(trials, grid[::THINNED], single[::THINNED])
    chosen = sum(w * _between(grid, single, grid + s) for w, s in zip(weights, shifts, strict=True))
    left = delta * (1 - ROUNDING)
    pairs = [np.minimum(chosen, 1 - np.exp(grid) * (1 - chosen[::-1]))]
    if then is not None:
        pairs.append(single if then == trial else _profile(then, grid))
    one, *others = (_distribution(grid, deltas) for deltas in pairs)
    for other in others:
        one = one.compose(other)
    return float(one.get_epsilon_for_delta(left - len(pairs) * PLD_ROUNDING))


def _profile(releases: Releases, grid: Array) -> Array:
    """Return upper bounds of δ(ε) of a run, the larger of both directions, at each ε of a grid."""
    deltas = np.asarray(loss_distribution(*releases).get_delta_for_epsilon(grid))
    return np.clip(deltas + releases[2] * PLD_ROUNDING, 0.0, 1.0)


def _between(grid: Array, deltas: Array, points: Array) -> Array:
    """Return a profile between the points of a grid: linear in e^ε, 1 below and constant above."""
    width = grid[1] - grid[0]
    place = np.clip((points - grid[0]) / width, 0, len(grid) - 1)
    number = np.minimum(place.astype(int), len(grid) - 2)
    share = np.expm1((place - number) * width) / math.expm1(width)
    found = deltas[number] + share * (deltas[number + 1] - deltas[number])
    return np.where(points < grid[0], 1.0, found)


def _distribution(grid: Array, deltas: Array) -> Any:
    """Return a privacy loss distribution with a profile nowhere below a given one.

    Source: Doroshenko et al. 2022, "Connect the Dots", Algorithm 1.
    """
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    ends = len(grid) // 2
    width = float(grid[-1]) / ends
    convex = _convex(np.exp(grid), np.clip(deltas, 0.0, 1.0))
    pmf = create_pmf_pessimistic_connect_dots_fixed_gap(width, -ends, ends, convex)
    return PrivacyLossDistribution(pmf)


def _convex(places: Array, values: Array) -> Array:
    """Return the greatest convex function through (0, 1) that is nowhere above given points."""
    kept = [(0.0, 1.0)]
    for x, y in zip(places.tolist(), values.tolist(), strict=True):
        while len(kept) > 1:
            (x0, y0), (x1, y1) = kept[-2:]
            if (y1 - y0) * (x - x1) <= (y - y1) * (x1 - x0):
                break
            kept.pop()
        kept.append((x, y))
    x, y = np.array(kept).T
    return np.asarray(np.interp(places, x, y))
