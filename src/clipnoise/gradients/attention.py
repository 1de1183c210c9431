"""Multi-head attention as `nn.MultiheadAttention` calls it, with the examples first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import dropout, pad, scaled_dot_product_attention

from clipnoise.gradients.apart import UnsupportedError


def write_out_attention(
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    parameter: Callable[[Tensor], Tensor],
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
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    average_attn_weights: bool = True,
    **other: object,
) -> tuple[Tensor, Tensor | None]:
    """Run `multi_head_attention_forward` with the examples on the first axis of every layer.

    PyTorch's own version has them on the second axis, so the leading rows of its linear layers
    would not belong to the examples in order.

    Args:
        linear: runs a linear layer on rows, weight and bias.
        parameter: returns a value as other functions are to use it; it may be a parameter.
        query, key, value: shape (T, b, width).

    Returns:
        The output, shape (T, b, width), and the attention weights if needed, shape (b, T, T′) or
        (b, heads, T, T′).
    """
    if query.ndim != 3:
        raise UnsupportedError("attention without an axis for the batch")
    separate = (q_proj_weight, k_proj_weight, v_proj_weight)
    weights_of_each = separate if use_separate_proj_weight else (in_proj_weight,)
    inputs = [parameter(rows) for rows in (query, key, value)]
    q, k, v = _projected(linear, parameter, inputs, weights_of_each, in_proj_bias)
    length = k.shape[1]
    if bias_k is not None and bias_v is not None:
        own = (parameter(row).expand(len(k), -1, -1) for row in (bias_k, bias_v))
        k, v = (torch.cat(both, dim=1) for both in zip((k, v), own, strict=True))
    if add_zero_attn:
        k, v = (pad(rows, (0, 0, 0, 1)) for rows in (k, v))
    q, k, v = (x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2) for x in (q, k, v))
    pairs = None if attn_mask is None else parameter(attn_mask)
    mask = _mask(q, length, key_padding_mask, pairs)
    if mask is not None:  # every query sees the rows that were added
        mask = pad(mask, (0, k.shape[2] - length))
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


def _projected(
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    parameter: Callable[[Tensor], Tensor],
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor | None],
    bias: Tensor | None,
) -> Iterable[Tensor]:
    """Return the queries, keys and values, each (b, T, width).

    Args:
        linear, parameter: as in `write_out_attention`.
        inputs: query, key and value, shape (T, b, width of each).
        weights: one for each, or a single one for all, which is three times as high.
        bias: of all three.
    """
    if len(weights) == 1:
        weight = weights[0]
        assert weight is not None
        distinct = {id(rows): rows.transpose(0, 1) for rows in inputs}
        projected = {place: linear(rows, weight, bias) for place, rows in distinct.items()}
        return (projected[id(rows)].chunk(3, dim=2)[i] for i, rows in enumerate(inputs))
    pairs = zip(inputs, weights, strict=True)
    rows = [linear(each.transpose(0, 1), w, None) for each, w in pairs if w is not None]
    if bias is None:
        return rows
    return (row + part for row, part in zip(rows, parameter(bias).chunk(3), strict=True))


def _mask(q: Tensor, keys: int, padding: Tensor | None, pairs: Tensor | None) -> Tensor | None:
    """Add the masks of keys (b, T′) and of pairs (T, T′) or (b · heads, T, T′)."""
    count, heads, length = q.shape[:3]
    masks = []
    if padding is not None:
        masks.append(padding.view(count, 1, 1, -1))
    if pairs is not None:
        shape = (1, 1) if pairs.ndim == 2 else (count, heads)
        masks.append(pairs.view(*shape, length, keys))
    added = [
        q.new_zeros(mask.shape).masked_fill(mask, float("-inf"))
        if mask.dtype == torch.bool
        else mask
        for mask in masks
    ]
    return added[0] + added[1] if len(added) == 2 else next(iter(added), None)
