"""Strategy matrices: how later steps cancel the noise of earlier ones.

Correlated noise adds row t of C⁻¹z in step t, z being independent standard normals and C the lower
triangular strategy matrix. All strategies here have columns of norm at most 1, so that the noise
multiplier means the same as with independent noise (C = I).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular, toeplitz
from scipy.optimize import minimize
from scipy.signal import correlate, lfilter

Array = NDArray[np.float64]

SLOPE = 1e-5  # largest slope of the log error, per unit of a coefficient, at an optimum
EXPLODED = 1e100  # squared error of a strategy whose inverse grows without bound


@dataclass(frozen=True, eq=False)
class Toeplitz:
    """A banded Toeplitz strategy: the same few coefficients in every column.

    The end of training cuts the last b − 1 columns off, so their norms are smaller.

    Attributes:
        coefficients: C[t, t], C[t+1, t], …, shape (b,), the first above 0.
        steps: T ≥ b.

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization"; McKenna 2024,
    "Scaling up the Banded Matrix Factorization Mechanism", section 3.
    """

    coefficients: Array
    steps: int

    def __post_init__(self) -> None:
        if not 0 < len(self.coefficients) <= self.steps:
            raise ValueError(f"{len(self.coefficients)} bands do not fit {self.steps} steps")
        if not (np.isfinite(self.coefficients).all() and self.coefficients[0] > 0):
            raise ValueError("coefficients must be finite, the first above 0")

    @property
    def bands(self) -> int:
        """b: C[t, s] = 0 unless 0 ≤ t − s < b."""
        return len(self.coefficients)

    def row(self, step: int) -> Array:
        """Return row t (from 1), newest entry first: C[t, t], C[t, t−1], …; min(t, b) entries."""
        return self.coefficients[:step]

    def matrix(self) -> Array:
        """Return C, shape (T, T)."""
        column = np.pad(self.coefficients, (0, self.steps - self.bands))
        return np.asarray(toeplitz(column, np.zeros(self.steps)) + 0.0)

    def squared_column_norms(self) -> Array:
        """Return the squared norm of each column of C, shape (T,)."""
        norms = np.cumsum(self.coefficients**2)
        return np.asarray(norms[np.minimum(self.bands, np.arange(self.steps, 0, -1)) - 1])

    @cached_property
    def squared_row_norms(self) -> Array:
        """ρ: the squared norm of each row of C⁻¹, shape (T,)."""
        return np.cumsum(_response(self.coefficients, self.steps) ** 2)

    def prefix_sum_variances(self) -> Array:
        """Return the noise variance of each prefix sum, the squared row norms of AC⁻¹, (T,)."""
        return np.cumsum(np.cumsum(_response(self.coefficients, self.steps)) ** 2)


@dataclass(frozen=True, eq=False)
class Dense:
    """A strategy without structure: as many bands as steps, and otherwise as `Toeplitz`.

    Attributes:
        entries: C, shape (T, T), lower triangular, the diagonal above 0.
    """

    entries: Array

    def __post_init__(self) -> None:
        if self.entries.ndim != 2 or self.entries.shape[0] != self.entries.shape[1]:
            raise ValueError(f"a strategy is square, got shape {self.entries.shape}")
        if np.triu(self.entries, 1).any() or not (np.diag(self.entries) > 0).all():
            raise ValueError("a strategy is lower triangular with a diagonal above 0")

    @property
    def steps(self) -> int:
        return len(self.entries)

    bands = steps

    def row(self, step: int) -> Array:
        return self.entries[step - 1, :step][::-1]

    def matrix(self) -> Array:
        return self.entries

    def squared_column_norms(self) -> Array:
        return np.asarray((self.entries**2).sum(axis=0))

    @cached_property
    def squared_row_norms(self) -> Array:
        return np.asarray((self._inverse() ** 2).sum(axis=1))

    def prefix_sum_variances(self) -> Array:
        return np.asarray((np.cumsum(self._inverse(), axis=0) ** 2).sum(axis=1))

    def _inverse(self) -> Array:
        return np.asarray(solve_triangular(self.entries, np.eye(self.steps), lower=True))


Strategy = Toeplitz | Dense


def prefix_sum_rmse(strategy: Strategy) -> float:
    """Return the root mean squared error of the T prefix sums at σ = 1 and sensitivity 1.

    For independent noise this is √((T + 1)/2). The strategy is scaled to column norm 1, so the
    result is max‖column of C‖ · ‖AC⁻¹‖_F / √T, where A is the prefix-sum matrix.

    Source: Choquette-Choo et al. 2023, "Multi-Epoch Matrix Factorization Mechanisms", section 2.
    """
    scale = strategy.squared_column_norms().max()
    return float(np.sqrt(scale * strategy.prefix_sum_variances().mean()))


def optimal_toeplitz(steps: int, bands: int) -> Toeplitz:
    """Minimise the mean squared error of prefix sums over Toeplitz strategies of column norm 1.

    The scale-free objective log(‖c‖²·Σ_i (T − i) h_i²), where h are the coefficients of
    1/((1 − x)c(x)), and its exact gradient take O(Tb) each. The optimum is the same for any number
    k ≤ T/b of participations at least b apart: k multiplies the error of every strategy by √k.

    Args:
        steps: T ≥ 1.
        bands: b ≥ 1; more than T is T.

    Returns:
        The strategy.

    Raises:
        ValueError: steps or bands below 1.
        ArithmeticError: the search ended before the error stopped falling.

    Source: McKenna 2024, "Scaling up the Banded Matrix Factorization Mechanism", section 3.
    """
    if steps < 1 or bands < 1:
        raise ValueError(f"steps and bands are at least 1, got {steps} and {bands}")
    start = _square_root_coefficients(min(bands, steps))

    def objective(tail: Array) -> tuple[float, Array]:
        return _log_error(np.concatenate([[1.0], tail]), steps)

    result = minimize(
        objective,
        start[1:],
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 1000, "maxfun": 10_000, "ftol": 1e-15, "gtol": 1e-10},
    )
    if np.abs(result.jac).max(initial=0.0) > SLOPE:
        raise ArithmeticError(f"no optimum found for {bands} bands and {steps} steps")
    coefficients = np.concatenate([[1.0], result.x])
    return Toeplitz(coefficients / np.linalg.norm(coefficients), steps)


def optimal_dense(steps: int, tolerance: float = 1e-6, rounds: int = 1000) -> Dense:
    """Minimise the mean squared error of prefix sums over all strategies of column norm 1.

    Optimal for examples that take part once. With S = AᵀA and dual variables v, the fixed point of
    v ← d(v) = diag((V^½ S V^½)^½) is optimal for X = CᵀC = V^-½ (V^½ S V^½)^½ V^-½. Steps of twice
    the length, v ← d²/v, halve the number of rounds. Every round gives a feasible X (its diagonal
    scaled to 1) and a lower bound, so the gap between them tells when to stop.

    Args:
        steps: T ≥ 1; the time grows with T³ (about 20 eigendecompositions at T = 1000).
        tolerance: the largest relative excess of the squared error over its lower bound.
        rounds: the most rounds to take.

    Returns:
        The strategy; all its columns have norm 1.

    Raises:
        ArithmeticError: the tolerance was not met.

    Source: Denisov et al. 2022, "Improved Differential Privacy for SGD via Optimal Private Linear
    Operators on Adaptive Streams", theorem 3.2.
    """
    workload = np.tril(np.ones((steps, steps)))
    gram = workload.T @ workload
    dual = np.ones(steps)
    for _ in range(rounds):
        root = np.sqrt(dual)
        values, vectors = np.linalg.eigh(root[:, None] * gram * root)
        halves = np.sqrt(np.maximum(values, np.finfo(float).tiny))
        middle = (vectors * halves) @ vectors.T
        scale = np.sqrt(np.diag(middle)) / root  # square root of X's diagonal
        inverse = (vectors / halves) @ vectors.T * np.outer(root * scale, root * scale)
        error, bound = (gram * inverse).sum(), 2 * halves.sum() - dual.sum()
        if error - bound <= tolerance * error:
            gram_of_strategy = middle / np.outer(root * scale, root * scale)
            return Dense(_lower_factor(gram_of_strategy))
        dual = np.diag(middle) ** 2 / dual
    raise ArithmeticError(f"no strategy within {tolerance:g} of optimal after {rounds} rounds")


def _response(coefficients: Array, steps: int) -> Array:
    """Return the first column of C⁻¹ for a Toeplitz C: its impulse response, shape (T,)."""
    impulse = np.zeros(steps)
    impulse[0] = 1.0
    return np.asarray(lfilter([1.0], coefficients, impulse), dtype=np.float64)


def _square_root_coefficients(count: int) -> Array:
    """Return the series of (1 − x)^-½: 1, 1/2, 3/8, …"""
    k = np.arange(1, count)
    return np.cumprod(np.concatenate([[1.0], (2 * k - 1) / (2 * k)]))


def _log_error(coefficients: Array, steps: int) -> tuple[float, Array]:
    """Return log(‖c‖²·Σ_i (T − i) h_i²) and its gradient in c_1 … c_{b−1}.

    If the line search tries a c whose inverse overflows, a large finite value makes it back off.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        summed = np.cumsum(_response(coefficients, steps))
        weighted = np.arange(steps, 0, -1) * summed
        error, norm = weighted @ summed, coefficients @ coefficients
    if not error < EXPLODED:
        return math.log(EXPLODED), np.zeros(len(coefficients) - 1)
    # ∂h/∂c_k is −h/c(x), delayed by k.
    delayed = np.asarray(lfilter([1.0], coefficients, summed))
    inner = correlate(weighted, delayed)[steps - 1 :][: len(coefficients)]
    gradient = 2 * coefficients / norm - 2 * inner / error
    return float(np.log(norm) + np.log(error)), gradient[1:]


def _lower_factor(gram: Array) -> Array:
    """Return the lower triangular C with CᵀC = gram, its columns scaled to norm 1."""
    factor = cholesky(gram[::-1, ::-1], lower=True)[::-1, ::-1].T
    return np.asarray(factor / np.linalg.norm(factor, axis=0))
