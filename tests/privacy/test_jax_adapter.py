"""The adapter of JAX Privacy, which is no dependency: without it, one line says what to install."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from loops import BATCH, CLASSES, CLIP, EXAMPLES, FEATURES, SIGMA, STEPS, claim, examples

from clipnoise.audit import from_jax_privacy
from clipnoise.audit.loops.verdict import judge_loop
from clipnoise.errors import UserError

INSTALLED = importlib.util.find_spec("jax_privacy") is not None
needs_jax = pytest.mark.skipif(not INSTALLED, reason="jax-privacy is not installed")


def loop(
    noise: float = SIGMA, rate: float = BATCH / EXAMPLES, key: int | None = None
) -> Callable[..., Any]:
    """Return DP-SGD of logistic regression as the documentation of JAX Privacy writes it."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax_privacy import batch_selection, clipped_grad, noise_addition

    def loss(parameters: Any, inputs: Any, targets: Any) -> Any:
        logits = inputs @ parameters["weight"] + parameters["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    def train(data: Any, seed: int) -> Any:
        gradient = clipped_grad(loss, l2_clip_norm=CLIP, normalize_by=BATCH, batch_argnums=(1, 2))
        privatizer = noise_addition.gaussian_privatizer(
            stddev=noise * gradient.sensitivity(), prng_key=seed if key is None else key
        )
        parameters = {"weight": jnp.zeros((FEATURES, CLASSES)), "bias": jnp.zeros(CLASSES)}
        state = privatizer.init(parameters)
        strategy = batch_selection.CyclicPoissonSampling(sampling_prob=rate, iterations=STEPS)
        for places in strategy.batch_iterator(len(data), seed):
            items = [data[i] for i in places]
            inputs = jnp.array([np.asarray(x) for x, _ in items]).reshape(-1, FEATURES)
            targets = jnp.array([int(y) for _, y in items], dtype=jnp.int32)
            released, state = privatizer.update(gradient(parameters, inputs, targets), state)
            parameters = jax.tree.map(lambda p, g: p - 0.5 * g, parameters, released)
        return parameters

    return train


def given() -> dict[str, Any]:
    return {"epsilon": claim().epsilon, "delta": claim().delta}


def refuted_by(loop: Callable[..., Any], **more: Any) -> set[str]:
    found, train = from_jax_privacy(loop, examples(), **{**given(), **more})
    result = judge_loop(found, train, examples(), level="quick")
    return {each["name"] for each in result["refuted_by"]}


@pytest.mark.skipif(INSTALLED, reason="jax-privacy is installed")
def test_without_jax_privacy_an_error_says_what_to_install() -> None:
    with pytest.raises(UserError, match="pip install jax-privacy"):
        from_jax_privacy(lambda data: None, examples())


@needs_jax
def test_the_claim_of_a_loop_with_jax_privacy_is_found() -> None:
    found, _ = from_jax_privacy(loop(), examples(), **given())
    assert found == claim(epsilon=claim().epsilon)


@needs_jax
@pytest.mark.long
def test_jax_privacy_as_documented_is_not_refuted() -> None:
    assert not refuted_by(loop())


@needs_jax
@pytest.mark.long
def test_noise_of_a_key_in_the_code_is_refuted() -> None:
    assert "noise" in refuted_by(loop(key=7))


@needs_jax
@pytest.mark.long
def test_half_of_the_claimed_noise_is_refuted() -> None:
    assert "sensitivity" in refuted_by(loop(noise=SIGMA / 2), noise_multiplier=SIGMA)


@needs_jax
@pytest.mark.long
def test_twice_the_accounted_rate_is_refuted() -> None:
    assert "accounting" in refuted_by(loop(rate=2 * BATCH / EXAMPLES), expected_batch_size=BATCH)
