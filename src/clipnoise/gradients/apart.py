"""What keeps the examples of a batch apart: known layers, or vmap, which hides their axis.

A network that consists of known layers, one after another, computes each row of its output from the
same row of its input. Nothing is tried out for that: it follows from what the layers are. Every
other network runs under vmap, where a tensor looks like that of one example, and what is known to
treat the rows of a whole batch alike takes over there by `on_whole_batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.utils._pytree import tree_map_only

from clipnoise.data.signature import TASKS, WeightedClassification

ELEMENTWISE = (
    nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Identity,
    nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid,
    nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Threshold,
)  # fmt: skip
# Dropout has masks of its own for each example: see `clipnoise.gradients.dropout`.
BY_ROWS = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm,
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    nn.AvgPool1d, nn.AvgPool2d, nn.MaxPool1d, nn.MaxPool2d, nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
)  # fmt: skip
LAYERS: dict[type[nn.Module], Callable[[Any], bool]] = {
    **dict.fromkeys((*ELEMENTWISE, *BY_ROWS), lambda layer: True),
    nn.Sequential: lambda layers: all(map(keeps_apart, layers)),
    nn.Embedding: lambda layer: layer.max_norm is None and not layer.scale_grad_by_freq,
    nn.Flatten: lambda layer: layer.start_dim > 0,
    nn.Unflatten: lambda layer: isinstance(layer.dim, int) and layer.dim > 0,
    nn.Softmax: lambda layer: (layer.dim or 0) > 0,
    nn.LogSoftmax: lambda layer: (layer.dim or 0) > 0,
}
LOSSES = (
    nn.BCELoss, nn.BCEWithLogitsLoss, nn.CrossEntropyLoss, nn.GaussianNLLLoss, nn.HuberLoss,
    nn.L1Loss, nn.MSELoss, nn.NLLLoss, nn.PoissonNLLLoss, nn.SmoothL1Loss,
)  # fmt: skip
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def keeps_apart(network: nn.Module) -> bool:
    """Return whether a network computes each row of its output from the same row of its input.

    The layers count by their exact types: a subclass may do anything, and so may a hook. A network
    that says so of its own forward pass must consist of such layers.
    """
    everywhere = modules._has_any_global_hook()  # type: ignore[no-untyped-call]
    if "forward" in vars(network) or everywhere or any(getattr(network, h) for h in HOOKS):
        return False
    if vars(type(network)).get("by_rows", False):
        return all(map(keeps_apart, network.children()))
    known = LAYERS.get(type(network))
    return known is not None and known(network)


def adds_up(losses: Callable[..., Any]) -> bool:
    """Return whether a loss is known to be that of each example by itself.

    It is one of the suite's tasks, or a loss of PyTorch that leaves the examples as they are.
    """
    if isinstance(losses, nn.Module):
        return type(losses) in LOSSES and losses.reduction == "none"
    owner, function = (getattr(losses, name, None) for name in ("__self__", "__func__"))
    if type(owner) is WeightedClassification:
        return function is WeightedClassification.losses
    return any(losses == task.losses for task in TASKS.values())


class UnsupportedError(Exception):
    """A network uses a trained parameter in a way that no rule covers; the message names it."""


Run = Callable[[int, Sequence[Tensor]], Any]


def on_whole_batch(hidden: Tensor | None, run: Run, inputs: Sequence[Tensor] = ()) -> Any:
    """From within vmap, call a function on the tensors of the whole batch.

    The function must compute each row of what it returns from the same row of its inputs.

    Args:
        hidden: any tensor with the hidden axis of the examples.
        run: takes the rows of each example, T, and the inputs, shape (b·T, …). What it returns has
            as many rows as the inputs.
        inputs: as the network sees them, shape (T, …); vectors count as one row.
    """

    def joined(size: int, inputs: Sequence[Tensor]) -> Any:
        flat = [tensor.flatten(0, 1) if tensor.ndim > 2 else tensor for tensor in inputs]
        if not inputs or inputs[0].ndim < 3:
            return run(1, flat)
        rows = inputs[0].shape[1]
        return tree_map_only(Tensor, lambda out: out.unflatten(0, (size, rows)), run(rows, flat))

    return on_examples(hidden, joined, inputs)


def on_examples(hidden: Tensor | None, run: Run, inputs: Sequence[Tensor] = ()) -> Any:
    """From within vmap, call a function on tensors whose first axis is that of the examples.

    Args:
        hidden: any tensor with the hidden axis of the examples.
        run: takes the number of examples, b, and the inputs, shape (b, …). What it returns has the
            same first axis.
        inputs: as the network sees them, without the axis.
    """
    return _OnExamples.apply(run, hidden, *inputs)


class _OnExamples(torch.autograd.Function):
    """PyTorch's way to let a function of one's own take over under vmap.

    What runs there is differentiated as usual, by the operations that it consists of.
    """

    @staticmethod
    def forward(*_: Any) -> Any:
        raise NotImplementedError("one argument always has the hidden axis, so vmap takes over")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        run: Run,
        hidden: Tensor,
        *tensors: Tensor,
    ) -> tuple[Any, int]:
        """Take the hidden axis to the front, call the function, and say where the axis is."""
        size = info.batch_size
        inputs = [
            tensor.expand(size, *tensor.shape) if place is None else tensor.movedim(place, 0)
            for tensor, place in zip(tensors, in_dims[2:], strict=True)
        ]
        return run(size, inputs), 0
