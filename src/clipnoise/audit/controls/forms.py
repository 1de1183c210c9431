"""Mistakes in how a logical batch becomes a sum; each stands in for `physical_batches`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from clipnoise.audit.bench import take
from clipnoise.core.clipping import ClippedSum, ClipRule
from clipnoise.gradients.engine import LogicalBatch, logical_sum, physical_batches

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.audit.subject import Form

GROUP = 2
VIEWS = 3
GAMMA = 1e-3


class WithoutCrossTerm(ClipRule):
    """PSAC written as one fraction, C(‖v‖ + γ)/(‖v‖² + γ‖v‖ + γ), with γ‖v‖ forgotten below."""

    def factors(self, norms: Tensor, clip_norm: float) -> Tensor:
        return clip_norm * (norms + 1) / (norms.square() + 1)


class EachLayerToC(ClipRule):
    """Clip every layer to C and not to C/√L."""

    def factors(self, norms: Tensor, clip_norm: float) -> Tensor:
        return super().factors(norms, clip_norm * math.sqrt(len(norms)))


def clip_by(rule: ClipRule) -> Form:
    """Return a sum that is formed under another clip rule."""

    def form(batch: LogicalBatch) -> ClippedSum:
        return physical_batches(replace(batch, clipping=replace(batch.clipping, rule=rule)))

    return form


def clip_each_pass(batch: LogicalBatch) -> ClippedSum:
    """Clip the gradient of each pass by itself and add the k clipped ones."""
    each = replace(batch.clipping, weights=(1.0,))
    sums = [logical_sum(replace(batch, clipping=each.at(at))) for at in batch.clipping.points]
    return ClippedSum(torch.stack(sums).sum(dim=0))


def clip_each_view(batch: LogicalBatch) -> ClippedSum:
    """Clip the gradient of each view by itself and add the K clipped ones."""
    return physical_batches(replace(batch, indices=batch.indices.repeat_interleave(VIEWS)))


def leave_unclipped(batch: LogicalBatch) -> ClippedSum:
    """Add the losses' differences as they are."""
    return physical_batches(replace(batch, clipping=replace(batch.clipping, clip_norm=None)))


def clip_microbatches(batch: LogicalBatch) -> ClippedSum:
    """Clip means of two examples to C: one example can turn its mean around, which moves it 2C."""
    clip_norm, whole = batch.clipping.clip_norm, replace(batch.clipping, clip_norm=None)
    examples, total = batch.examples.dense(), torch.zeros_like(batch.engine.flat.theta)
    assert clip_norm is not None
    for group in torch.split(batch.indices, GROUP):
        inputs, targets = examples.inputs[group], examples.targets[group]
        mean = batch.engine.clipped_sum(inputs, targets, whole) / GROUP
        total += mean * (clip_norm / mean.norm()).clamp(max=1.0)
    return ClippedSum(total)


def divide_by_realised_size(expected_batch_size: float) -> Form:
    """Return a sum that ends up divided by the size of the batch, not by the constant B."""

    def form(batch: LogicalBatch) -> ClippedSum:
        share = expected_batch_size / max(1, len(batch.indices))
        return ClippedSum(logical_sum(batch) * share)

    return form


def scale_by_private_statistics(batch: LogicalBatch) -> ClippedSum:
    """Take the preconditioner from the gradients of all private examples."""
    squares, examples = torch.zeros_like(batch.engine.flat.theta), batch.examples.dense()
    if len(examples):
        (theta, *_) = batch.clipping.points
        rows = batch.engine.per_example_gradients(examples.inputs, examples.targets, theta)
        squares = rows.square().mean(dim=0)
    private = replace(batch.clipping, scale=1 / (squares.sqrt() + GAMMA))
    return physical_batches(replace(batch, clipping=private))


def scale_after_clipping(batch: LogicalBatch) -> ClippedSum:
    """Clip the gradients themselves, and scale what is left."""
    scale = batch.clipping.scale
    assert scale is not None
    whole = replace(batch, clipping=replace(batch.clipping, scale=None))
    return ClippedSum(scale * logical_sum(whole))


def mask_by_position(batch: LogicalBatch) -> ClippedSum:
    """Draw dropout masks by the place in the batch, so that one example shifts those of others."""
    chosen = take(batch.examples.dense(), batch.indices.flip(0))
    places = torch.arange(len(batch.indices))
    return physical_batches(replace(batch, examples=chosen, indices=places))
