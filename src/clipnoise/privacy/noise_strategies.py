"""Strategy matrices: how later steps cancel the noise of earlier ones.

Correlated noise adds row t of C⁻¹z in step t, z being independent standard normals and C the lower
triangular strategy matrix. Steps in which an example takes part, whose contributions have norm at
most 1, move Cx. `fitted` scales C so that k of them move it by at most √k: the noise multiplier
then means the same as with independent noise (C = I), whichever the strategy is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular, toeplitz
from scipy.optimize import minimize
from scipy.signal import correlate, lfilter
from scipy.special import expit, logit

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

Array = NDArray[np.float64]
S = TypeVar("S", bound="Strategy")

SLOPE = 1e-5  # largest slope of the log error, per unit of a coefficient, at an optimum
EXPLODED = 1e100  # squared error of a strategy whose inverse grows without bound
ROUNDING = 1e-9  # of column norms


class Strategy(ABC):
    """C, and how to multiply by C⁻¹ with few vectors in memory.

    Step t of the stream is y_t = (z_t − Σ_i w_i m_i)/C[t, t], with z_t a new standard normal vector
    and m the memory, which then takes in z_t or y_t. What is computed here from the whole matrix
    has a closed form where C has a structure.

    Attributes:
        steps: T.
        uneven: whether the first t < T steps may cost more than the participations in them. The
            accountant is then told by how much: see `prefix_cost`.
    """

    steps: int
    uneven: ClassVar[bool] = False

    @abstractmethod
    def matrix(self) -> Array:
        """Return C, shape (T, T)."""

    @abstractmethod
    def times(self, factor: float) -> Self:
        """Return the strategy with C multiplied by a number."""

    @property
    def slots(self) -> int:
        """How many vectors are in memory."""
        return self.steps - 1

    @abstractmethod
    def weights(self, step: int) -> Array:
        """Return w of a step, for the first vectors in memory."""

    @abstractmethod
    def remember(self, memory: Tensor, step: int, normal: Tensor, output: Tensor) -> None:
        """Take z_t and y_t, shape (d,), into the memory, shape (slots, d), in place."""

    def diagonal(self, step: int) -> float:
        """Return C[t, t] for a step from 1."""
        return float(self.matrix()[step - 1, step - 1])

    @cached_property
    def squared_row_norms(self) -> Array:
        """ρ: the squared norm of each row of C⁻¹, shape (T,)."""
        return np.asarray((self._inverse() ** 2).sum(axis=1))

    def prefix_sum_variances(self, rates: Array | None = None) -> Array:
        """Return the noise variance of each prefix sum, the squared row norms of AC⁻¹, (T,).

        Args:
            rates: η, shape (T,), for sums Σ_{s≤t} η_s y_s: the squared row norms of A·diag(η)·C⁻¹.
        """
        summed = self._inverse() if rates is None else rates[:, None] * self._inverse()
        return np.asarray((np.cumsum(summed, axis=0) ** 2).sum(axis=1))

    def distances(self, groups: int) -> Array:
        """Bound how far an example that takes part every g steps moves each row of Cx.

        Whatever vectors u_s of norm at most 1 it adds in its steps s, row r of Cx moves by at most
        Σ_s |C[r, s]|. The bound is met by equal u_s where no entry of C is negative.

        Args:
            groups: g ≥ 1. The first turn of the example is one of the steps 1 … g.

        Returns:
            The bound for each row and first turn, shape (T, min(g, T)).
        """
        sizes = np.abs(self.matrix())
        turns = range(min(groups, self.steps))
        return np.stack([sizes[:, first::groups].sum(axis=1) for first in turns], axis=1)

    def squared_distances(self, groups: int) -> Array:
        """Bound how far such an example moves the first t rows of Cx: their squares add up.

        Args:
            groups: g, as for `distances`.

        Returns:
            For t = 1 … T, the square of the largest distance over first turns, shape (T,).
        """
        return np.asarray(np.cumsum(self.distances(groups) ** 2, axis=0).max(axis=1))

    def costs(self, groups: int) -> Array:
        """Return `squared_distances` over the participations ⌈t/g⌉ in the first t steps, (T,)."""
        participations = -(-np.arange(1, self.steps + 1) // groups)
        return np.asarray(self.squared_distances(groups) / participations)

    def _inverse(self) -> Array:
        return np.asarray(solve_triangular(self.matrix(), np.eye(self.steps), lower=True))


class LowerToeplitz(Strategy):
    """A strategy with the same entries, shifted, in every column.

    The end of training cuts the last columns off, so their norms are smaller.
    """

    @property
    @abstractmethod
    def column(self) -> Array:
        """The first column of C, shape (T,)."""

    @property
    @abstractmethod
    def response(self) -> Array:
        """The first column of C⁻¹, its impulse response, shape (T,)."""

    def matrix(self) -> Array:
        return np.asarray(toeplitz(self.column, np.zeros(self.steps)) + 0.0)

    def diagonal(self, step: int) -> float:
        return float(self.column[0])

    @cached_property
    def squared_row_norms(self) -> Array:
        return np.cumsum(self.response**2)

    def prefix_sum_variances(self, rates: Array | None = None) -> Array:
        if rates is not None:
            return super().prefix_sum_variances(rates)
        return np.cumsum(np.cumsum(self.response) ** 2)

    def distances(self, groups: int) -> Array:
        # Rows r of an example that begins in step i are rows r − i of one that begins in step 1.
        first = self._first_distances(groups)
        return np.asarray(toeplitz(first, np.zeros(min(groups, self.steps))))

    def squared_distances(self, groups: int) -> Array:
        return np.cumsum(self._first_distances(groups) ** 2)

    def _first_distances(self, groups: int) -> Array:
        turns = np.pad(np.abs(self.column), (0, -self.steps % groups)).reshape(-1, groups)
        return np.cumsum(turns, axis=0).ravel()[: self.steps]


@dataclass(frozen=True, eq=False)
class Toeplitz(LowerToeplitz):
    """A banded Toeplitz strategy, or one whose inverse is banded: few vectors are in memory.

    With banded C, by forward substitution y_t = (z_t − Σ_{s=t−b+1}^{t−1} C[t, s] y_s)/C[t, t]: the
    last b − 1 outputs y are in memory. With banded C⁻¹, y_t = Σ_{j<b} r_j z_{t−j}: it is the last
    b − 1 normals z, and C itself has no zeros below its diagonal.

    Attributes:
        coefficients: C[t, t], C[t+1, t], …, shape (b,), the first above 0; or r, those of C⁻¹.
        steps: T ≥ b.
        inverse: whether the coefficients are those of C⁻¹.

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization"; McKenna 2024,
    "Scaling up the Banded Matrix Factorization Mechanism", section 3.
    """

    coefficients: Array
    steps: int
    inverse: bool = False

    def __post_init__(self) -> None:
        if not 0 < len(self.coefficients) <= self.steps:
            raise ValueError(f"{len(self.coefficients)} bands do not fit {self.steps} steps")
        if not (np.isfinite(self.coefficients).all() and self.coefficients[0] > 0):
            raise ValueError("coefficients must be finite, the first above 0")

    @property
    def slots(self) -> int:
        return len(self.coefficients) - 1

    @cached_property
    def column(self) -> Array:
        return self._first_column(of_inverse=False)

    @cached_property
    def response(self) -> Array:
        return self._first_column(of_inverse=True)

    def _first_column(self, *, of_inverse: bool) -> Array:
        if of_inverse != self.inverse:
            return response(self.coefficients, self.steps)
        return np.pad(self.coefficients, (0, self.steps - len(self.coefficients)))

    def weights(self, step: int) -> Array:
        past = self.coefficients[1:step]
        return in_turn(-past / self.coefficients[0] if self.inverse else past, step, self.slots)

    def remember(self, memory: Tensor, step: int, normal: Tensor, output: Tensor) -> None:
        put_in_turn(memory, step, normal if self.inverse else output)

    def times(self, factor: float) -> Self:
        scaled = self.coefficients / factor if self.inverse else self.coefficients * factor
        return replace(self, coefficients=scaled)


@dataclass(frozen=True, eq=False)
class BufferedToeplitz(LowerToeplitz):
    """C[t, t] = 1 and C[t, s] = Σ_i ω_i θ_i^{t−s−1}: y_t = z_t − Σ_i ω_i m_i, m_i ← θ_i m_i + y_t.

    Its generating function is Π(1 − θ̂_i x)/Π(1 − θ_i x), and that of C⁻¹ is the reciprocal. So θ
    and θ̂ determine ω. Since 1 > θ_1 > θ̂_1 > θ_2 > …, all ω are positive, and the entries of C are
    positive and fall.

    Attributes:
        decays: θ, falling, shape (buffers,).
        inverse_decays: θ̂, falling, between the θ.
        steps: T.
        scale: what C is multiplied by.

    Source: Dvijotham et al. 2024, "Efficient and Near-Optimal Noise Generation for Streaming
    Differential Privacy"; McMahan, Xu and Zhang 2024, "A Hassle-free Algorithm for Private Learning
    in Practice: Don't Use Tree Aggregation, Use BLTs", algorithm 3; McMahan and Pillutla 2025, "An
    Inversion Theorem for Buffered Linear Toeplitz (BLT) Matrices".
    """

    decays: Array
    inverse_decays: Array
    steps: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        ends = np.array([self.decays, self.inverse_decays]).T.ravel()
        if not (ends[0] < 1 and ends[-1] >= 0 and (np.diff(ends) < 0).all()):
            raise ValueError(f"decays must interlace and fall from below 1, got {ends}")

    @property
    def slots(self) -> int:
        return len(self.decays)

    @cached_property
    def column(self) -> Array:
        return self.scale * _powers(
            self.decays, _residues(self.decays, self.inverse_decays), self.steps
        )

    @cached_property
    def response(self) -> Array:
        residues = _residues(self.inverse_decays, self.decays)
        return _powers(self.inverse_decays, residues, self.steps) / self.scale

    def weights(self, step: int) -> Array:
        return self.scale * _residues(self.decays, self.inverse_decays)

    def remember(self, memory: Tensor, step: int, normal: Tensor, output: Tensor) -> None:
        memory.mul_(memory.new_tensor(self.decays)[:, None]).add_(output)

    def times(self, factor: float) -> Self:
        return replace(self, scale=self.scale * factor)


@dataclass(frozen=True, eq=False)
class Dense(Strategy):
    """A strategy without structure: all outputs are in memory.

    Attributes:
        entries: C, shape (T, T), lower triangular, the diagonal above 0.
    """

    entries: Array
    steps: int = field(init=False)

    def __post_init__(self) -> None:
        if self.entries.ndim != 2 or self.entries.shape[0] != self.entries.shape[1]:
            raise ValueError(f"a strategy is square, got shape {self.entries.shape}")
        if np.triu(self.entries, 1).any() or not (np.diag(self.entries) > 0).all():
            raise ValueError("a strategy is lower triangular with a diagonal above 0")
        object.__setattr__(self, "steps", len(self.entries))

    def matrix(self) -> Array:
        return self.entries

    def times(self, factor: float) -> Self:
        return replace(self, entries=self.entries * factor)

    def weights(self, step: int) -> Array:
        return self.entries[step - 1, : step - 1]

    def remember(self, memory: Tensor, step: int, normal: Tensor, output: Tensor) -> None:
        put_in_turn(memory, step, output)


@dataclass(frozen=True, eq=False)
class Tree(Strategy):
    """Binary tree aggregation with the plain estimator of prefix sums.

    With ℓ(t) the largest power of two that divides t, node t of the tree covers the steps
    t − ℓ(t) + 1 … t: row t of C has ones there. The prefix sum at t is that of node t plus that at
    t − ℓ(t), so it has the noise of as many nodes as t has ones in binary. Nodes that are right
    children occur in no such sum, and are left out. An example is in at most ⌊log₂ T⌋ + 1 nodes; if
    it takes part several times, the sensitivity is computed from all nodes at once, and the tree is
    never restarted.

    C⁻¹ is sparse: y_t = z_t − Σ z_{t−i} over the powers of two i < ℓ(t). The last z for each ℓ is
    in memory.

    The tree is fullest where t is a power of two: there participations cost more than at T.

    Attributes:
        steps: T.
        scale: what the ones of C are multiplied by.

    Source: Kairouz et al. 2021, "Practical and Private (Deep) Learning without Sampling or
    Shuffling" (DP-FTRL), without Honaker's estimator.
    """

    steps: int
    scale: float = 1.0
    uneven: ClassVar[bool] = True

    @property
    def slots(self) -> int:
        return self.steps.bit_length()

    def diagonal(self, step: int) -> float:
        return self.scale

    def weights(self, step: int) -> Array:
        return np.ones(_level(step))

    def remember(self, memory: Tensor, step: int, normal: Tensor, output: Tensor) -> None:
        memory[_level(step)] = normal

    def matrix(self) -> Array:
        entries = np.zeros((self.steps, self.steps))
        for step in range(1, self.steps + 1):
            entries[step - 1, step - 2 ** _level(step) : step] = self.scale
        return entries

    def times(self, factor: float) -> Self:
        return replace(self, scale=self.scale * factor)

    @cached_property
    def squared_row_norms(self) -> Array:
        return np.array([1 + _level(t) for t in range(1, self.steps + 1)]) / self.scale**2

    def prefix_sum_variances(self, rates: Array | None = None) -> Array:
        if rates is not None:
            return super().prefix_sum_variances(rates)
        return np.array([t.bit_count() for t in range(1, self.steps + 1)]) / self.scale**2

    def squared_distances(self, groups: int) -> Array:
        sums, largest, found = np.zeros(groups), 0.0, []
        for step in range(1, self.steps + 1):
            covered = np.arange(step - 2 ** _level(step), step) % groups
            turns, counts = np.unique(covered, return_counts=True)
            sums[turns] += counts**2
            largest = max(largest, float(sums[turns].max()))
            found.append(largest)
        return np.array(found) * self.scale**2


def in_turn(newest_first: Array, step: int, slots: int) -> Array:
    """Return the weights of the last steps' vectors in the order that `put_in_turn` keeps."""
    weights = np.empty(len(newest_first))
    weights[(step - 1 - np.arange(1, len(weights) + 1)) % max(1, slots)] = newest_first
    return weights


