"""Messages between the judge and the processes that run the judged file: plain data and tensors.

Nothing that a message holds is executed when it is read, as a pickle would be.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clipnoise.core.clipping import Clipping, ClipRule
from clipnoise.core.query import Component
from clipnoise.core.state import Public, State
from clipnoise.fields import parse

PLACE = "a tensor"  # the key that stands for a tensor in the JSON part of a message
DTYPES = {str(kind): kind for kind in (torch.float32, torch.float64, torch.int64, torch.bool)}


def pack(message: Any) -> bytes:
    """Return a message as bytes.

    Args:
        message: plain data, in which lists and mappings may hold tensors.

    Raises:
        TypeError: something in it is neither.
    """
    tensors: list[Tensor] = []

    def place(value: object) -> dict[str, Any]:
        if not isinstance(value, Tensor):
            raise TypeError(f"neither plain data nor a tensor: {type(value).__name__}")
        tensors.append(value.detach().cpu().contiguous())
        return {PLACE: [str(value.dtype), list(value.shape)]}

    text = json.dumps(message, default=place).encode()
    return b"".join([len(text).to_bytes(8), text, *(t.numpy().tobytes() for t in tensors)])


def unpack(data: bytes) -> Any:
    """Return the message that `pack` made into bytes.

    Raises:
        ValueError: it is not such a message.
    """
    length = int.from_bytes(data[:8])
    left = memoryview(data)[8 + length :]

    def fill(values: dict[str, Any]) -> Any:
        nonlocal left
        if PLACE not in values:
            return values
        name, shape = values[PLACE]
        empty = torch.zeros(0, dtype=DTYPES[name]).numpy().dtype
        numbers = np.frombuffer(left, empty, int(np.prod(shape, dtype=int)))
        left = left[numbers.nbytes :]
        return torch.from_numpy(numbers.copy()).reshape(shape)

    try:
        return json.loads(data[8 : 8 + length], object_hook=fill)
    except (KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"not a message: {error}") from None


def plain_state(state: State) -> dict[str, Any]:
    """Return a method's memory as a message."""
    return {
        "like": state.like,
        "step": state.step,
        "buffers": dict(state.buffers),
        "unwritten": sorted(state.unwritten),
        "shapes": state.shapes,
    }


def state_of(values: dict[str, Any]) -> State:
    """Return the memory that a message holds."""
    return State(
        values["like"],
        int(values["step"]),
        values["buffers"],
        set(map(str, values["unwritten"])),
        tuple(map(tuple, values["shapes"])),
    )


def public_of(values: dict[str, Any]) -> Public:
    """Return the public knowledge that a message holds, from `vars` of it."""
    return Public(**values)


def clipping_of(values: dict[str, Any]) -> Clipping:
    """Return the clipping that a message holds, from `vars` of it and of its rule."""
    tuples = {name: tuple(values[name]) for name in ("weights", "points")}
    return Clipping(**{**values, **tuples, "rule": parse(ClipRule, values["rule"])})


def components_of(values: Sequence[Sequence[float]]) -> tuple[Component, ...]:
    """Return the components that a message holds, as pairs of numbers."""
    return tuple(Component(float(one), float(other)) for one, other in values)
