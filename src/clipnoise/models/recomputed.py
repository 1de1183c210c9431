"""Blocks of a network whose values are computed again in the backward pass, and not kept for it.

Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost (gradient checkpointing).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from clipnoise.errors import UserError
from clipnoise.lazy import nn


def recompute(block: nn.Module) -> None:
    """Let the factored engine run a block again in the backward pass, which saves memory.

    Everywhere else the block computes what it did before. Whatever differs from one forward pass to
    the next must be among the arguments of its `forward`.

    Args:
        block: a part of a network; its `forward` is wrapped in place.
    """
    block.forward = partial(_recomputed, block.forward)


def recompute_blocks(network: nn.Module) -> None:
    """Do so with each block of a network of transformers.

    Raises:
        UserError: it has no block of which transformers says that it can be computed again.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    blocks = [part for part in network.modules() if isinstance(part, GradientCheckpointingLayer)]
    if not blocks:
        raise UserError(
            f"model.recompute: {type(network).__name__} has no blocks that transformers can "
            "compute again; leave it out."
        )
    for block in blocks:
        recompute(block)


def _recomputed(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    done = handled(function, arguments, options)
    return function(*arguments, **options) if done is None else done[0]


def handled(
    function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]
) -> tuple[Any] | None:
    """Return what a recording that is under way makes of a call, or None where there is none.

    A recording takes this for a function of PyTorch, for which it has a rule.
    """
    from torch.overrides import handle_torch_function, has_torch_function

    if not has_torch_function((function,)):  # without any argument it is always false
        return None
    done: tuple[Any] | None = handle_torch_function(handled, (), function, arguments, options)
    return done