def put_in_turn(memory: Tensor, step: int, vector: Tensor) -> None:
    """Let the vector of a step take the place of the oldest one in memory."""
    if len(memory):
        memory[(step - 1) % len(memory)] = vector


def fitted(strategy: S, groups: int) -> S:
    """Scale C so that an example's participations cost as many releases of the Gaussian mechanism.

    Where an example takes part in every `groups`-th step, its ⌈T/groups⌉ participations then move
    Cx by at most √⌈T/groups⌉; and those in the first t steps move the first t rows by at most
    √⌈t/groups⌉ for all t ≤ T, unless the strategy is `uneven`. Gradients may depend on earlier
    releases (Denisov et al. 2022, theorem 2.1). Where no entry of C is negative, less noise would
    be too little at some t; for an uneven one, at T. Strategies of column norm 1 with at most
    `groups` bands stay as they are.

    Args:
        strategy: C, of any scale.
        groups: how many steps lie between participations; T for an example that takes part once.

    Source: Choquette-Choo et al. 2023, "Multi-Epoch Matrix Factorization Mechanisms", section 2.
    """
    costs = strategy.costs(groups)
    excess = math.sqrt(costs[-1] if strategy.uneven else costs.max())
    return strategy if math.isclose(excess, 1, rel_tol=ROUNDING) else strategy.times(1 / excess)


