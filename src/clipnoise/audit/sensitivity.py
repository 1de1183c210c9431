"""Sensitivity checks: how far one example really moves a query, against what the query declares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from clipnoise.core.clip_rules import HARD
from clipnoise.core.taken import GRADIENTS
from clipnoise.gradients.clipping import clipped_sum

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.core.clipping import Clipping
    from clipnoise.core.query import Adjacency, Component, Query

EXCESS = 1e4  # length of an adversary's gradient, relative to its clipped length


class Changes(NamedTuple):
    """The changes that one example caused, relative to what the query declares.

    Attributes:
        components: ‖change‖₂ / sensitivity of each component; at most 1 when the declaration holds.
        joint: √Σ (change / (sensitivity · noise_factor))² over all components: the change in
            units of the noise of one Gaussian mechanism. Accountants assume at most 1.
    """

    components: Sequence[float]
    joint: float


def largest_changes(
    query: Query,
    clipping: Clipping,
    gradients: Tensor,
    *,
    expected_batch_size: float,
    sensitivity_factor: float = 1.0,
    layers: Sequence[int] | None = None,
) -> Changes:
    """Measure how far one example moves the noise-free values of a query.

    The batch goes through the same clipping and the same query as in training, with and without
    each example, and with adversarial examples: far beyond the clip norm, along and against the
    batch's mean, its largest coordinate and a random direction.

    Args:
        query: the query to hold to its declaration.
        clipping: the method's real clipping for the step, with the groups of its micro-batches.
        gradients: per-example gradients at each point, shape (k, B, d), with
            k = len(clipping.weights). B may be 0 under add-remove adjacency.
        expected_batch_size: the constant denominator: B = q·n, or B/m for micro-batches.
        sensitivity_factor: what the noise is also scaled by, see `privatize`.
        layers: how many successive coordinates each layer has, for a clip rule per layer.

    Returns:
        The largest over all neighbouring batches under the query's adjacency.

    Raises:
        ValueError: the clipping does not clip, so nothing bounds the change.
    """
    if clipping.clip_norm is None:
        raise ValueError("a query without clipping has no sensitivity to check")
    components = query.components(clipping.clip_norm, expected_batch_size)

    def values(batch: Tensor, groups: Tensor | None) -> tuple[Tensor, ...]:
        total = clipped_sum(list(batch), replace(clipping, groups=groups), layers)
        assert clipping.clip_norm is not None
        return query.values(total / expected_batch_size, clipping.clip_norm)

    here = values(gradients, clipping.groups)
    changes = [
        change_between(here, values(*batch), components, sensitivity_factor)
        for batch in _neighbours(query.adjacency, clipping, gradients)
    ]
    columns = zip(*(change.components for change in changes), strict=True)
    return Changes([max(column) for column in columns], max(change.joint for change in changes))


def change_between(
    here: Sequence[Tensor],
    there: Sequence[Tensor],
    components: Sequence[Component],
    sensitivity_factor: float,
) -> Changes:
    """Return how far two releases without noise are apart, relative to what a query declares.

    A change that is not a number is an infinite one, and so is any change where what is declared is
    no positive and finite number.
    """
    moved, noisy = [], []
    for a, b, component in zip(here, there, components, strict=True):
        changed = float((a - b).double().norm())
        moved.append(_over(changed, sensitivity_factor * component.sensitivity))
        noisy.append(_over(moved[-1], component.noise_factor))
    return Changes(moved, math.hypot(*noisy))


def _over(changed: float, declared: float) -> float:
    """Return a change relative to what is declared."""
    if changed == 0:
        return 0.0
    sound = math.isfinite(changed) and 0 < declared < math.inf
    return changed / declared if sound else math.inf


def _neighbours(
    adjacency: Adjacency, clipping: Clipping, gradients: Tensor
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the batches that differ in one example: without each one, and with each adversary.

    The others keep their micro-batches. An adversary joins the first one, or that of the example
    which it replaces.
    """
    groups = clipping.groups
    first = None if groups is None else torch.cat([groups, groups.new_zeros(1)])[:1]
    for i in range(gradients.shape[1]):
        before, after = gradients[:, :i], gradients[:, i + 1 :]
        if adjacency == "replace":
            for example in adversaries(clipping, gradients):
                yield torch.cat([before, example, after], dim=1), groups
        else:
            rest = None if groups is None else torch.cat([groups[:i], groups[i + 1 :]])
            yield torch.cat([before, after], dim=1), rest
    if adjacency != "replace":
        more = None if groups is None or first is None else torch.cat([first, groups])
        for example in adversaries(clipping, gradients):
            yield torch.cat([example, gradients], dim=1), more


def adversaries(clipping: Clipping, gradients: Tensor) -> Iterator[Tensor]:
    """Yield examples whose clipped vectors change the sum of a batch the most.

    Those of the batch have gradients of shape (k, B, d). Each that is yielded has one of shape
    (k, 1, d), far beyond the clip norm.
    """
    mean = clipped_sum(list(gradients), replace(clipping, rule=HARD, of=GRADIENTS))
    coordinate = torch.zeros_like(mean)
    coordinate[mean.abs().argmax()] = 1
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(mean.shape, generator=generator, dtype=mean.dtype).to(mean.device)
    scale = torch.ones_like(mean) if clipping.scale is None else clipping.scale
    offset = torch.zeros_like(mean) if clipping.offset is None else clipping.offset * scale
    assert clipping.clip_norm is not None
    size = (
        EXCESS
        * (clipping.clip_norm + float(offset.norm()))
        * clipping.group_size
        / sum(map(abs, clipping.weights))
    )
    for direction in (mean, coordinate, random):
        length = float(direction.norm())
        for sign in (1.0, -1.0) if length > 0 else ():
            vector = (sign * size / length * direction / scale).where(scale != 0, 0.0)
            signs = vector.new_tensor(clipping.weights).sign()
            yield signs.view(-1, 1, 1) * vector
