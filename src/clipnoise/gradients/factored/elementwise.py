"""Parameters used elementwise or expanded: class tokens, position embeddings, gains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clipnoise.gradients.factored.recording import Recording, Rule, UnsupportedError
from clipnoise.gradients.factored.uses import ExplicitGradients

ELEMENTWISE = ("add", "sub", "mul", "div", "rsub", "true_divide", "multiply", "subtract")


def rules() -> dict[Any, Rule]:
    """Return the rules of elementwise functions and of `expand`, by torch function."""
    functions: list[Any] = []
    for name in ELEMENTWISE:
        functions += [getattr(torch, name, None), getattr(torch.Tensor, name, None)]
        functions += [getattr(torch.Tensor, f"__{side}{name}__", None) for side in ("", "r", "i")]
    functions += [torch.Tensor.__truediv__, torch.Tensor.__rtruediv__, torch.Tensor.__itruediv__]
    known = {function: _elementwise(function) for function in functions if function is not None}
    return {**known, torch.Tensor.expand: record_expand}


def _elementwise(function: Callable[..., Any]) -> Rule:
    def rule(recording: Recording, *args: Any, **kwargs: Any) -> Any:
        return record_elementwise(recording, function, args, kwargs)

    return rule


def record_elementwise(
    recording: Recording, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
) -> Any:
    """Run an elementwise function with one copy of the parameter for each example.

    The gradients of the copies are the per-example gradients.
    """
    tensors = torch.broadcast_tensors(  # type: ignore[no-untyped-call]
        *(a for a in args if isinstance(a, torch.Tensor))
    )
    recording.examples_of(tensors[0], rows=1)
    return function(*(_copies(recording, arg, tensors[0].ndim) for arg in args), **kwargs)


def _copies(recording: Recording, value: Any, ndim: int) -> Any:
    """Return one copy of a trained parameter per example, aligned with the result's axes."""
    if not isinstance(value, torch.Tensor) or not recording.trains(value):
        return value
    if value.ndim == ndim and value.shape[0] != 1:
        raise UnsupportedError("a parameter with an axis for the examples of a batch")
    aligned = value.reshape(*[1] * (ndim - value.ndim), *value.shape)
    copies = aligned.expand(recording.count, *aligned.shape[1:]).clone()
    tap = recording.tap(copies)
    recording.use(value, tap, lambda grad: ExplicitGradients(grad.reshape(-1, *value.shape)))
    return copies


def record_expand(recording: Recording, parameter: Tensor, *sizes: Any) -> Tensor:
    """Give each example a copy of a parameter whose first axis has size one, as a class token."""
    output = parameter.expand(*sizes)
    recording.examples_of(output, rows=1)
    if output.ndim > parameter.ndim or parameter.shape[0] != 1:
        raise UnsupportedError("a parameter with an axis for the examples of a batch")
    output = output.clone()
    tap = recording.tap(output)
    shape = parameter.shape
    recording.use(
        parameter,
        tap,
        lambda grad: ExplicitGradients(
            grad.sum_to_size(len(grad), *shape[1:]).unsqueeze(1).reshape(-1, *shape)
        ),
    )
    return output