@cache
def prefix_cost(steps: int, groups: int) -> float:
    """Return by how much the first t steps of tree noise may cost more than their participations.

    Args:
        steps: T ≥ 1.
        groups: how many steps lie between participations.

    Returns:
        At least 1, for the tree that `fitted` scales: the largest factor over all t ≤ T.
    """
    costs = Tree(steps).costs(groups)
    return float(costs.max() / costs[-1])


def prefix_sum_rmse(
    strategy: Strategy, groups: int | None = None, rates: Array | None = None
) -> float:
    """Return the root mean squared error of the T prefix sums at σ = 1.

    For independent noise this is √((T + 1)/2). The strategy is scaled as `fitted` scales it. Where
    an example takes part once, that is to column norm 1, and the result is
    max‖column of C‖ · ‖AC⁻¹‖_F/√T, where A is the prefix-sum matrix.

    Args:
        strategy: C.
        groups: how many steps lie between participations; None for an example that takes part once.
        rates: η, shape (T,), by which the terms of the sums are multiplied; None for 1.

    Source: Choquette-Choo et al. 2023, "Multi-Epoch Matrix Factorization Mechanisms", section 2.
    """
    scaled = fitted(strategy, groups or strategy.steps)
    return float(np.sqrt(scaled.prefix_sum_variances(rates).mean()))


