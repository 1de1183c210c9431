"""Messages between the judge and the processes that run the judged file: plain data and tensors.

Nothing that a message holds is executed when it is read, as a pickle would be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clipnoise.core.clip_rules import ClipRule
from clipnoise.core.clipping import Clipping
from clipnoise.core.method import LocalTraining
from clipnoise.core.query import Component
from clipnoise.core.state import Public, State
from clipnoise.core.taken import TAKEN, Taken
from clipnoise.errors import UserError
from clipnoise.fields import parse

# What the class of a method and that of its query say of themselves.
OF_METHOD = (
    *("id", "sees", "gradients_of", "made_for"),
    *("uses_public_gradient", "uses_side_information"),
)
OF_QUERY = ("private", "adjacency", "of")
PLACE = "a tensor"  # the key that stands for a tensor in the JSON part of a message
KIND = "a kind"  # the key that stands for an object of one of the classes below


def _clipping(*, weights: Any, points: Any, rule: ClipRule, **others: Any) -> Clipping:
    if not isinstance(rule, ClipRule):
        raise TypeError("not a clip rule")
    return Clipping(weights=tuple(weights), points=tuple(points), rule=rule, **others)


def _state(*, unwritten: Any, shapes: Any, past: Any, **others: Any) -> State:
    layers = tuple(map(tuple, shapes))
    return State(unwritten=set(map(str, unwritten)), shapes=layers, past=tuple(past), **others)


# What a message may hold besides plain data and tensors, and how each is made from its attributes.
KINDS: Mapping[Any, Callable[..., Any]] = {
    State: _state,
    Public: Public,
    Clipping: _clipping,
    ClipRule: lambda **values: parse(ClipRule, values),
    Taken: lambda kind, **values: TAKEN[kind](**values),
    Component: lambda sensitivity, noise_factor: Component(float(sensitivity), float(noise_factor)),
    LocalTraining: LocalTraining,
}
NAMED = {kind.__name__: make for kind, make in KINDS.items()}
DTYPES = {
    str(kind): kind
    for kind in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    )
}


def pack(message: Any) -> bytes:
    """Return a message as bytes.

    Args:
        message: plain data, in which lists and mappings may hold tensors and objects of `KINDS`.

    Raises:
        TypeError: something in it is none of these.
    """
    tensors: list[Tensor] = []

    def place(value: Any) -> dict[str, object]:
        for kind in KINDS:
            if isinstance(value, kind):
                values = {each.name: getattr(value, each.name) for each in fields(value)}
                if isinstance(value, (ClipRule, Taken)):
                    values["kind"] = value.id
                values |= {name: sorted(x) for name, x in values.items() if isinstance(x, set)}
                return {KIND: kind.__name__, **values}
        if not isinstance(value, Tensor):
            raise TypeError(f"neither plain data nor a tensor: {type(value).__name__}")
        if str(value.dtype) not in DTYPES:
            raise TypeError(f"a tensor of {value.dtype}")
        tensors.append(value)
        return {PLACE: [str(value.dtype), list(value.shape)]}

    text = json.dumps(message, default=place).encode()
    return b"".join([len(text).to_bytes(8), text, *map(bytes_of, tensors)])


def bytes_of(tensor: Tensor) -> bytes:
    """Return the values of a tensor of any type, whether or not NumPy has it."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes()


def unpack(data: bytes) -> Any:
    """Return the message that `pack` made into bytes.

    Raises:
        ValueError: it is not such a message.
    """
    length = int.from_bytes(data[:8])
    left = memoryview(data)[8 + length :]

    def fill(values: dict[str, Any]) -> Any:
        nonlocal left
        if KIND in values:
            return NAMED[values.pop(KIND)](**values)
        if PLACE not in values:
            return values
        name, shape = values[PLACE]
        kind = DTYPES[name]
        size = kind.itemsize * int(np.prod(shape, dtype=int))
        numbers = torch.zeros(size, dtype=torch.uint8)
        numbers.numpy()[:] = np.frombuffer(left, np.uint8, size)
        left = left[size:]
        return numbers.view(kind).reshape(shape)

    try:
        return json.loads(data[8 : 8 + length], object_hook=fill)
    except (KeyError, TypeError, UserError, UnicodeDecodeError) as error:
        raise ValueError(f"not a message: {error}") from None
