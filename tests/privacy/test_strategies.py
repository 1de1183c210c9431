"""Strategy matrices: their structure, their errors, and that the optimised ones are optimal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipnoise.privacy.noise_strategies import (
    BufferedToeplitz,
    Dense,
    Strategy,
    Toeplitz,
    Tree,
    cancelling,
    fitted,
    inverse_square_root,
    optimal_buffers,
    optimal_dense,
    optimal_toeplitz,
    prefix_cost,
    prefix_sum_rmse,
)
from clipnoise.privacy.participation import Participation


def example(kind: str) -> Strategy:
    examples: dict[str, Callable[[], Strategy]] = {
        "one band": lambda: optimal_toeplitz(7, 1),
        "banded": lambda: optimal_toeplitz(12, 4),
        "all bands": lambda: optimal_toeplitz(6, 6),
        "dense": lambda: optimal_dense(9),
        "banded inverse": lambda: inverse_square_root(12, 4),
        "scaled banded inverse": lambda: inverse_square_root(12, 4).times(0.7),
        "full inverse": lambda: inverse_square_root(9, 20),
        "cancelling": lambda: cancelling(12, 0.8),
        "buffered": lambda: optimal_buffers(12, 2),
        "scaled buffered": lambda: optimal_buffers(12, 3, 4).times(0.7),
        "banded for rates": lambda: optimal_toeplitz(12, 4, np.linspace(1, 0.1, 12)),
        "dense for rates": lambda: optimal_dense(9, rates=np.linspace(1, 0.1, 9)),
        "buffered for rates": lambda: optimal_buffers(12, 2, 4, np.linspace(0.1, 1, 12)),
        "tree": lambda: Tree(13),
        "scaled tree": lambda: Tree(16).times(0.7),
    }
    return examples[kind]()


KINDS = [
    *("one band", "banded", "all bands", "dense", "banded inverse", "scaled banded inverse"),
    *("full inverse", "cancelling", "buffered", "scaled buffered", "tree", "scaled tree"),
    *("banded for rates", "dense for rates", "buffered for rates"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_view_of_a_strategy_agrees_with_its_matrix(kind: str) -> None:
    strategy = example(kind)
    steps = strategy.steps
    matrix = strategy.matrix()
    inverse = np.linalg.inv(matrix)
    sums, rates = np.tril(np.ones((steps, steps))), np.linspace(2, 0.5, steps)
    prefix, weighted = sums @ inverse, sums @ np.diag(rates) @ inverse

    assert matrix.shape == (steps, steps)
    assert not np.triu(matrix, 1).any()
    diagonal = [strategy.diagonal(t) for t in range(1, steps + 1)]
    np.testing.assert_allclose(diagonal, np.diag(matrix), rtol=1e-12)
    assert all(len(strategy.weights(t)) <= strategy.slots for t in range(1, steps + 1))
    np.testing.assert_allclose(strategy.squared_row_norms, (inverse**2).sum(1), rtol=1e-10)
    np.testing.assert_allclose(strategy.prefix_sum_variances(), (prefix**2).sum(1), rtol=1e-10)
    variances = strategy.prefix_sum_variances(rates)
    np.testing.assert_allclose(variances, (weighted**2).sum(1), rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_vectors_are_kept_than_are_mixed(kind: str) -> None:
    """The tree keeps that of its highest level for a step that the run may not reach."""
    strategy = example(kind)
    mixed = max(len(strategy.weights(t)) for t in range(1, strategy.steps + 1))
    assert strategy.slots == mixed + isinstance(strategy, Tree)


@pytest.mark.parametrize("kind", KINDS)
def test_no_column_is_longer_than_one_and_the_first_is_one(kind: str) -> None:
    matrix = fitted(example(kind), 50).matrix()
    norms = (matrix**2).sum(axis=0)
    assert norms.max() <= 1 + 1e-12
    assert norms[0] == pytest.approx(1, abs=1e-12)


def test_only_the_columns_cut_off_at_the_end_are_shorter() -> None:
    norms = (optimal_toeplitz(12, 4).matrix() ** 2).sum(axis=0)
    np.testing.assert_allclose(norms[:9], 1, rtol=1e-12)
    assert (np.diff(norms[8:]) < 0).all()


@pytest.mark.parametrize("steps", [1, 2, 50, 2000])
def test_independent_noise_has_the_closed_form_error(steps: int) -> None:
    assert prefix_sum_rmse(optimal_toeplitz(steps, 1)) == pytest.approx(
        math.sqrt((steps + 1) / 2), rel=1e-12
    )


def test_the_error_does_not_depend_on_the_scale_of_the_strategy() -> None:
    strategy = optimal_toeplitz(20, 5)
    larger = Toeplitz(3 * strategy.coefficients, 20)
    assert prefix_sum_rmse(larger) == pytest.approx(prefix_sum_rmse(strategy), rel=1e-12)


def test_banded_noise_over_2000_steps_has_the_published_advantage() -> None:
    """Published as a noise multiplier of about 0.134 for independent noise of equal error."""
    ratio = prefix_sum_rmse(optimal_toeplitz(2000, 128)) / prefix_sum_rmse(
        optimal_toeplitz(2000, 1)
    )
    assert ratio == pytest.approx(0.134466, abs=1e-6)


@pytest.mark.long
@settings(max_examples=30)
@given(
    steps=st.integers(2, 40),
    bands=st.integers(2, 12),
    seed=st.integers(0, 2**31),
    size=st.sampled_from([1e-1, 1e-2, 1e-3]),
)
def test_no_nearby_toeplitz_strategy_has_less_error(
    steps: int, bands: int, seed: int, size: float
) -> None:
    best = optimal_toeplitz(steps, bands)
    nudge = size * np.random.default_rng(seed).standard_normal(len(best.coefficients))
    nudge[0] = 0.0
    other = Toeplitz(best.coefficients + nudge, steps)
    assert prefix_sum_rmse(best) <= prefix_sum_rmse(other) * (1 + 1e-9)


@pytest.mark.parametrize(("steps", "bands"), [(2000, 2), (2000, 3), (2000, 16), (20_000, 4)])
def test_long_runs_with_few_bands_reach_the_optimum(steps: int, bands: int) -> None:
    """Here the search passes strategies whose inverse explodes."""
    best = optimal_toeplitz(steps, bands)
    for entry, nudge in itertools.product(range(bands), [-1e-3, 1e-3]):
        coefficients = best.coefficients.copy()
        coefficients[entry] += nudge
        assert prefix_sum_rmse(Toeplitz(coefficients, steps)) > prefix_sum_rmse(best)


def test_more_bands_never_have_more_error() -> None:
    errors = [prefix_sum_rmse(optimal_toeplitz(40, bands)) for bands in range(1, 41)]
    assert all(b <= a * (1 + 1e-9) for a, b in itertools.pairwise(errors))


def test_two_dense_steps_have_the_optimum_found_by_search() -> None:
    """C = [[cos a, 0], [sin a, 1]] are all strategies over two steps with columns of norm 1."""
    angles = np.linspace(0, 1.2, 200_001)
    first = (1 / np.cos(angles)) ** 2
    second = ((1 - np.sin(angles)) / np.cos(angles)) ** 2 + 1
    best = math.sqrt(((first + second) / 2).min())
    assert prefix_sum_rmse(optimal_dense(2, tolerance=1e-12)) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("steps", [1, 2, 10, 100])
def test_dense_is_no_worse_than_any_toeplitz_strategy(steps: int) -> None:
    dense = prefix_sum_rmse(optimal_dense(steps, tolerance=1e-9))
    toeplitz = prefix_sum_rmse(optimal_toeplitz(steps, steps))
    assert dense <= toeplitz * (1 + 1e-9) <= prefix_sum_rmse(square_root(steps)) * (1 + 2e-9)


def test_the_first_round_finds_the_square_root_of_the_gram_matrix() -> None:
    """CᵀC = S^½, scaled to a diagonal of ones, is within any loose tolerance."""
    workload = np.tril(np.ones((5, 5)))
    values, vectors = np.linalg.eigh(workload.T @ workload)
    root = (vectors * np.sqrt(values)) @ vectors.T
    scale = np.sqrt(np.diag(root))
    matrix = optimal_dense(5, tolerance=1, rounds=1).matrix()
    np.testing.assert_allclose(matrix.T @ matrix, root / np.outer(scale, scale), rtol=1e-9)


def test_all_columns_of_a_dense_strategy_have_norm_one() -> None:
    np.testing.assert_allclose((optimal_dense(50).matrix() ** 2).sum(0), 1, rtol=1e-12)


@pytest.mark.parametrize("steps", [3, 60])
def test_dense_meets_the_conditions_of_optimality(steps: int) -> None:
    """At the optimum X⁻¹SX⁻¹ has the dual variables on its diagonal and is diagonal."""
    matrix = optimal_dense(steps, tolerance=1e-12).matrix()
    workload = np.tril(np.ones((steps, steps)))
    inverse = np.linalg.inv(matrix.T @ matrix)
    slope = inverse @ workload.T @ workload @ inverse
    off_diagonal = slope - np.diag(np.diag(slope))
    assert np.abs(off_diagonal).max() <= 1e-4 * np.diag(slope).min()


def square_root(steps: int) -> Toeplitz:
    """Return the square root of the prefix-sum matrix, scaled to column norm 1: a closed form.

    Source: Fichtenberger, Henzinger, Upadhyay 2023, "Constant Matters", theorem 1.
    """
    k = np.arange(1, steps)
    series = np.cumprod(np.concatenate([[1.0], (2 * k - 1) / (2 * k)]))  # of (1 − x)^-½
    return Toeplitz(series / np.linalg.norm(series), steps)


def test_the_square_root_squares_to_the_prefix_sums() -> None:
    root = square_root(30)
    squared = root.matrix() @ root.matrix() / root.coefficients[0] ** 2
    np.testing.assert_allclose(squared, np.tril(np.ones((30, 30))), atol=1e-12)


def brute_force_sensitivity(strategy: Strategy, separation: int, participations: int) -> float:
    """Try every set of participations with equal unit vectors, the worst for disjoint columns."""
    matrix = strategy.matrix()
    best = 0.0
    for count in range(participations + 1):
        for steps in itertools.combinations(range(strategy.steps), count):
            if all(b - a >= separation for a, b in itertools.pairwise(steps)):
                best = max(best, float(np.linalg.norm(matrix[:, list(steps)].sum(axis=1))))
    return best


@pytest.mark.parametrize("separation", [3, 4, 7])
@pytest.mark.parametrize("participations", [0, 1, 2, 3, 4, 9])
def test_k_participations_at_least_the_bands_apart_move_the_sum_by_at_most_the_root_of_k(
    separation: int, participations: int
) -> None:
    """Accountants rest on this: T steps cost k releases of one Gaussian mechanism."""
    most = brute_force_sensitivity(optimal_toeplitz(11, 3), separation, participations)
    assert most <= math.sqrt(participations) * (1 + 1e-12)
    if participations == 1:
        assert most == pytest.approx(1)


def test_three_participations_cost_the_root_of_three() -> None:
    columns = optimal_toeplitz(2000, 128).matrix()[:, [0, 128, 256]]
    assert np.linalg.norm(columns.sum(axis=1)) == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", [1, 2, 3, 5, 6, 50])
def test_participations_that_are_groups_apart_cost_one_release_each(kind: str, groups: int) -> None:
    """Every set of turns of every example, with every choice of signs, in every first part."""
    strategy = fitted(example(kind), groups)
    matrix, steps = strategy.matrix(), strategy.steps
    draw, closest = np.random.default_rng(0), 0.0
    tree = isinstance(strategy, Tree)
    parts = Participation(
        groups=groups,
        sampling_rate=1,
        steps=steps,
        prefix_cost=prefix_cost(steps, min(groups, steps)) if tree else 1.0,
    )
    allowed = np.array([parts.releases(t) for t in range(1, steps + 1)])
    assert allowed[-1] == math.ceil(steps / groups)
    for first in range(min(groups, steps)):
        turns = np.arange(first, steps, groups)
        few = 3 ** len(turns) <= 3**7
        signs = (
            np.array(list(itertools.product([-1, 0, 1], repeat=len(turns))))
            if few
            else np.vstack([np.ones(len(turns)), draw.choice([-1, 0, 1], (500, len(turns)))])
        )
        squares = np.cumsum((matrix[:, turns] @ signs.T) ** 2, axis=0).max(axis=1)
        assert (squares <= allowed * (1 + 1e-9)).all()
        attained = squares / allowed
        closest = max(closest, float(attained[-1] if tree else attained.max()))
    assert closest == pytest.approx(1, rel=1e-9)  # and with no more noise than that takes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("separation", [2, 3, 5])
def test_turns_that_are_further_apart_cost_no_more(kind: str, separation: int) -> None:
    """Also where they are not evenly spaced: Kalinin and Lampert 2024, theorem 2, for Toeplitz."""
    strategy = fitted(example(kind), separation)
    most = -(-strategy.steps // separation)
    found = brute_force_sensitivity(strategy, separation, most)
    assert found <= math.sqrt(most) * (1 + 1e-9)


def test_tree_noise_is_no_larger_than_all_participations_take() -> None:
    """At t = 512 participations cost more than at T = 1000, where they cost what they may."""
    steps, groups = 1000, 100
    matrix = fitted(Tree(steps), groups).matrix()
    turns = [matrix[:, first::groups].sum(axis=1) for first in range(groups)]
    moved = np.max([np.cumsum(rows**2) for rows in turns], axis=0)
    assert moved[-1] == pytest.approx(10)
    participations = np.ceil(np.arange(1, steps + 1) / groups)
    assert (moved / participations).max() == pytest.approx(prefix_cost(steps, groups))
    assert prefix_cost(steps, groups) == pytest.approx(1.125178**2, rel=1e-6)
    error = math.sqrt(10) * prefix_sum_rmse(Tree(steps), groups)  # as in docs/samplers.md
    assert error == pytest.approx(22.7, abs=0.05)


def test_an_entry_below_zero_counts_with_its_size() -> None:
    matrix = np.array([[1.0, 0.0], [-1.0, 1.0]])
    np.testing.assert_allclose(Dense(matrix).squared_distances(1), [1, 5])


def test_banded_strategies_stay_as_they_are_where_turns_are_far_enough_apart() -> None:
    strategy = optimal_toeplitz(20, 5)
    assert fitted(strategy, 5) is strategy
    assert fitted(strategy, 4) is not strategy


def test_banded_inverses_have_the_published_coefficients() -> None:
    """(1 − x)^½ = 1 − x/2 − x²/8 − x³/16 − 5x⁴/128 − …"""
    expected = [1, -1 / 2, -1 / 8, -1 / 16, -5 / 128]
    np.testing.assert_allclose(inverse_square_root(9, 5).coefficients, expected, rtol=1e-12)
    np.testing.assert_allclose(
        fitted(inverse_square_root(30, 30), 30).matrix(), square_root(30).matrix(), rtol=1e-12
    )
    np.testing.assert_allclose(cancelling(9, 0.7).column, 0.7 ** np.arange(9), rtol=1e-12)
    assert prefix_sum_rmse(cancelling(9, 0.5)) == pytest.approx(
        prefix_sum_rmse(inverse_square_root(9, 2)), rel=1e-12
    )


@pytest.mark.parametrize("kind", ["banded inverse", "full inverse", "cancelling", "buffered"])
def test_entries_of_strategies_with_a_short_memory_are_positive_and_fall(kind: str) -> None:
    column = example(kind).matrix()[:, 0]
    assert (column > 0).all()
    assert (np.diff(column) < 0).all()


def test_a_buffered_strategy_is_a_sum_of_powers() -> None:
    strategy = optimal_buffers(40, 3, 10)
    t = np.arange(39)
    omega = strategy.weights(2)
    expected = sum(w * theta**t for w, theta in zip(omega, strategy.decays, strict=True))
    assert (omega > 0).all()
    np.testing.assert_allclose(strategy.column, np.append(1, expected), rtol=1e-12)


@pytest.mark.quick(steps=[200])
@pytest.mark.parametrize(("steps", "groups"), [(60, 60), (60, 12), (200, 200), (200, 50)])
def test_few_buffers_come_close_to_the_best_toeplitz_strategy(steps: int, groups: int) -> None:
    errors = [prefix_sum_rmse(optimal_buffers(steps, m, groups), groups) for m in (1, 2, 3)]
    assert all(b <= a * (1 + 1e-6) for a, b in itertools.pairwise(errors))
    if groups == steps:
        best = prefix_sum_rmse(optimal_toeplitz(steps, steps))
        assert best <= errors[-1] * (1 + 1e-9) <= best * 1.001


@pytest.mark.long
@settings(max_examples=20)
@given(buffers=st.integers(1, 3), seed=st.integers(0, 2**31), groups=st.sampled_from([5, 30]))
def test_no_nearby_buffered_strategy_has_less_error(buffers: int, seed: int, groups: int) -> None:
    """Where two decays nearly agree the error is flat, and the search ends 2e-6 above its least."""
    best = optimal_buffers(30, buffers, groups)
    draw = np.random.default_rng(seed)
    nudged = [
        ends * np.exp(1e-2 * draw.standard_normal(buffers))
        for ends in (best.decays, best.inverse_decays)
    ]
    try:
        other = BufferedToeplitz(nudged[0], nudged[1], 30)
    except ValueError:  # does not interlace
        return
    assert prefix_sum_rmse(best, groups) <= prefix_sum_rmse(other, groups) * (1 + 1e-5)


def test_a_step_is_in_as_many_nodes_of_the_tree_as_it_has_levels() -> None:
    """The first step is a left child at every level: its column is the longest."""
    columns = Tree(13).matrix()
    assert columns[:, 0].sum() == 4 == columns.sum(axis=0).max()
    np.testing.assert_array_equal(columns[11], [0] * 8 + [1] * 4 + [0])


def test_prefix_sums_of_the_tree_have_the_noise_of_its_nodes() -> None:
    """t = 11 = 8 + 2 + 1 has the noise of three nodes."""
    np.testing.assert_array_equal(Tree(16).prefix_sum_variances()[[6, 7, 10, 15]], [3, 1, 3, 1])


def test_matrices_that_are_no_strategy_are_refused() -> None:
    with pytest.raises(ValueError, match="lower triangular"):
        Dense(np.ones((2, 2)))
    with pytest.raises(ValueError, match="diagonal above 0"):
        Dense(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="square"):
        Dense(np.ones((2, 3)))
    with pytest.raises(ValueError, match="do not fit"):
        Toeplitz(np.ones(3), 2)
    with pytest.raises(ValueError, match="above 0"):
        Toeplitz(np.array([0.0, 1.0]), 2)
    with pytest.raises(ValueError, match="at least 1"):
        optimal_toeplitz(0, 1)
    with pytest.raises(ValueError, match="first above 0"):
        Toeplitz(np.array([0.0, 1.0]), 3, inverse=True)
    with pytest.raises(ValueError, match="interlace"):
        BufferedToeplitz(np.array([0.5]), np.array([0.6]), 3)
    with pytest.raises(ValueError, match="below 1"):
        BufferedToeplitz(np.array([1.0]), np.array([0.6]), 3)


def test_an_unmet_tolerance_is_an_error() -> None:
    with pytest.raises(ArithmeticError, match="after 2 rounds"):
        optimal_dense(30, tolerance=1e-9, rounds=2)