def inverse_square_root(steps: int, bands: int) -> Toeplitz:
    """Return BISR: r are the first p coefficients of (1 − x)^½ = 1 − x/2 − x²/8 − …

    Without a limit on p, C is the square root of the prefix-sum matrix.

    Args:
        steps: T ≥ 1.
        bands: p ≥ 1; more than T is T.

    Source: Kalinin, McKenna, Upadhyay and Lampert 2025, "Back to Square Roots" (BISR).
    """
    root = square_root_coefficients(min(bands, steps))
    return Toeplitz(np.diff(root, prepend=0.0), steps, inverse=True)  # (1 − x)·(1 − x)^-½


def cancelling(steps: int, share: float) -> Toeplitz:
    """Return DP-λCGD: y_t = z_t − λz_{t−1}, so C[t, s] = λ^{t−s}.

    The columns are not normalised one by one, which the paper considers in its appendix.

    Args:
        steps: T ≥ 2.
        share: λ in [0, 1).

    Source: Kalinin, McKenna, Pagh and Lampert 2026, "DP-λCGD: Efficient Noise Correlation for
    Differentially Private Model Training".
    """
    return Toeplitz(np.array([1.0, -share]), steps, inverse=True)


def optimal_toeplitz(steps: int, bands: int, rates: Array | None = None) -> Toeplitz:
    """Minimise the mean squared error of prefix sums over Toeplitz strategies of column norm 1.

    The scale-free objective log(‖c‖²·Σ_i (T − i) h_i²), where h are the coefficients of
    1/((1 − x)c(x)), and its exact gradient take O(Tb) each. The optimum is the same for any number
    k ≤ T/b of participations at least b apart: k multiplies the error of every strategy by √k.

    With rates the error is that of A·diag(η)·C⁻¹, and an evaluation takes O(T²). The search begins
    at the optimum without rates, so the error is never larger than there.

    Args:
        steps: T ≥ 1.
        bands: b ≥ 1; more than T is T.
        rates: η > 0, shape (T,), by which the terms of the sums are multiplied; None for 1.

    Raises:
        ValueError: steps or bands below 1.
        ArithmeticError: the search ended before the error stopped falling.

    Source: McKenna 2024, "Scaling up the Banded Matrix Factorization Mechanism", section 3.
    """
    if steps < 1 or bands < 1:
        raise ValueError(f"steps and bands are at least 1, got {steps} and {bands}")
    if rates is None:
        start, gram = square_root_coefficients(min(bands, steps)), None
    else:
        unweighted = optimal_toeplitz(steps, bands).coefficients
        start, gram = unweighted / unweighted[0], _response_gram(rates)

    def objective(tail: Array) -> tuple[float, Array]:
        return _log_error(np.concatenate([[1.0], tail]), steps, gram)

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


