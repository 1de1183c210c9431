"""Replay against ten steps of the update rules that authors released, as they coded them.

The rules are written out below in numpy, with the file that they are read from. Where a final
iterate is given in digits, the released code itself printed it for the same recorded stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clipnoise import replay

Array = NDArray[np.float64]

T, B, D = 10, 4, 3
RATE, NOISE = 0.5, 0.3
START = np.array([0.3, -0.2, 0.1])


def recorded(passes: int) -> tuple[Array, Array]:
    """Gradients of shape (T, passes, B, D), pass j taken j steps back; noise, (T, D)."""
    gradients = np.sin(1 + 1.7 * np.arange(T * passes * B * D)) + 0.4
    noise = np.cos(1 + 2.3 * np.arange(T * D))
    return gradients.reshape(T, passes, B, D), noise.reshape(T, D)


# ---- DP-PMLF: combined_optimizer.py, and train_utils.py with the fastDP engine


def ages(t: int, k: int) -> list[int]:
    """How many steps back the passes of step t are: the current iterate, then param_history.

    The history starts as k − 1 copies of θ_0 and is extended after the passes of a step, up to k;
    a step reads its first k − 1 entries.
    """
    kept = [0] * (k - 1)
    for past in range(t):
        kept = kept[1:] if len(kept) >= k else kept
        kept.append(past)
    return [0, *(t - index for index in kept[: k - 1])]


def filtered(inputs: Array, a: list[float], b: list[float]) -> Array:
    """Iterates of the filter of `step`: its constant input bt begins as (1, 1, 0, …)."""
    theta, outputs, norms = [START], [], []
    constant = [1.0] + [0.0] * (len(b) - 1)
    for t in range(T):
        constant = [1.0, *constant[:-1]]
        m = sum(b[r] * inputs[t - r] for r in range(min(len(b), t + 1)))
        norm = float(np.dot(b, constant))
        for r in range(1, min(len(a), t) + 1):
            m = m - a[r - 1] * outputs[t - r]
            norm -= a[r - 1] * norms[t - r]
        outputs.append(m)
        norms.append(norm)
        theta.append(theta[-1] - RATE * m / norm)
    return np.array(theta)


FILTERS: list[tuple[int, float, list[float], list[float], list[float]]] = [
    (2, 0.1, [-0.9], [0.15, -0.05], [-1.100520893, -2.722872546, -3.291484383]),
    (4, 0.5, [-0.7, -0.2], [0.05, 0.05], [-1.145006973, -1.950922322, -2.165903637]),
    (3, 0.3, [-0.6], [0.4], [-2.11578192, -1.987270269, -1.596848295]),
]


@pytest.mark.parametrize(("k", "beta", "a", "b", "printed"), FILTERS)
def test_dp_pmlf_as_its_optimizer_is_written(
    k: int, beta: float, a: list[float], b: list[float], printed: list[float]
) -> None:
    gradients, noise = recorded(k + 1)
    weights = np.array([beta ** (k - 1 - i) for i in range(k)])
    weights /= weights.sum()
    inputs = NOISE * noise
    for t in range(T):
        for weight, age in zip(weights, ages(t, k), strict=True):
            inputs[t] += weight * gradients[t, age].mean(axis=0)
    expected = filtered(inputs, a, b)
    options = {"history": k, "beta": beta, "filter_a": a, "filter_b": b}
    wide = {"clip_norm": 1e6, "noise_multiplier": NOISE * B / 1e6}  # nothing is clipped
    found = replayed("dp-pmlf-released", options | wide, gradients, noise)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(expected[-1], printed, rtol=1e-9)


@pytest.mark.parametrize(
    ("k", "a", "b", "printed"),
    [
        (2, [-0.9], [0.15, -0.05], [-2.156885246, -3.218412282, -4.088209759]),
        (3, [-0.6], [0.4], [-3.697348919, -3.662826568, -4.937922956]),
    ],
)
def test_dp_pmlf_as_its_training_script_runs(
    k: int, a: list[float], b: list[float], printed: list[float]
) -> None:
    """The fastDP engine steps with its own sum, not with the weighted one.

    It adds up the gradients of all k passes, each normalised by itself, with the noise of one: β
    plays no part.
    """
    gradients, noise = recorded(k + 1)
    passes = np.stack([gradients[t, ages(t, k)].reshape(k * B, D) for t in range(T)])
    passes /= np.linalg.norm(passes, axis=-1, keepdims=True) + 0.01
    expected = filtered((passes.sum(axis=1) + NOISE * noise) / B, a, b)
    options = {"history": 1, "filter_a": a, "filter_b": b}
    own = {"clip_norm": 1.0, "noise_multiplier": NOISE}
    found = replayed("dp-pmlf-released", options | own, passes[:, None], noise)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(expected[-1], printed, rtol=1e-9)


# ---- AdaDPS: imdb/trainers/dp-sgd.py with use_public or scale, and model_base.py beside it


def scaled_and_clipped(gradients: Array, noise: Array, scale: Array, size: int) -> Array:
    """Iterates of `train`: means of micro-batches are scaled, clipped, summed, then noised.

    clip_grad_norm_ multiplies by C/(‖g‖ + 1e-6) where that is below 1; here C is 1.
    """
    theta = [START]
    for t in range(T):
        means = gradients[t, 0].reshape(B // size, size, D).mean(axis=1) * scale
        means *= np.minimum(1, 1 / (np.linalg.norm(means, axis=1, keepdims=True) + 1e-6))
        theta.append(theta[-1] - RATE * (means.sum(axis=0) + NOISE * noise[t]) / (B // size))
    return np.array(theta)


def public_scale(public: Array) -> Array:
    """1/√(p + ε) of `estimate_preconditioner`: p is the mean of squared mini-batch gradients.

    It is recomputed in each epoch, not averaged over steps, and ε is inside the root.
    """
    scale: Array = 1 / np.sqrt(np.square(public).mean(axis=0) + 1e-10)
    return scale


def frequency_scale(counts: Array, examples: int) -> Array:
    """`get_bow_frequency` and the multiplier in `train`, with its defaults of cap and division."""
    frequency = (counts + 0.1) / examples + 1e-10
    scale: Array = np.minimum(1e7, frequency.max() / (frequency + 1e-20)) / 100
    return scale


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "scale",
    [
        pytest.param(public_scale(np.array([[0.4, -0.01, 0.0], [0.2, 0.03, 0.0]])), id="RMSProp"),
        pytest.param(frequency_scale(np.array([900.0, 40.0, 0.0]), 250), id="token frequency"),
    ],
)
def test_adadps_as_released_is_side_information_within_an_epoch(scale: Array, size: int) -> None:
    gradients, noise = recorded(1)
    expected = scaled_and_clipped(gradients, noise, scale, size)
    options = {"clip_norm": 1.0, "noise_multiplier": NOISE, "gamma": 0.0, "microbatch_size": size}
    options |= {"microbatch_accounting": "as-published"} if size > 1 else {}
    found = replayed("adadps-side", options, gradients, noise, side_information=1 / scale)
    np.testing.assert_allclose(found, expected, rtol=0, atol=T * RATE * 1e-6)


def replayed(
    method: str, options: dict[str, Any], gradients: Array, noise: Array, **more: Any
) -> Array:
    constants = {"learning_rate": RATE, "expected_batch_size": B}
    return replay(method, constants | options, START, gradients, noise, **more)
