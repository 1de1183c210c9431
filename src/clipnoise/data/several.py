"""Inputs of several tensors, such as token ids with their mask, or numbers beside categories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from clipnoise.data.rows import Rows
from clipnoise.lazy import Tensor

if TYPE_CHECKING:
    from clipnoise.lazy import torch

Inputs: TypeAlias = "Tensor | Several"


class Several:
    """The tensors of inputs that have several: those of a mapping by name, of a tuple in order.

    It stands where a tensor of inputs stands, of which rows are taken: `len`, an index along the
    examples, `to`, `device` and `unsqueeze` mean what they mean there, for all tensors at once. A
    network gets the tensors as arguments: those with names by their names, the others in order.

    Attributes:
        parts: the tensors, or rows that become some, each of shape (n, …).
    """

    def __init__(self, parts: Mapping[str, Any] | tuple[Any, ...]) -> None:
        """Take the tensors together; at least one."""
        self.parts = dict(parts) if isinstance(parts, Mapping) else tuple(parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each tensor; of those without one, its place, as text."""
        if isinstance(self.parts, dict):
            return tuple(self.parts)
        return tuple(map(str, range(len(self.parts))))

    @property
    def each(self) -> tuple[Any, ...]:
        """The tensors in order."""
        return tuple(self.parts.values()) if isinstance(self.parts, dict) else self.parts

    def __len__(self) -> int:
        """Return n; tensors of different lengths raise ValueError."""
        lengths = {name: len(part) for name, part in zip(self.names, self.each, strict=True)}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ValueError(f"inputs differ in how many rows they have: {said}")
        return len(self.each[0])

    def __getitem__(self, chosen: Any) -> Several:
        return self.map(lambda part: part[chosen])

    def seen(self, chosen: Tensor, key: int) -> Several:
        """Return some rows as a training step sees them: as for `Rows.seen`."""
        return self.map(
            lambda part: part.seen(chosen, key) if isinstance(part, Rows) else part[chosen]
        )

    def to(self, device: str | torch.device) -> Several:
        """Return the same on a device."""
        return self.map(lambda part: part.to(device))

    @property
    def device(self) -> Any:
        """Where the tensors lie."""
        return self.each[0].device

    def unsqueeze(self, dim: int) -> Several:
        """Return the tensors with a further axis."""
        return self.map(lambda part: part.unsqueeze(dim))

    def map(self, function: Callable[..., Any], *others: Several) -> Several:
        """Return what a function makes of each tensor, and of those of others in its place."""
        rows = zip(self.each, *(other.each for other in others), strict=True)
        return self.with_each([function(*row) for row in rows])

    def with_each(self, tensors: Sequence[Any]) -> Several:
        """Return other tensors under the same names, or in the same order."""
        if isinstance(self.parts, dict):
            return Several(dict(zip(self.parts, tensors, strict=True)))
        return Several(tuple(tensors))


def mapped(function: Callable[..., Tensor], first: Inputs, *others: Inputs) -> Inputs:
    """Return what a function makes of inputs: of a tensor, or of each of several."""
    if isinstance(first, Several):
        return first.map(function, *cast("tuple[Several, ...]", others))
    return function(first, *others)


def tensors_of(inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the tensors of inputs in order: one, or several."""
    return inputs.each if isinstance(inputs, Several) else (inputs,)


def opened(inputs: Inputs) -> Any:
    """Return inputs as a tensor, a dict or a tuple, as `torch.func` takes them."""
    return inputs.parts if isinstance(inputs, Several) else inputs


def closed(parts: Any) -> Inputs:
    """Return what was opened, or what a function of `torch.func` hands on of it."""
    return Several(parts) if isinstance(parts, dict | tuple) else parts


def arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return inputs as the arguments of a network: those by place and those by name."""
    if isinstance(inputs, Several) and isinstance(inputs.parts, dict):
        return (), inputs.parts
    return tensors_of(inputs), {}


def call(network: Callable[..., Any], inputs: Inputs) -> Tensor:
    """Return the outputs of a network: see `outputs_of`."""
    by_place, by_name = arguments(inputs)
    return outputs_of(network(*by_place, **by_name))


def outputs_of(returned: Any) -> Tensor:
    """Return the outputs in what a network returns: of a model of transformers, its `logits`."""
    has_logits = isinstance(returned, dict) and "logits" in returned
    return cast("Tensor", returned["logits"] if has_logits else returned)


def shape_of(inputs: Inputs) -> str:
    """Describe the shape of inputs, for a message."""
    if not isinstance(inputs, Several):
        return str(tuple(inputs.shape))
    pairs = zip(inputs.names, inputs.each, strict=True)
    named = isinstance(inputs.parts, dict)
    return ", ".join((f"{name} " if named else "") + str(tuple(one.shape)) for name, one in pairs)
