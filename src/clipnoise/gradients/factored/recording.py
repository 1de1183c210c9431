"""Recording: one forward pass that keeps, layer by layer, the factors of the gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from clipnoise.gradients.apart import UnsupportedError, on_examples, on_whole_batch
from clipnoise.gradients.factored.block import Block
from clipnoise.gradients.factored.uses import ExplicitGradients, Use

if TYPE_CHECKING:
    from clipnoise.gradients.dropout import ExampleDropout

Rule = Callable[..., Any]
COPIED = 2**16  # numbers of a parameter of which each example may have a copy


class Recording(TorchFunctionMode):
    """Runs a network and records each use of a trained parameter by the rule of its function.

    The backward pass goes from the losses to the outputs of the layers: it computes no summed
    gradients of parameters, and stops at the lowest trained layer. Above it, rules run layers on
    detached parameters.

    The network runs on a whole batch, or under vmap, which hides the axis of the examples from it.
    Rules always see the whole batch, with the rows of one example next to each other on the first
    axis: `layer` takes what vmap hides to a rule, and hides what the rule returns. A parameter
    that is used by another function, which is possible under vmap alone, is copied for each
    example; the gradients of the copies are the per-example gradients.

    It stands in for the dropout of the pass as well: with that as a second mode around it, each
    access to a tensor in a rule would go through a handler. A rule that drops values by functions
    of PyTorch does so within `dropout`.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], rules: Mapping[Any, Rule], count: int
    ) -> None:
        """Prepare for one pass.

        Args:
            parameters: the trained parameters.
            rules: keyed by torch function; called with the recording and the function's arguments.
            count: b, examples in the batch.
        """
        super().__init__()
        self._parameters, self._rules = parameters, rules
        self._index = {id(parameter): i for i, parameter in enumerate(parameters)}
        self.count, self.rows = count, 1
        self._dtype = parameters[0].dtype
        self._in_block = False
        self._held: list[tuple[Tensor, int]] = []
        self._builds: list[tuple[int, int, Callable[[Tensor], Use]]] = []
        self._taps: list[GradientEdge] = []

    def over(self, dropout: ExampleDropout) -> Recording:
        """Return the recording as the context of its forward pass.

        Args:
            dropout: of the pass; it handles all functions that use no trained parameter.
        """
        self.dropout = dropout
        self._drop: Callable[..., Any] = dropout.__torch_function__
        return self

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        rule = self._rules.get(func)
        used = self._touches(args) or (kwargs is not None and self._touches(kwargs.values()))
        # Frozen layers cost less on the whole batch than under vmap.
        if rule is not None and (used or self.hides):
            return rule(self, *args, **(kwargs or {}))
        if not used:
            return self._drop(func, types, args, kwargs)
        name = getattr(func, "__name__", str(func))
        if name == "__get__":  # what only describes a parameter is the same for all examples
            described = func(*args)
            if not isinstance(described, torch.Tensor):
                return described
        if not self.hides:
            raise UnsupportedError(f"a trained parameter in {name}")
        return self.by_copies(func, args, kwargs or {})

    @property
    def hides(self) -> bool:
        """Whether the network runs under vmap, which hides the axis of the examples from it."""
        return self.dropout.hidden is not None

    def block(
        self, function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]
    ) -> tuple[Any] | None:
        """Run a block under vmap so that the backward pass computes its values again.

        A block within it is run as a part of it: None leaves the call to its caller.

        The first pass records. What a later one records is thrown away, so that no use of a
        parameter counts twice, and it draws the dropout masks of the first.

        Raises:
            UnsupportedError: the block is given a trained parameter.
        """
        if self._in_block:
            return None
        block, begun = Block(function, arguments, options), self.dropout
        if self._touches(block.tensors):
            raise UnsupportedError("a trained parameter in the arguments of a recomputed block")
        turn, hidden = begun.turn, begun.hidden
        assert hidden is not None  # rules of what is no layer are for vmap alone
        # The graph must not hold the recording, which holds the graph: neither would be freed.
        blank, recorders = self._blank(), iter([self])

        def run(*given: Tensor) -> tuple[Tensor, ...]:
            first = next(recorders, None)
            recorder = blank._blank() if first is None else copy(first)
            recorder._in_block = True

            def alone(index: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
                dropout = begun.going_on(turn, index)
                with recorder.over(dropout):
                    outputs = block.run(given)
                if first is not None:
                    begun.turn = dropout.turn
                return outputs

            outputs: tuple[Tensor, ...] = vmap(alone, randomness="error")(*given)
            return outputs

        def kept(_: int, given: Sequence[Tensor]) -> Any:
            return checkpoint(run, *given, use_reentrant=False, preserve_rng_state=False)

        outputs = block.outputs(on_examples(hidden, kept, [hidden, *block.tensors]))
        block.tensors = ()
        return (outputs,)

    def _blank(self) -> Recording:
        """Return a recording of the same pass, in which nothing is recorded yet."""
        other = copy(self)
        other._held, other._builds, other._taps = [], [], []
        return other

    def _touches(self, values: Iterable[object]) -> bool:
        for value in values:
            if id(value) in self._index:
                return True
            if isinstance(value, tuple | list) and any(id(v) in self._index for v in value):
                return True
        return False

    def layer(self, rule: Rule, *arguments: Any, inputs: int = 1, **options: Any) -> Any:
        """Run the rule of a layer on the whole batch.

        Args:
            rule: takes this recording and the arguments.
            arguments: the inputs first: tensors with the rows of an example on the first axis. All
                tensors among the others are parameters.
            inputs: how many there are.
            options: further arguments.
        """
        arguments = (*map(self.own, arguments[:inputs]), *arguments[inputs:])
        if not self.hides:
            return rule(self, *arguments, **options)

        def run(rows: int, given: Sequence[Tensor]) -> Any:
            self.rows = rows
            return rule(self, *given, *arguments[inputs:], **options)

        try:
            return on_whole_batch(self.dropout.hidden, run, arguments[:inputs])
        finally:
            self.rows = 1

    def by_copies(
        self, function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        """Call a function under vmap with a copy of each trained parameter for each example.

        Raises:
            UnsupportedError: a parameter is large.
        """
        own = partial(self.own, user=getattr(function, "__name__", str(function)))
        given, named = tree_map_only(nn.Parameter, own, (tuple(arguments), dict(options)))
        return self._drop(function, (), given, named)

    def own(self, value: Tensor, user: str = "the input of a layer") -> Tensor:
        """Return a trained parameter as a copy for each example, and any other value as it is.

        The gradients of the copies are the per-example gradients.

        Args:
            value: what a function without a rule for its gradient takes.
            user: that function, for the message.

        Raises:
            UnsupportedError: the parameter is large, or the network does not run under vmap.
        """
        if not self.trains(value):
            return value
        if not self.hides:
            raise UnsupportedError(f"a trained parameter in {user}")
        if value.numel() > COPIED:
            raise UnsupportedError(f"a trained parameter of {value.numel():,} numbers in {user}")

        def run(*_: object) -> Tensor:
            copies = value.expand(self.count, *value.shape)
            self.use(value, self.tap(copies), ExplicitGradients)
            return copies

        copies: Tensor = on_whole_batch(self.dropout.hidden, run)
        return copies

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

    def examples_of(self, tensor: Tensor, *, single: bool = False) -> None:
        """Require that the leading rows of a layer's input belong to the examples, in order.

        Args:
            tensor: the input.
            single: whether each example must have one row.

        Raises:
            UnsupportedError: they do not.
        """
        leading = tensor.shape[0] if tensor.ndim else 0
        if leading != self.rows * self.count or (single and self.rows != 1):
            raise UnsupportedError("a layer whose leading axis is not that of the examples")

    def tap(self, output: Tensor) -> int | None:
        """Ask for the gradient of a layer's output as it now is, whatever follows in place.

        Args:
            output: needs a gradient, because of the layer's input or of its parameters.

        Returns:
            The number of the tap; None where nothing is recorded.
        """
        if not output.requires_grad:
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
