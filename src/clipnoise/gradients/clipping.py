"""The clipped sum of given per-example gradients: what engines must match."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from clipnoise.core.taken import AtMinimum
from clipnoise.kinds import as_sealed

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.core.clipping import Clipping

BLOCK = 1024


def row_norms(rows: Tensor) -> Tensor:
    """Return the L2 norm of each row, accurate for long rows in float32.

    Adding up a long float32 row in one pass underestimates its norm (by 4e-4 at 11 M elements), so
    clipped vectors would exceed C. Taking the norm of block norms keeps the error below 2e-7.

    Args:
        rows: shape (b, d), any float dtype.

    Returns:
        Norms of shape (b,), dtype of the rows.
    """
    norms: Tensor = torch.linalg.vector_norm(block_norms(rows), dim=1)
    return norms


def block_norms(rows: Tensor) -> Tensor:
    """Return the norms of successive blocks of each row and, last, of what is left of it.

    Args:
        rows: shape (b, d), any float dtype.

    Returns:
        Shape (b, d // BLOCK + 1); the rows themselves if they are shorter than a block.
    """
    count, length = rows.shape
    pieces = length // BLOCK
    if not pieces:
        return rows
    whole = pieces * BLOCK
    rest = torch.linalg.vector_norm(rows[:, whole:], dim=1, keepdim=True)
    blocks = torch.linalg.vector_norm(rows[:, :whole].reshape(count, pieces, BLOCK), dim=2)
    return torch.cat([blocks, rest], dim=1)


def is_finite(vector: Tensor) -> bool:
    """Return whether every entry is finite: one pass, unless the sum itself is too large."""
    return math.isfinite(vector.sum().item()) or bool(torch.isfinite(vector).all())


def clip_factors(norms: Tensor, clipping: Clipping) -> Tensor:
    """Return what each vector is multiplied by, so that its norm is at most C.

    Args:
        norms: of each layer's part of each vector, shape (L, b); L = 1 for whole vectors.
        clipping: the rule and C. A vector with a part whose norm is infinite counts as zero.

    Returns:
        Factors of shape (L, b); nan for a norm that is nan.
    """
    bound = clipping.bound / math.sqrt(len(norms))
    at_most = norms if clipping.scale is None else norms + _unseen(clipping.scale)
    factors: Tensor = as_sealed(clipping.rule, "factors")(at_most, bound)
    if len(norms) > 1:
        factors = factors.masked_fill(norms.isinf().any(dim=0), 0.0)
    return factors


def _unseen(scale: Tensor) -> Tensor:
    """Return how much of a scaled vector's norm can be missing, because the squares are 0.

    The entries of a gradient that are lost are below the root of the smallest normal number. There
    are fewer than 10^10, so they have less than 10^5 times its length, before they are scaled.
    """
    low, high = torch.aminmax(scale)
    return torch.maximum(high, -low) * (1e5 * math.sqrt(torch.finfo(scale.dtype).tiny))


def form_vectors(gradients: Sequence[Tensor], clipping: Clipping) -> Tensor:
    """Form v_i = s ⊙ (Σ_j w_j g_i(p_j) + o), averaged over groups if there are any.

    Args:
        gradients: one (b, d) tensor per weight.
        clipping: weights, scale, offset and groups.

    Returns:
        Shape (number of groups, d). A group's sum is divided by the constant group_size, not by
        the number of its examples.

    Raises:
        ValueError: a group size without groups. Groups must not follow from positions in the batch:
            removing one example would then move all later ones into other groups.
    """
    vectors = sum(w * g for w, g in zip(clipping.weights, gradients, strict=True))
    assert isinstance(vectors, torch.Tensor)
    if clipping.offset is not None:
        vectors = vectors + clipping.offset
    if clipping.scale is not None:
        vectors = vectors * clipping.scale
    if clipping.groups is not None:
        distinct, rows = torch.unique_consecutive(clipping.groups, return_inverse=True)
        sums = vectors.new_zeros(len(distinct), vectors.shape[1]).index_add_(
            0, rows.to(vectors.device), vectors
        )
        vectors = sums / clipping.group_size
    elif clipping.group_size > 1:
        raise ValueError("micro-batches need the group of each example")
    return vectors


def clip_and_add(
    vectors: Tensor, clipping: Clipping, layers: Sequence[int] | None = None
) -> Tensor:
    """Return Σ clip(v_i) of finite vectors.

    Args:
        vectors: shape (b, d).
        clipping: the rule and C; without C the vectors are added as they are.
        layers: how many successive coordinates each layer has, for a rule per layer.

    Returns:
        Shape (d,); with the K extra coordinates (d + K,).

    Raises:
        ValueError: the rule is per layer, and no layers are given.
    """
    if clipping.clip_norm is None:
        return vectors.sum(dim=0)
    whole = clipping.rule.per == "example" or clipping.of.losses  # a number has no layers
    if layers is None and not whole:
        raise ValueError("clipping per layer needs to know the layers")
    columns = (vectors,) if whole else torch.split(vectors, list(layers or ()), dim=1)
    norms = torch.stack([row_norms(part) for part in columns])
    factors = clip_factors(norms, clipping)
    if isinstance(clipping.of, AtMinimum) and clipping.weighed_at is not None:
        places = torch.split(clipping.weighed_at, [part.shape[1] for part in columns])
        each = zip(factors, columns, places, strict=True)
        factors = factors * clipping.of.slopes(sum(by * (part @ at) for by, part, at in each))
    pieces = [by @ part for by, part in zip(factors, columns, strict=True)]
    return with_extra(pieces, norms, factors, clipping)


def with_extra(
    total: Sequence[Tensor], norms: Tensor, factors: Tensor, clipping: Clipping
) -> Tensor:
    """Join the pieces of a sum, and the extra coordinates that follow from the norms, if any.

    Args:
        total: Σ clip(v_i), in pieces.
        norms: of each layer's part of each vector, shape (L, b). A vector with a norm that is not
            finite adds nothing to the extra coordinates.
        factors: what each part is multiplied by, shape (L, b).
        clipping: C, and what is taken.

    Returns:
        Shape (d,), or (d + K,) with the extra coordinates.
    """
    if clipping.of.extra:
        lengths, clipped = _whole(norms), _whole(factors * norms)
        extra = clipping.of.coordinates(lengths, clipped, clipping.bound)
        extra = extra.masked_fill(~lengths.isfinite().unsqueeze(1), 0.0)
        total = [*total, extra.sum(dim=0).to(total[0].dtype)]
    return total[0] if len(total) == 1 else torch.cat(list(total))


def _whole(norms: Tensor) -> Tensor:
    """Return the norms of whole vectors, shape (b,), from those of their parts, shape (L, b)."""
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(norms, dim=0)


def clipped_sum(
    gradients: Sequence[Tensor], clipping: Clipping, layers: Sequence[int] | None = None
) -> Tensor:
    """Return Σ clip(v_i) over a physical batch.

    A vector that is not finite, or whose norm is not, counts as zero, whoever else is in the batch.

    Args:
        gradients: one (b, d) tensor of per-example gradients per weight.
        clipping: how the vectors are formed and bounded.
        layers: as in `clip_and_add`.

    Returns:
        Shape (d,). Depends on private data: `ClippedSum` carries it to the privacy boundary.
    """
    vectors = form_vectors(gradients, clipping)
    total = clip_and_add(vectors, clipping, layers)
    if clipping.clip_norm is None or is_finite(total):
        return total
    # Rows are left out, because a factor of zero times infinity would be nan.
    return clip_and_add(vectors[row_norms(vectors).isfinite()], clipping, layers)