def optimal_buffers(
    steps: int, buffers: int, groups: int | None = None, rates: Array | None = None
) -> BufferedToeplitz:
    """Minimise the mean squared error of prefix sums over BLT strategies, whatever their scale.

    Args:
        steps: T ≥ 2.
        buffers: m ≥ 1.
        groups: how many steps lie between participations; None for an example that takes part once.
        rates: as for `optimal_toeplitz`.

    Source: McMahan, Xu and Zhang 2024 (see `BufferedToeplitz`), who optimise BLT for several
    participations, too.
    """

    def strategy(free: Array) -> BufferedToeplitz:
        ends = expit(free[0] - np.cumsum(np.append(0.0, np.exp(free[1:]))))
        return BufferedToeplitz(ends[::2], ends[1::2], steps)

    def log_error(free: Array) -> float:
        return math.log(prefix_sum_rmse(strategy(free), groups))

    def log_weighted_error(free: Array, gram: Array) -> float:
        inverse = fitted(strategy(free), groups or steps).response
        return math.log(inverse @ gram @ inverse) / 2

    def least(error: Callable[..., float], free: Array, *of: Array) -> Array:
        best = minimize(
            error,
            free,
            args=of,
            jac="3-point",
            method="L-BFGS-B",
            bounds=[(-20, 20), *[(-9, 3)] * (2 * buffers - 1)],  # so that no two ends are equal
            options={"maxiter": 1000},
        )
        return np.asarray(best.x)

    start = logit(1 - np.geomspace(min(0.5, 2 / (groups or steps)), 0.9, 2 * buffers))
    free = least(log_error, np.append(start[0], np.log(-np.diff(start))))
    if rates is not None:
        free = least(log_weighted_error, free, _response_gram(rates))
    return strategy(free)


