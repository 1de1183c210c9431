"""The stream of correlated noise: its distribution, its memory, and resuming it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clipnoise.core.state import next_bias_factor
from clipnoise.privacy.noise import IndependentNoise, NoiseSource
from clipnoise.privacy.noise.banded import BandedNoise
from clipnoise.privacy.noise.banded_inverse import BandedInverseNoise
from clipnoise.privacy.noise.buffered import BufferedNoise
from clipnoise.privacy.noise.cancelling import CancellingNoise
from clipnoise.privacy.noise.dense import DenseNoise
from clipnoise.privacy.noise.tree import TreeNoise
from clipnoise.privacy.noise_strategies import (
    Strategy,
    Toeplitz,
    Tree,
    cancelling,
    fitted,
    inverse_square_root,
    optimal_buffers,
    optimal_dense,
    optimal_toeplitz,
)

KINDS = {
    "one band": optimal_toeplitz(9, 1),
    "two bands": optimal_toeplitz(9, 2),
    "banded": optimal_toeplitz(23, 5),
    "all bands": optimal_toeplitz(6, 6),
    "dense": optimal_dense(12),
    "banded inverse": fitted(inverse_square_root(23, 5), 6),
    "cancelling": fitted(cancelling(9, 0.9), 3),
    "buffered": fitted(optimal_buffers(23, 3, 6), 6),
    "tree": fitted(Tree(21), 6),
    "banded for rates": optimal_toeplitz(23, 5, np.linspace(1, 0.1, 23)),
    "dense for rates": optimal_dense(12, rates=np.linspace(1, 0.1, 12)),
    "buffered for rates": fitted(optimal_buffers(23, 3, 6, np.linspace(1, 0.1, 23)), 6),
}
STRATEGIES = pytest.mark.parametrize("strategy", KINDS.values(), ids=KINDS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def stream(strategy: Strategy, dimension: int, seed: int = 0) -> NoiseSource:
    return NoiseSource(seeded(seed), torch.zeros(dimension, dtype=torch.float64), strategy)


@STRATEGIES
@pytest.mark.parametrize("draws", [1, 2])
def test_streaming_equals_the_dense_product(strategy: Strategy, draws: int) -> None:
    correlated = stream(strategy, 4)
    independent = NoiseSource(seeded(), torch.zeros(4, dtype=torch.float64))
    made, normals = [], []
    for _ in range(strategy.steps):
        made.append(torch.stack(correlated.next(draws)).numpy())
        normals.append(torch.stack(independent.next(draws)).numpy())
    expected = np.einsum("ts,srd->trd", np.linalg.inv(strategy.matrix()), np.stack(normals))
    np.testing.assert_allclose(np.stack(made), expected, rtol=1e-10, atol=1e-12)


@STRATEGIES
def test_the_empirical_covariance_is_that_of_the_strategy(strategy: Strategy) -> None:
    """Each entry of the mean of n outer products has standard error √((Σ_ii Σ_jj + Σ_ij²)/n)."""
    count = 40_000
    correlated = stream(strategy, count, seed=3)
    noise = torch.stack([correlated.next()[0] for _ in range(strategy.steps)]).numpy()
    inverse = np.linalg.inv(strategy.matrix())
    expected = inverse @ inverse.T
    variances = np.diag(expected)
    error = np.sqrt((np.outer(variances, variances) + expected**2) / count)
    assert (np.abs(noise @ noise.T / count - expected) < 5 * error).all()


@STRATEGIES
def test_row_norms_are_the_variances_of_the_steps(strategy: Strategy) -> None:
    inverse = np.linalg.inv(strategy.matrix())
    correlated = stream(strategy, 1)
    norms = [correlated.row_norm_squared(t) for t in range(1, strategy.steps + 1)]
    np.testing.assert_allclose(norms, (inverse**2).sum(axis=1), rtol=1e-10)


def test_several_draws_are_independent_streams() -> None:
    correlated = stream(optimal_toeplitz(6, 3), 40_000)
    first, second = zip(*[correlated.next(2) for _ in range(6)], strict=True)
    crossed = torch.stack(first) @ torch.stack(second).T / 40_000
    assert float(crossed.abs().max()) < 5 * 1.5 / 200  # variances are below 1.5


@STRATEGIES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_resumed_equals_uninterrupted_bit_for_bit(strategy: Strategy, dtype: torch.dtype) -> None:
    like = torch.zeros(37, dtype=dtype)
    whole = NoiseSource(seeded(), like, strategy)
    expected = [whole.next(2) for _ in range(strategy.steps)]
    for stop in range(strategy.steps):
        first = NoiseSource(seeded(), like, strategy)
        for _ in range(stop):
            first.next(2)
        saved = first.get_state()
        for _ in range(strategy.steps - stop):
            first.next(2)  # what comes after saving must not reach the saved state
        resumed = NoiseSource(seeded(99), like, strategy)
        resumed.set_state(saved)
        for left in expected[stop:]:
            for a, b in zip(resumed.next(2), left, strict=True):
                assert torch.equal(a, b)


def test_a_saved_state_is_taken_to_the_device_of_the_parameters() -> None:
    saved = stream(optimal_toeplitz(6, 3), 4)
    saved.next()
    elsewhere = NoiseSource(seeded(), torch.zeros(4, device="meta"), saved.strategy)
    elsewhere.set_state(saved.get_state())
    assert elsewhere.get_state()["memory"].is_meta


@pytest.mark.parametrize(
    ("strategy", "vectors"),
    [
        (optimal_toeplitz(200, 8), 7),
        (inverse_square_root(200, 8), 7),
        (cancelling(200, 0.5), 1),
        (optimal_buffers(200, 3), 3),
        (Tree(200), 8),
    ],
)
def test_memory_holds_few_vectors_however_long_the_run(strategy: Strategy, vectors: int) -> None:
    correlated = stream(strategy, 11)
    for _ in range(200):
        correlated.next()
    assert correlated.get_state()["memory"].shape == (1, vectors, 11)


def test_changing_what_was_returned_does_not_change_what_follows() -> None:
    kept, changed = stream(optimal_toeplitz(8, 4), 5), stream(optimal_toeplitz(8, 4), 5)
    for _ in range(8):
        a, b = kept.next()[0], changed.next()[0]
        assert torch.equal(a, b)
        b.zero_()


def test_prefix_sums_of_the_stream_have_the_predicted_error() -> None:
    strategy = optimal_toeplitz(60, 10)
    correlated = stream(strategy, 20_000, seed=1)
    sums = torch.stack([correlated.next()[0] for _ in range(60)]).cumsum(0)
    measured = sums.square().mean(dim=1).numpy()
    np.testing.assert_allclose(measured, strategy.prefix_sum_variances(), rtol=5 * 2**0.5 / 141)


def test_a_strategy_is_not_used_beyond_its_steps() -> None:
    correlated = stream(optimal_toeplitz(3, 2), 2)
    for _ in range(3):
        correlated.next()
    with pytest.raises(ValueError, match="3 steps"):
        correlated.next()
    with pytest.raises(ValueError, match=r"1 … 3"):
        correlated.row_norm_squared(4)


def test_the_number_of_draws_is_fixed_at_the_first_step() -> None:
    correlated = stream(optimal_toeplitz(3, 2), 2)
    correlated.next(2)
    with pytest.raises(ValueError, match="2 draws"):
        correlated.next(1)


def test_the_bias_factor_is_the_weighted_mean_of_the_row_norms() -> None:
    beta, strategy = 0.9, optimal_toeplitz(50, 7)
    norms = strategy.squared_row_norms
    factor = 0.0
    for t in range(1, 51):
        factor = next_bias_factor(factor, float(norms[t - 1]), beta, t)
        weights = (1 - beta) * beta ** (t - np.arange(1.0, t + 1)) / (1 - beta**t)
        assert factor == pytest.approx(weights @ norms[:t], rel=1e-12)


def test_the_bias_factor_of_independent_noise_is_exactly_one() -> None:
    factor = float("nan")
    for t in range(1, 2000):
        factor = next_bias_factor(factor, 1.0, 0.999, t)
        assert factor == 1.0


def test_the_bias_factor_is_the_bias_that_noise_leaves_in_a_second_moment() -> None:
    beta, steps, count = 0.8, 15, 200_000
    strategy = Toeplitz(np.array([0.8, 0.5, 0.33166]), steps)
    correlated = stream(strategy, count, seed=5)
    average, factor = torch.zeros(count, dtype=torch.float64), 0.0
    for t in range(1, steps + 1):
        average = beta * average + (1 - beta) * correlated.next()[0].square()
        factor = next_bias_factor(factor, correlated.row_norm_squared(t), beta, t)
    corrected = average / (1 - beta**steps)
    error = float(corrected.std()) / count**0.5
    assert abs(float(corrected.mean()) - factor) < 5 * error


def test_one_band_and_one_step_give_independent_noise() -> None:
    like = torch.zeros(3)
    for noise, steps in [
        (IndependentNoise(), 10),
        (BandedNoise(bands=1), 10),
        (BandedNoise(bands=8), 1),
        (DenseNoise(), 1),
        (BandedInverseNoise(bands=1), 10),
        (CancellingNoise(cancelled=0), 10),
        (BufferedNoise(buffers=2), 1),
        (TreeNoise(), 1),
    ]:
        assert noise.source(steps, 5, seeded(), like).strategy is None


def test_the_spec_chooses_the_optimised_strategy() -> None:
    for noise, expected in [
        (BandedNoise(bands=4), optimal_toeplitz(10, 4)),
        (DenseNoise(), optimal_dense(10)),
        (BandedInverseNoise(bands=3), inverse_square_root(10, 3)),
        (CancellingNoise(cancelled=0.4), cancelling(10, 0.4)),
        (BufferedNoise(buffers=2), optimal_buffers(10, 2, 5)),
        (TreeNoise(), Tree(10)),
    ]:
        found = noise.strategy(10, 5)
        assert found is not None
        np.testing.assert_array_equal(found.matrix(), fitted(expected, 5).matrix())
