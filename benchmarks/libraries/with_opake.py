"""Opake: the training loop of its README, with its clipping functions and its Poisson sampler.

    VARIANT=adaptive clipnoise judge --loop benchmarks/libraries/with_opake.py

The claim is what the functions are given. Its ε is left out: opake.accounting 0.16.1 cannot be
imported with Python 3.11.7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opake.dpsgd.clipping import adaptive_clipped_grad, auto_clipped_grad, clipped_grad
from opake.dpsgd.noise import gaussian_noise
from opake.dpsgd.sampling import PoissonSampler
from opake.functional import empty_collate, make_functional
from opake.random import fold_in, key
from task import BATCH, CLIP, EXAMPLES, SIGMA, STEPS, digits, network, variant
from torch import nn
from torch.utils.data import DataLoader, default_collate

from clipnoise.audit import Claim

VARIANT = variant(("fixed", "auto", "adaptive", "microbatches"))

data = digits()
claim = Claim(
    noise_multiplier=SIGMA,
    clip_norm=CLIP,
    expected_batch_size=BATCH,
    steps=STEPS,
)


def train(data: Any, record: Callable[[Any], Any], seed: int) -> nn.Module:
    """Train as the README of Opake does; return the parameters in the network."""
    model = network()
    functional, parameters = make_functional(model, disable_autograd_tracking=True)

    def loss_of(parameters: Any, inputs: Any, target: Any) -> Any:
        logits = functional(parameters, inputs)
        return nn.functional.cross_entropy(logits, target)

    given: dict[str, Any] = {"batch_argnums": (1, 2), "normalize_by": BATCH}
    if VARIANT == "auto":
        gradient, clip_state = auto_clipped_grad(loss_of, R=CLIP, **given)
    elif VARIANT == "adaptive":
        gradient, clip_state = adaptive_clipped_grad(
            loss_of, initial_clipping_norm=CLIP, key=fold_in(key(seed), 1), **given
        )
    else:
        if VARIANT == "microbatches":
            given["microbatch_size"] = 16
        gradient, clip_state = clipped_grad(loss_of, clipping_norm=CLIP, **given)
    add_noise, noise_state = gaussian_noise(noise_multiplier=SIGMA, key=fold_in(key(seed), 2))
    sampler = PoissonSampler(data, BATCH / EXAMPLES, STEPS, key=fold_in(key(seed), 3))
    collate = empty_collate(default_collate)
    for inputs, targets in DataLoader(data, batch_sampler=sampler, collate_fn=collate):
        clipped, clip_state = gradient(parameters, inputs, targets, state=clip_state)
        noisy, noise_state = add_noise(clipped, noise_state)
        # Adaptive clip norms are public; releases of one scale have noise of one scale.
        record([CLIP / (BATCH * clipped.max_norm) * one for one in noisy.pytree])
        parameters = tuple(
            one - 0.1 * change for one, change in zip(parameters, noisy.pytree, strict=True)
        )
    with torch.no_grad():
        for one, value in zip(model.parameters(), parameters, strict=True):
            one.copy_(value)
    return model
