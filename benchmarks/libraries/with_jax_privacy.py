"""JAX Privacy: the training loop of its execution plans, with independent noise (one band).

    VARIANT=microbatches clipnoise judge --loop benchmarks/libraries/with_jax_privacy.py

The claim is that of the plan: σ and C as they are given to it, and the ε of its event under its
default accountant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from jax_privacy import batch_selection
from jax_privacy.experimental import execution_plan
from task import BATCH, CLIP, DELTA, EXAMPLES, SIGMA, STEPS, digits, network, variant
from torch import nn

from clipnoise.audit import Claim

KNOWN = ("zero-out", "add-remove", "microbatches", "unit-norm", "bfloat16", "fixed-batches")
VARIANT = variant(KNOWN)
PADDING = 32
ADD_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
OPTIONS: dict[str, dict[str, Any]] = {
    "add-remove": {
        "partition_type": batch_selection.PartitionType.INDEPENDENT,
        "accountant": dp_accounting.pld.PLDAccountant(ADD_REMOVE),
    },
    "unit-norm": {"rescale_to_unit_norm": True, "l2_clip_norm": 0.1},
    "bfloat16": {"dtype": jnp.bfloat16},
}


def configured(seed: int) -> execution_plan.BandMFExecutionPlanConfig:
    """Return DP-SGD: one band, whose strategy is the identity."""
    given = {"rescale_to_unit_norm": False, "l2_clip_norm": CLIP, **OPTIONS.get(VARIANT, {})}
    return execution_plan.BandMFExecutionPlanConfig(
        strategy=np.ones(1),
        iterations=STEPS,
        epsilon=None,
        delta=None,
        noise_multiplier=SIGMA,
        sampling_prob=BATCH / EXAMPLES,
        normalize_by=BATCH,
        noise_seed=seed,
        **given,
    )


def reported() -> float:
    """Return the ε that the accountant of the plan computes from its event."""
    config = configured(0)
    accountant = type(config.accountant)(config.accountant.neighboring_relation)
    return float(accountant.compose(config.plan.dp_event).get_epsilon(DELTA))


data = digits()
claim = Claim(
    epsilon=None if VARIANT == "fixed-batches" else reported(),
    delta=None if VARIANT == "fixed-batches" else DELTA,
    noise_multiplier=SIGMA,
    clip_norm=CLIP,  # of the released gradient, 1 where it is rescaled to unit norm
    expected_batch_size=BATCH,
    steps=STEPS,
    sampler="fixed-size" if VARIANT == "fixed-batches" else "poisson",
)


def loss_of(parameters: Any, inputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the mean loss of a batch under the network of `task`."""
    first, first_bias, second, second_bias = parameters
    hidden = jax.nn.relu(inputs @ first.T + first_bias)
    logits = hidden @ second.T + second_bias
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


PLAN = configured(0).plan
clipped_sum = jax.jit(
    PLAN.clipped_grad(
        loss_of,
        batch_argnums=(1, 2),
        **({"microbatch_size": 16} if VARIANT == "microbatches" else {}),
    )
)
add_noise = jax.jit(PLAN.noise_addition_transform.update)


def train(data: Any, record: Callable[[Any], Any], seed: int) -> nn.Module:
    """Train as the examples of JAX Privacy do; return the parameters in a PyTorch network."""
    published = network()
    parameters = [jnp.asarray(one.detach().numpy()) for one in published.parameters()]
    noise_state = configured(seed).plan.noise_addition_transform.init(parameters)
    optimizer = optax.sgd(0.1)
    state = optimizer.init(parameters)
    for places in batches(len(data), seed):
        padded = batch_selection.pad_to_multiple_of(places, PADDING)
        taken = [data[int(place)] for place in places]
        inputs = np.zeros((len(padded), 64), np.float32)
        targets = np.zeros(len(padded), np.int32)
        for row, (digit, target) in enumerate(taken):
            inputs[row], targets[row] = np.asarray(digit), int(target)
        summed = clipped_sum(parameters, inputs, targets, is_padding_example=padded == -1)
        noisy, noise_state = add_noise(summed, noise_state)
        record([np.array(one, np.float32) for one in noisy])
        updates, state = optimizer.update(noisy, state)
        parameters = optax.apply_updates(parameters, updates)
    with torch.no_grad():
        for one, value in zip(published.parameters(), parameters, strict=True):
            one.copy_(torch.tensor(np.array(value, np.float32)))
    return published


def batches(count: int, seed: int) -> Any:
    """Return the indices of each batch of some examples."""
    if VARIANT == "fixed-batches":
        strategy: Any = batch_selection.FixedBatchSampling(batch_size=BATCH, iterations=STEPS)
    else:
        strategy = PLAN.batch_selection_strategy
    return strategy.batch_iterator(count, rng=np.random.default_rng(seed))
