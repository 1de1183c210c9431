"""Messages between the judge and the processes that run the judged file: plain data and tensors.

Nothing that a message holds is executed when it is read, as a pickle would be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
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


def pack(message: Any) -> bytes:
    """Return a message as bytes: its tensors as safetensors, the rest as JSON beside them.

    Args:
        message: plain data, in which lists and mappings may hold tensors and objects of `KINDS`.

    Raises:
        TypeError: something in it is none of these.
    """
    tensors: dict[str, Tensor] = {}

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
        tensors[str(len(tensors))] = value.detach().cpu().clone().contiguous()
        return {PLACE: str(len(tensors) - 1)}

    text = json.dumps(message, default=place)
    return save(tensors, {"text": text})


def unpack(data: bytes) -> Any:
    """Return the message that `pack` made into bytes.

    Raises:
        ValueError: it is not such a message.
    """

    def fill(values: dict[str, Any]) -> Any:
        if KIND in values:
            return NAMED[values.pop(KIND)](**values)
        return tensors[values[PLACE]] if PLACE in values else values

    try:
        tensors = load(data)
        size = int.from_bytes(data[:8], "little")
        text = json.loads(data[8 : 8 + size])["__metadata__"]["text"]
        return json.loads(text, object_hook=fill)
    except (KeyError, TypeError, UserError, UnicodeDecodeError, SafetensorError) as error:
        raise ValueError(f"not a message: {error}") from None
