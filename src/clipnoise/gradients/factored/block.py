"""A call of a block of layers, taken apart so that it can be made again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


class Block:
    """A call of a block, as a function of the tensors among its arguments.

    Attributes:
        tensors: these tensors.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]
    ) -> None:
        """Take a call apart."""
        self._function = function
        leaves, self._form = tree_flatten((tuple(arguments), dict(options)))
        self.tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
        self._others = _without_tensors(leaves)

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Call the block with such tensors; return those among its outputs."""
        arguments, options = tree_unflatten(_with_tensors(self._others, tensors), self._form)
        leaves, self._form_of_outputs = tree_flatten(self._function(*arguments, **options))
        self._other_outputs = _without_tensors(leaves)
        return tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))

    def outputs(self, tensors: Sequence[Tensor]) -> Any:
        """Return outputs with such tensors in the form in which the block last returned its own."""
        leaves = _with_tensors(self._other_outputs, tensors)
        return tree_unflatten(leaves, self._form_of_outputs)


def _without_tensors(leaves: Sequence[Any]) -> list[Any]:
    """Return the class Tensor in place of each tensor."""
    return [Tensor if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _with_tensors(leaves: Sequence[Any], tensors: Sequence[Tensor]) -> list[Any]:
    """Return tensors in place of the class Tensor."""
    rest = iter(tensors)
    return [next(rest) if leaf is Tensor else leaf for leaf in leaves]
