"""Recording: one forward pass that keeps, layer by layer, the factors of the gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from clipnoise.gradients.factored.uses import Use

Rule = Callable[..., Any]
Layout = Sequence[int]


class UnsupportedError(Exception):
    """A network uses a trained parameter in a way that no rule covers; the message names it."""


class Recording(TorchFunctionMode):
    """Runs a network and records each use of a trained parameter by the rule of its function.

    The backward pass goes from the losses to the outputs of the layers: it computes no summed
    gradients of parameters, and stops at the lowest trained layer. Above it, rules run layers on
    detached parameters.

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
        self._dtype = parameters[0].dtype
        self.leading: list[int] = []
        self._held: list[tuple[Tensor, int]] = []
        self._builds: list[tuple[int, int, Callable[[Tensor], Use]]] = []
        self._taps: list[GradientEdge] = []

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
    def plain(self, parameter: Tensor, above: Tensor | None = None) -> Tensor: ...
    @overload
    def plain(self, parameter: Tensor | None, above: Tensor | None = None) -> Tensor | None: ...
    def plain(self, parameter: Tensor | None, above: Tensor | None = None) -> Tensor | None:
        """Return a parameter as a constant; in a layer with nothing trained below it, as it is.

        Args:
            parameter: what a layer is run on.
            above: the layer's input. Where it needs no gradient, the parameter is what makes the
                output part of the graph, so that its gradient can be asked for.

        Raises:
            UnsupportedError: the weight is computed from a trained parameter.
        """
        if parameter is None or not parameter.requires_grad:
            return parameter
        if not self.trains(parameter):
            raise UnsupportedError("a weight that is computed from a trained parameter")
        lowest = above is not None and not above.requires_grad
        return parameter if lowest else parameter.detach()

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

    def tap(self, output: Tensor) -> int | None:
        """Ask for the gradient of a layer's output as it now is, whatever follows in place.

        Args:
            output: needs a gradient, because of the layer's input or of its parameters.

        Returns:
            The number of the tap; None where nothing is recorded.
        """
        if self.layout is None or not output.requires_grad:
            return None
        self._taps.append(get_gradient_edge(output))
        return len(self._taps) - 1

    def hold(self, tensor: Tensor) -> Tensor:
        """Keep a layer's input, in the dtype of the parameters, until the backward pass."""
        self._held.append((tensor, tensor._version))
        if tensor.requires_grad:
            tensor = tensor.detach()
        other = tensor.dtype != self._dtype and tensor.is_floating_point()
        return tensor.to(self._dtype) if other else tensor

    def use(
        self, parameter: Tensor | None, tap: int | None, build: Callable[[Tensor], Use]
    ) -> None:
        """Note a use of a parameter, if it is trained.

        Args:
            parameter: the parameter that the layer used.
            tap: of the layer's output.
            build: makes the factors of the parameter's gradient from that gradient.
        """
        if tap is not None and self.trains(parameter):
            self._builds.append((self._index[id(parameter)], tap, build))

    def uses(self, losses: Tensor, weight: float) -> list[list[Use]]:
        """Run the backward pass and collect, for each trained parameter, its uses.

        Args:
            losses: shape (b,), computed in this recording's forward pass.
            weight: a factor for every gradient.

        Raises:
            UnsupportedError: a layer's input was changed in place after the layer had read it.
        """
        gradients: Sequence[Tensor | None] = [None] * len(self._taps)
        if losses.requires_grad and self._taps:
            of_each = torch.full_like(losses, weight)
            gradients = torch.autograd.grad(losses, self._taps, of_each, allow_unused=True)
        if any(tensor._version != version for tensor, version in self._held):
            raise UnsupportedError("a layer's input that is changed in place afterwards")
        gradients = [
            one if one is None or one.dtype == self._dtype else one.to(self._dtype)
            for one in gradients
        ]
        uses: list[list[Use]] = [[] for _ in self._parameters]
        for index, tap, build in self._builds:
            gradient = gradients[tap]
            if gradient is not None:
                uses[index].append(build(gradient))
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
