"""Recording: one forward pass that keeps, layer by layer, the factors of the gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast, overload

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clipnoise.gradients.factored.uses import Use

Rule = Callable[..., Any]
Layout = Sequence[int]


class UnsupportedError(Exception):
    """A network uses a trained parameter in a way that no rule covers; the message names it."""


class Tap:
    """Receives the gradient of a layer's output in the backward pass."""

    def __init__(self) -> None:
        self.gradient: Tensor | None = None

    def receive(self, gradients: Sequence[Tensor | None]) -> None:
        """Keep the gradient of an autograd node's first output."""
        self.gradient = gradients[0]


class _Source(torch.autograd.Function):
    """Captures an output's gradient even when its inputs do not require grad."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor, tap: Tap) -> Tensor:
        ctx.mark_dirty(output)
        ctx.tap = tap
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        ctx.tap.receive((gradient,))
        return None, None, None


class Recording(TorchFunctionMode):
    """Runs a network and records each use of a trained parameter by the rule of its function.

    Rules run layers on detached parameters, so that the backward pass computes no summed gradients
    of parameters and stops at the lowest trained layer.

    It stands in for the dropout of the pass as well: with that as a second mode around it, each
    access to a tensor in a rule would go through a handler. A rule that drops values by functions
    of PyTorch does so within `dropout`.

    Without a layout, the pass only notes how many leading rows each use has; see `layout_of`.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        rules: Mapping[Any, Rule],
        dropout: TorchFunctionMode,
        count: int,
        layout: Layout | None,
    ) -> None:
        """Prepare for one pass.

        Args:
            parameters: the trained parameters.
            rules: keyed by torch function; called with the recording and the function's arguments.
            dropout: handles all other functions.
            count: b, examples in the batch.
            layout: for each use, leading rows per example; 0 if they do not belong to examples.
        """
        super().__init__()
        self._parameters, self._rules, self.dropout = parameters, rules, dropout
        self._drop: Callable[..., Any] = dropout.__torch_function__
        self._index = {id(parameter): i for i, parameter in enumerate(parameters)}
        self.count, self.layout = count, layout
        self.leading: list[int] = []
        self._held: list[tuple[Tensor, int]] = []
        self._builds: list[tuple[int, Tap, Callable[[Tensor], Use]]] = []
        self._anchor = parameters[0].new_zeros((), requires_grad=True)

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if not self._touches(args) and not (kwargs and self._touches(kwargs.values())):
            return self._drop(func, types, args, kwargs)
        rule = self._rules.get(func)
        if rule is not None:
            return rule(self, *args, **(kwargs or {}))
        result = self._drop(func, types, args, kwargs)
        results = result if isinstance(result, tuple) else (result,)
        if any(isinstance(value, torch.Tensor) and value.requires_grad for value in results):
            raise UnsupportedError(f"a trained parameter in {getattr(func, '__name__', func)}")
        return result

    def _touches(self, values: Iterable[object]) -> bool:
        for value in values:
            if id(value) in self._index:
                return True
            if isinstance(value, tuple | list) and any(id(v) in self._index for v in value):
                return True
        return False

    def trains(self, parameter: Tensor | None) -> bool:
        """Return whether a tensor is a trained parameter."""
        return id(parameter) in self._index

    @overload
    def plain(self, parameter: Tensor) -> Tensor: ...
    @overload
    def plain(self, parameter: Tensor | None) -> Tensor | None: ...
    def plain(self, parameter: Tensor | None) -> Tensor | None:
        """Return a parameter as a constant.

        Raises:
            UnsupportedError: the weight is computed from a trained parameter.
        """
        if parameter is None or not parameter.requires_grad:
            return parameter
        if not self.trains(parameter):
            raise UnsupportedError("a weight that is computed from a trained parameter")
        return parameter.detach()

    def of_batch(self, tensor: Tensor) -> bool:
        """Return whether the leading rows of a use belong to the examples, in order.

        Raises:
            UnsupportedError: they do not divide among the examples as the layout says.
        """
        leading = tensor.shape[0] if tensor.ndim else 0
        self.leading.append(leading)
        if self.layout is None:
            return True
        if len(self.leading) > len(self.layout):
            raise UnsupportedError("layers that run or not depending on the batch")
        rows = self.layout[len(self.leading) - 1]
        if rows and leading != rows * self.count:
            raise UnsupportedError("rows that do not divide among the examples of a batch")
        return rows > 0

    def examples_of(self, tensor: Tensor, rows: int | None = None) -> None:
        """Require that the leading rows of a layer's input belong to the examples, in order.

        Args:
            tensor: the input.
            rows: how many rows each example must have; None for any number.
        """
        if not self.of_batch(tensor):
            raise UnsupportedError("a layer whose input has no leading axis of examples")
        if rows is not None and self.layout and len(tensor) != rows * self.count:
            raise UnsupportedError("a layer whose leading axis is not that of the examples")

    def tap(self, output: Tensor) -> tuple[Tensor, Tap]:
        """Capture the gradient of a layer's output; the returned output replaces the given one."""
        tap = Tap()
        if self.layout is None:
            return output, tap
        if output.grad_fn is None:
            return cast("Tensor", _Source.apply(output, self._anchor, tap)), tap
        output.grad_fn.register_prehook(tap.receive)
        return output, tap

    def hold(self, tensor: Tensor) -> Tensor:
        """Keep a layer's input, in the dtype of the parameters, until the backward pass."""
        tensor = tensor.detach()
        self._held.append((tensor, tensor._version))
        return tensor.to(self._anchor.dtype) if tensor.is_floating_point() else tensor

    def use(self, parameter: Tensor | None, tap: Tap, build: Callable[[Tensor], Use]) -> None:
        """Note a use of a parameter, if it is trained.

        Args:
            parameter: the parameter that the layer used.
            tap: receives the gradient of the layer's output.
            build: makes the factors of the parameter's gradient from that gradient.
        """
        if self.layout is not None and self.trains(parameter):
            self._builds.append((self._index[id(parameter)], tap, build))

    def uses(self, losses: Tensor, weight: float) -> list[list[Use]]:
        """Run the backward pass and collect, for each trained parameter, its uses.

        Args:
            losses: shape (b,), computed in this recording's forward pass.
            weight: a factor for every gradient.

        Raises:
            UnsupportedError: a layer's input was changed in place after the layer had read it.
        """
        if losses.requires_grad:
            total = losses.sum() if weight == 1 else weight * losses.sum()
            torch.autograd.grad(total, self._anchor, allow_unused=True)
        if any(tensor._version != version for tensor, version in self._held):
            raise UnsupportedError("a layer's input that is changed in place afterwards")
        uses: list[list[Use]] = [[] for _ in self._parameters]
        for index, tap, build in self._builds:
            if tap.gradient is not None:
                uses[index].append(build(tap.gradient.to(self._anchor.dtype)))
        self._builds.clear()
        return uses


def layout_of(two: Sequence[int], three: Sequence[int]) -> Layout:
    """Find how the rows of each use divide among examples, from batches of two and three.

    Args:
        two: leading rows of each use in a batch of two.
        three: the same in a batch of three.

    Returns:
        For each use, leading rows per example; 0 if they do not grow with the batch.

    Raises:
        UnsupportedError: which layers run depends on the batch, or rows do not grow in proportion.
    """
    if len(two) != len(three):
        raise UnsupportedError("layers that run or not depending on the batch")
    for few, many in zip(two, three, strict=True):
        if few != many and (few % 2 or 3 * few != 2 * many):
            raise UnsupportedError("rows that do not divide among the examples of a batch")
    return [0 if few == many else few // 2 for few, many in zip(two, three, strict=True)]