def optimal_dense(
    steps: int, tolerance: float = 1e-6, rounds: int = 1000, rates: Array | None = None
) -> Dense:
    """Minimise the mean squared error of prefix sums over all strategies of column norm 1.

    Optimal for examples that take part once. With S = AᵀA and dual variables v, the fixed point of
    v ← d(v) = diag((V^½ S V^½)^½) is optimal for X = CᵀC = V^-½ (V^½ S V^½)^½ V^-½. Steps of twice
    the length, v ← d²/v, halve the number of rounds. Every round gives a feasible X (its diagonal
    scaled to 1) and a lower bound, so the gap between them tells when to stop.

    Args:
        steps: T ≥ 1; the time grows with T³ (about 20 eigendecompositions at T = 1000).
        tolerance: the largest relative excess of the squared error over its lower bound.
        rounds: the most rounds to take.
        rates: as for `optimal_toeplitz`; the workload is then A·diag(η).

    Returns:
        The strategy; all its columns have norm 1.

    Raises:
        ArithmeticError: the tolerance was not met.

    Source: Denisov et al. 2022, "Improved Differential Privacy for SGD via Optimal Private Linear
    Operators on Adaptive Streams", theorem 3.2.
    """
    workload = np.tril(np.ones((steps, steps)))
    workload = workload if rates is None else workload * rates
    gram = workload.T @ workload
    dual = np.ones(steps)
    for _ in range(rounds):
        root = np.sqrt(dual)
        if rates is None:
            values, vectors = np.linalg.eigh(root[:, None] * gram * root)
            halves = np.sqrt(values)
        else:  # no squares: with small rates C would follow from how a processor rounds
            _, halves, transposed = np.linalg.svd(workload * root)
            vectors = transposed.T
        middle = (vectors * halves) @ vectors.T
        scale = np.sqrt(np.diag(middle)) / root  # square root of X's diagonal
        inverse = (vectors / halves) @ vectors.T * np.outer(root * scale, root * scale)
        error, bound = (gram * inverse).sum(), 2 * halves.sum() - dual.sum()
        if error - bound <= tolerance * error:
            gram_of_strategy = middle / np.outer(root * scale, root * scale)
            return Dense(_lower_factor(gram_of_strategy))
        dual = np.diag(middle) ** 2 / dual
    raise ArithmeticError(f"no strategy within {tolerance:g} of optimal after {rounds} rounds")


