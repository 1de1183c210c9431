"""Made-up examples for trying a network: what they show depends on no private value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def normal(like: Tensor) -> Tensor:
    """Return the same standard normal numbers at each call, in a tensor's shape, dtype, device."""
    draws = torch.Generator().manual_seed(0)
    return torch.randn(like.shape, generator=draws).to(like)


def made_up(inputs: Tensor, count: int) -> Tensor:
    """Make up different examples in the shape, dtype and device of others.

    Args:
        inputs: shape (n, …); no value of it is used.
        count: how many to make.

    Returns:
        Shape (count, …): normal numbers, or for integers 0 and 1 in turn, which every vocabulary
        has.
    """
    empty = inputs.new_empty(count, *inputs.shape[1:])
    if inputs.is_floating_point():
        return normal(empty)
    parity = torch.arange(count, device=inputs.device).to(inputs.dtype) % 2
    return empty.copy_(parity.view(-1, *[1] * (inputs.ndim - 1)).expand_as(empty))
