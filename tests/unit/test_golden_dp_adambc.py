"""Ten steps of the update rules of DP-AdamBC's released code, against `replay`.

The loops are written from the formulas that the code computes. Sources, at
github.com/ubc-systopia/DP-AdamBC: pytorch_implementation/adam_corr.py (text),
jax_implementation/trainer/dp_adambc.py (images), and in GNN (graph) optim/adam_optimizers.py,
optimizers.py and train.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pseudocode
import pytest
from numpy.typing import NDArray

from clipnoise import replay

Array = NDArray[np.float64]
STEPS, BATCH, DIMENSION = 10, 4, 6
RATE, FLOOR, EPS = 0.03, 2e-4, 1e-8
CLIP, SIGMA = 0.5, 0.7


@pytest.fixture
def start() -> Array:
    return np.random.default_rng(0).normal(size=DIMENSION)


@pytest.fixture
def gradients() -> Array:
    return np.random.default_rng(1).normal(size=(STEPS, BATCH, DIMENSION))


@pytest.fixture
def noise() -> Array:
    return np.random.default_rng(2).normal(size=(STEPS, DIMENSION))


def clipped(vectors: Array, bound: float) -> Array:
    """Return Σ g/max(1, ‖g‖/C)."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    total: Array = (vectors / np.maximum(lengths / bound, 1)).sum(axis=0)
    return total


def adam(
    start: Array,
    released: Array,
    betas: tuple[float, float],
    denominator: Callable[[float], float],
) -> Array:
    """Return the iterates of m̂ over a function of v̂."""
    stream = pseudocode.Stream(list(start), gradients=[[]] * STEPS, noise=[], public=[])
    iterates = pseudocode.adam(
        {"betas": betas, "learning_rate": RATE},
        stream,
        lambda t, _: (list(released[t]), list(released[t] ** 2)),
        lambda _, v_hat: denominator(v_hat),
    )
    return np.array(iterates)


def noised(gradients: Array, noise: Array, divisor: float = BATCH) -> Array:
    sums = [clipped(batch, CLIP) for batch in gradients]
    return np.stack([(g + SIGMA * CLIP * z) / divisor for g, z in zip(sums, noise, strict=True)])


def replayed(method: str, start: Array, gradients: Array, noise: Array, **options: Any) -> Array:
    constants = {"noise_multiplier": SIGMA, "expected_batch_size": BATCH, "clip_norm": CLIP}
    values = {"learning_rate": RATE, **constants, **options}
    return replay(method, values, start, gradients, noise)


def same(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert np.abs(found[-1] - found[0]).max() > 0.1, "ten steps must go somewhere"


def test_the_corrected_optimizer_for_images(start: Array, gradients: Array, noise: Array) -> None:
    phi = (SIGMA * CLIP / BATCH) ** 2
    expected = adam(
        start,
        noised(gradients, noise),
        (0.9, 0.999),
        lambda v: np.sqrt(np.maximum(v - phi, FLOOR)),
    )
    same(replayed("dp-adambc", start, gradients, noise, gamma_prime=FLOOR), expected)


def test_the_corrected_optimizer_for_text_subtracts_the_phi_of_another_batch_size(
    start: Array, gradients: Array, noise: Array
) -> None:
    """Opacus divides by int(n / batches), 255 for SNLI; the code's Φ has B = 256."""
    phi = (SIGMA * CLIP / (BATCH + 1)) ** 2
    expected = adam(
        start,
        noised(gradients, noise),
        (0.9, 0.999),
        lambda v: np.sqrt(np.maximum(v - phi, FLOOR)),
    )
    same(replayed("dp-adambc", start, gradients, noise, gamma_prime=FLOOR, phi=phi), expected)


def test_the_corrected_optimizer_for_graphs(start: Array, gradients: Array, noise: Array) -> None:
    """Gradients are divided by B before the clip; the noise is λ·2(K+1)C; β₂ is 1 − (1 − β₁)².

    The code clips each parameter array to C by itself; here there is one.
    """
    degree, multiplier, bound = 3, 0.2, 0.1
    deviation = bound * 2 * (degree + 1) * multiplier
    sums = [clipped(batch / BATCH, bound) for batch in gradients]
    released = np.stack([g + deviation * z for g, z in zip(sums, noise, strict=True)])
    betas = (0.9, 1 - (1 - 0.9) ** 2)
    expected = adam(start, released, betas, lambda v: np.sqrt(np.maximum(v - deviation**2, FLOOR)))
    options = {"noise_multiplier": 2 * (degree + 1) * multiplier, "clip_norm": BATCH * bound}
    same(
        replayed(
            "dp-adambc", start, gradients, noise, gamma_prime=FLOOR, betas=list(betas), **options
        ),
        expected,
    )


def test_the_uncorrected_optimizer(start: Array, gradients: Array, noise: Array) -> None:
    released = noised(gradients, noise)
    expected = adam(start, released, (0.9, 0.999), lambda v: np.sqrt(v) + EPS)
    same(replayed("dp-adam", start, gradients, noise, gamma=EPS), expected)


def test_sgd_with_momentum_at_the_converted_rate(
    start: Array, gradients: Array, noise: Array
) -> None:
    """The code divides the trace by 1 − βᵗ and takes the converted rate as a constant."""
    theta, trace, expected = start, np.zeros(DIMENSION), [start]
    rate = RATE * (1 - 0.9) / (SIGMA * CLIP / BATCH)
    for t, g in enumerate(noised(gradients, noise), 1):
        trace = g + 0.9 * trace
        theta = theta - rate * trace / (1 - 0.9**t)
        expected.append(theta)
    found = replayed("dp-sgdm", start, gradients, noise, momentum=0.9, schedule="adam-equivalent")
    same(found, np.stack(expected))


def test_a_constant_bias_on_the_second_moment_without_noise(
    start: Array, gradients: Array, noise: Array
) -> None:
    """Figure 2, right: the code has the bias correction and γ, which the text leaves out."""
    bias = 1e-3
    means = np.stack([clipped(batch, CLIP) / BATCH for batch in gradients])
    expected = adam(start, means, (0.9, 0.999), lambda v: np.sqrt(v + bias) + EPS)
    same(replayed("clipped-adam-biased", start, gradients, noise, phi=bias, gamma=EPS), expected)
