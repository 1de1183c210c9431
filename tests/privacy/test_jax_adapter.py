"""The adapter of JAX Privacy, which is no dependency: without it, one line says what to install."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from loops import BATCH, CLASSES, CLIP, EXAMPLES, FEATURES, SIGMA, STEPS, claim, examples

from clipnoise.audit import from_jax_privacy
from clipnoise.audit.loops.claim import LoopJudgement
from clipnoise.audit.loops.verdict import judge_loop
from clipnoise.audit.loops.watched import Loop, WatchedData
from clipnoise.errors import UserError

INSTALLED = importlib.util.find_spec("jax_privacy") is not None
needs_jax = pytest.mark.skipif(not INSTALLED, reason="jax-privacy is not installed")


def loop(
    noise: float = SIGMA,
    rate: float = BATCH / EXAMPLES,
    key: int | None = None,
    compiled: bool = True,
    bands: int = 0,
) -> Callable[..., Any]:
    """Return DP-SGD of logistic regression as the documentation of JAX Privacy writes it.

    Args:
        noise: σ.
        rate: with which examples are drawn.
        key: of the noise; the seed of the run without it.
        compiled: whether a step is compiled.
        bands: of an execution plan, which is used where there are any.
    """
    import jax
    import jax.numpy as jnp
    import optax
    from jax_privacy import batch_selection, clipped_grad, noise_addition
    from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig

    strategy = batch_selection.CyclicPoissonSampling(sampling_prob=rate, iterations=STEPS)

    def loss(parameters: Any, inputs: Any, targets: Any) -> Any:
        logits = inputs @ parameters["weight"] + parameters["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    def parts(seed: int) -> tuple[Any, Any]:
        if bands:
            plan = BandMFExecutionPlanConfig(
                strategy=np.ones(bands),
                iterations=STEPS,
                epsilon=None,
                delta=None,
                noise_multiplier=noise,
                normalize_by=BATCH,
                rescale_to_unit_norm=False,
                noise_seed=seed,
            ).plan
            gradient = plan.clipped_grad(loss, batch_argnums=(1, 2))
            return gradient, plan.noise_addition_transform
        gradient = clipped_grad(loss, l2_clip_norm=CLIP, normalize_by=BATCH, batch_argnums=(1, 2))
        deviation = noise * gradient.sensitivity()
        return gradient, noise_addition.gaussian_privatizer(stddev=deviation, prng_key=seed)

    def train(data: Any, seed: int) -> Any:
        gradient, privatizer = parts(seed if key is None else key)

        def update(parameters: Any, state: Any, inputs: Any, targets: Any, padding: Any) -> Any:
            clipped = gradient(parameters, inputs, targets, is_padding_example=padding)
            released, state = privatizer.update(clipped, state)
            return jax.tree.map(lambda p, g: p - 0.5 * g, parameters, released), state

        step = jax.jit(update) if compiled else update
        parameters = {"weight": jnp.zeros((FEATURES, CLASSES)), "bias": jnp.zeros(CLASSES)}
        state = privatizer.init(parameters)
        for places in strategy.batch_iterator(len(data), seed):
            padded = batch_selection.pad_to_multiple_of(places, 2 * BATCH)
            inputs = np.zeros((len(padded), FEATURES), np.float32)
            targets = np.zeros(len(padded), np.int32)
            for row, (digit, target) in enumerate(data[place] for place in places):
                inputs[row], targets[row] = np.asarray(digit), int(target)
            parameters, state = step(parameters, state, inputs, targets, padded == -1)
        return parameters

    return train


def given() -> dict[str, Any]:
    return {"epsilon": claim().epsilon, "delta": claim().delta}


def judged(loop: Callable[..., Any], **more: Any) -> LoopJudgement:
    found, train = from_jax_privacy(loop, examples(), **{**given(), **more})
    return judge_loop(found, train, examples(), level="quick")


def refuted_by(result: LoopJudgement) -> set[str]:
    return {each.name for each in result.refuted_by}


@pytest.mark.skipif(INSTALLED, reason="jax-privacy is installed")
def test_without_jax_privacy_an_error_says_what_to_install() -> None:
    with pytest.raises(UserError, match="pip install jax-privacy"):
        from_jax_privacy(lambda data: None, examples())


@needs_jax
@pytest.mark.parametrize("bands", [0, 1])
def test_the_claim_of_a_loop_with_jax_privacy_is_found(bands: int) -> None:
    found, _ = from_jax_privacy(loop(bands=bands), examples(), **given())
    assert found == claim(epsilon=claim().epsilon)


@needs_jax
def test_compiled_steps_release_what_others_do_and_read_the_same() -> None:
    traces = []
    for compiled in (True, False):
        _, train = from_jax_privacy(loop(compiled=compiled), examples(), **given())
        traces.append(Loop(train, STEPS).run(WatchedData(examples()), 3))
    one, other = traces
    assert one.reads == other.reads
    assert len({len(reads) for reads in one.reads}) > 1
    assert one.releases.numpy() == pytest.approx(other.releases.numpy(), abs=1e-5)


@needs_jax
def test_a_run_ends_after_the_release_that_was_asked_for() -> None:
    _, train = from_jax_privacy(loop(), examples(), **given())
    data = WatchedData(examples())
    trace = Loop(train, STEPS).run(data, 3, limit=2)
    assert trace.steps == 2
    assert not trace.rest


@needs_jax
def test_noise_that_is_correlated_across_steps_is_an_error() -> None:
    with pytest.raises(UserError, match="correlated across steps"):
        from_jax_privacy(loop(bands=2), examples(), **given())


@needs_jax
@pytest.mark.long
def test_jax_privacy_as_documented_is_not_refuted() -> None:
    result = judged(loop())
    assert not result.refuted_by
    made = {each.name for each in result.checks}
    assert made >= {"accounting", "sampler", "apart", "divisor", "noise", "sensitivity"}


@needs_jax
@pytest.mark.long
def test_noise_of_a_key_in_the_code_is_refuted() -> None:
    assert "noise" in refuted_by(judged(loop(key=7)))


@needs_jax
@pytest.mark.long
def test_half_of_the_claimed_noise_is_refuted() -> None:
    assert "sensitivity" in refuted_by(judged(loop(noise=SIGMA / 2), noise_multiplier=SIGMA))


@needs_jax
@pytest.mark.long
def test_twice_the_accounted_rate_is_refuted() -> None:
    result = judged(loop(rate=2 * BATCH / EXAMPLES), expected_batch_size=BATCH)
    assert "accounting" in refuted_by(result)
