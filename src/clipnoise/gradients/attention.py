"""Multi-head attention as `nn.MultiheadAttention` calls it, with the examples first."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention

from clipnoise.gradients.apart import UnsupportedError


def write_out_attention(
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    average_attn_weights: bool = True,
    **other: object,
) -> tuple[Tensor, Tensor | None]:
    """Run `multi_head_attention_forward` with the examples on the first axis of every layer.

    PyTorch's own version has them on the second axis, so the leading rows of its linear layers
    would not belong to the examples in order.

    Args:
        linear: runs a linear layer on rows, weight and bias.
        query, key, value: shape (T, b, width).

    Returns:
        The output, shape (T, b, width), and the attention weights if needed, shape (b, T, T′) or
        (b, heads, T, T′).
    """
    if use_separate_proj_weight or add_zero_attn or bias_k is not None or query.ndim != 3:
        raise UnsupportedError("attention with separate key weights or added key rows")
    assert in_proj_weight is not None
    projected: dict[int, Tensor] = {}
    for rows in (query, key, value):
        if id(rows) not in projected:
            first = rows.transpose(0, 1)
            projected[id(rows)] = linear(first, in_proj_weight, in_proj_bias)
    thirds = [projected[id(rows)].chunk(3, dim=2) for rows in (query, key, value)]
    q, k, v = (
        third[i].reshape(*third[i].shape[:2], num_heads, -1).transpose(1, 2)
        for i, third in enumerate(thirds)
    )
    mask = _mask(q, k, key_padding_mask, attn_mask)
    rate = dropout_p if training else 0.0
    weights = None
    if need_weights:
        scores = q @ k.mT / q.shape[3] ** 0.5
        weights = dropout((scores if mask is None else scores + mask).softmax(dim=3), rate)
        mixed = weights @ v
        weights = weights.mean(dim=1) if average_attn_weights else weights
    else:
        mixed = scaled_dot_product_attention(q, k, v, mask, rate)
    joined = mixed.transpose(1, 2).flatten(2)
    output = linear(joined, out_proj_weight, out_proj_bias)
    return output.transpose(0, 1), weights


def _mask(q: Tensor, k: Tensor, padding: Tensor | None, pairs: Tensor | None) -> Tensor | None:
    """Add the masks of keys (b, T′) and of pairs (T, T′) or (b · heads, T, T′)."""
    count, heads, length = q.shape[:3]
    masks = []
    if padding is not None:
        masks.append(padding.view(count, 1, 1, -1))
    if pairs is not None:
        shape = (1, 1) if pairs.ndim == 2 else (count, heads)
        masks.append(pairs.view(*shape, length, k.shape[2]))
    added = [
        q.new_zeros(mask.shape).masked_fill(mask, float("-inf"))
        if mask.dtype == torch.bool
        else mask
        for mask in masks
    ]
    return added[0] + added[1] if len(added) == 2 else next(iter(added), None)
