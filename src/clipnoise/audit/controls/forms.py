"""Mistakes in how a batch becomes a sum. Each has the signature of `physical_batches`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from clipnoise.audit.bench import take
from clipnoise.core.clipping import ClippedSum
from clipnoise.gradients.engine import logical_sum, physical_batches

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.core.clipping import Clipping
    from clipnoise.data.base import DenseExamples
    from clipnoise.gradients.engine import GradientEngine

GROUP = 2
GAMMA = 1e-3


def clip_each_pass(
    engine: GradientEngine,
    examples: DenseExamples,
    batch: Tensor,
    iterates: Sequence[Tensor],
    clipping: Clipping,
    size: int,
) -> ClippedSum:
    """Clip the gradient of each pass by itself and add the k clipped ones."""
    each = replace(clipping, weights=(1.0,))
    sums: list[Tensor] = [logical_sum(engine, examples, batch, [at], each, size) for at in iterates]
    return ClippedSum(torch.stack(sums).sum(dim=0))


def clip_microbatches(
    engine: GradientEngine,
    examples: DenseExamples,
    batch: Tensor,
    iterates: Sequence[Tensor],
    clipping: Clipping,
    size: int,
) -> ClippedSum:
    """Clip means of two examples to C: one example can turn its mean around, which moves it 2C."""
    total, whole = torch.zeros_like(iterates[0]), replace(clipping, clip_norm=None)
    for group in torch.split(batch, GROUP):
        inputs, targets = examples.inputs[group], examples.targets[group]
        mean = engine.clipped_sum(inputs, targets, iterates, whole) / GROUP
        assert clipping.clip_norm is not None
        total += mean * (clipping.clip_norm / mean.norm()).clamp(max=1.0)
    return ClippedSum(total)


def divide_by_realised_size(expected_batch_size: float) -> Callable[..., ClippedSum]:
    """Return a sum that ends up divided by the size of the batch, not by the constant B."""

    def form(
        engine: GradientEngine,
        examples: DenseExamples,
        batch: Tensor,
        iterates: Sequence[Tensor],
        clipping: Clipping,
        size: int,
    ) -> ClippedSum:
        total = logical_sum(engine, examples, batch, iterates, clipping, size)
        return ClippedSum(total * (expected_batch_size / max(1, len(batch))))

    return form


def scale_by_private_statistics(
    engine: GradientEngine,
    examples: DenseExamples,
    batch: Tensor,
    iterates: Sequence[Tensor],
    clipping: Clipping,
    size: int,
) -> ClippedSum:
    """Take the preconditioner from the gradients of all private examples."""
    squares = torch.zeros_like(iterates[0])
    if len(examples):
        rows = engine.per_example_gradients(examples.inputs, examples.targets, iterates[0])
        squares = rows.square().mean(dim=0)
    private = replace(clipping, scale=1 / (squares.sqrt() + GAMMA))
    return physical_batches(engine, examples, batch, iterates, private, size)


def mask_by_position(
    engine: GradientEngine,
    examples: DenseExamples,
    batch: Tensor,
    iterates: Sequence[Tensor],
    clipping: Clipping,
    size: int,
) -> ClippedSum:
    """Draw dropout masks by the place in the batch, so that one example shifts those of others."""
    chosen, places = take(examples, batch.flip(0)), torch.arange(len(batch))
    return physical_batches(engine, chosen, places, iterates, clipping, size)