def response(coefficients: Array, steps: int) -> Array:
    """Return the first column of C⁻¹ for a Toeplitz C: its impulse response, shape (T,)."""
    impulse = np.zeros(steps)
    impulse[0] = 1.0
    return np.asarray(lfilter([1.0], coefficients, impulse), dtype=np.float64)


def square_root_coefficients(count: int) -> Array:
    """Return the series of (1 − x)^-½: 1, 1/2, 3/8, …"""
    k = np.arange(1, count)
    return np.cumprod(np.concatenate([[1.0], (2 * k - 1) / (2 * k)]))


def _log_error(coefficients: Array, steps: int, gram: Array | None = None) -> tuple[float, Array]:
    """Return log(‖c‖²·Σ_i (T − i) h_i²) and its gradient in c_1 … c_{b−1}.

    With a gram matrix K, the error is rᵀKr in place of Σ_i (T − i) h_i², r being C⁻¹'s response. If
    the line search tries a c whose inverse overflows, a large finite value makes it back off.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        summed = response(coefficients, steps)
        if gram is None:
            summed = np.cumsum(summed)
            weighted = np.arange(steps, 0, -1) * summed
        else:
            weighted = gram @ summed
        error, norm = weighted @ summed, coefficients @ coefficients
    if not error < EXPLODED:
        return math.log(EXPLODED), np.zeros(len(coefficients) - 1)
    # ∂h/∂c_k is −h/c(x), delayed by k; so for r.
    delayed = np.asarray(lfilter([1.0], coefficients, summed))
    inner = correlate(weighted, delayed)[steps - 1 :][: len(coefficients)]
    gradient = 2 * coefficients / norm - 2 * inner / error
    return float(np.log(norm) + np.log(error)), gradient[1:]


def _response_gram(rates: Array) -> Array:
    """Return K, shape (T, T): ‖A·diag(η)·C⁻¹‖_F² = rᵀKr for Toeplitz C⁻¹ with first column r.

    Column s of C⁻¹ is r, delayed by s. So K sums AᵀA, weighted by rates, down its diagonals.
    """
    left = np.arange(len(rates), 0, -1)
    gram = np.outer(rates, rates)
    gram *= np.minimum(left[:, None], left)
    for row in range(len(rates) - 2, -1, -1):
        gram[row, :-1] += gram[row + 1, 1:]
    return gram


def _lower_factor(gram: Array) -> Array:
    """Return the lower triangular C with CᵀC = gram, its columns scaled to norm 1."""
    factor = cholesky(gram[::-1, ::-1], lower=True)[::-1, ::-1].T
    return np.asarray(factor / np.linalg.norm(factor, axis=0))


def _level(step: int) -> int:
    """Return log₂ ℓ(t)."""
    return (step & -step).bit_length() - 1


def _residues(of: Array, others: Array) -> Array:
    """Return ω of Π(1 − others_j x)/Π(1 − of_j x) = 1 + Σ_i ω_i x/(1 − of_i x)."""
    apart = of[:, None] - of + np.eye(len(of))
    return np.asarray((of[:, None] - others).prod(axis=1) / apart.prod(axis=1))


def _powers(decays: Array, scales: Array, steps: int) -> Array:
    """Return 1, Σ_i scales_i, Σ_i scales_i decays_i, …, shape (T,)."""
    return np.append(1.0, decays ** np.arange(steps - 1)[:, None] @ scales)
