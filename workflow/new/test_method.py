"""NewPlugin goes where its formula says."""

from __future__ import annotations

import numpy as np

import clipnoise


def test_two_steps_are_those_of_the_formula() -> None:
    settings = {"learning_rate": 0.5, "clip_norm": 1.0, "beta": 0.9}
    constants = {"noise_multiplier": 0.5, "expected_batch_size": 2}
    gradients = np.array([[[3.0, 4.0], [0.0, 0.5]], [[0.0, 0.0], [0.4, 0.0]]])
    noise = np.array([[2.0, -1.0], [0.0, 4.0]])
    iterates = clipnoise.replay("new-plugin", {**settings, **constants}, [0, 0], gradients, noise)
    clipped = np.array([[0.6, 1.3], [0.4, 0.0]])  # (3, 4) has norm 5, and becomes (0.6, 0.8)
    first, second = clipped / 2 + 0.5 * 1.0 / 2 * noise
    expected = [-0.5 * first, -0.5 * first - 0.5 * (0.9 * first + second)]
    np.testing.assert_allclose(iterates[1:], expected)
