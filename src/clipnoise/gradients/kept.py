"""What a network holds besides its trained parameters: none of it may change in a private run.

Noise protects what is released through the trained parameters. Whatever else a forward pass leaves
behind (a running mean, a row of an embedding that it renormalises, a list of what it saw) would
carry private examples past the noise: into the published network, and into later steps.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from clipnoise.errors import UserError

PLAIN = (int, float, complex, str, bytes, type(None))
CONTAINERS = (list, tuple, dict, deque, set, frozenset)
OPAQUE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)

Held = dict[str, object]


class Kept:
    """What a network held when a run began, to be compared with what it holds later.

    It follows modules, their attributes and those of their classes, containers, and the attributes
    of other objects; not what functions close over, and nothing global.
    """

    def __init__(
        self, network: nn.Module, losses: object = None, counters: frozenset[str] = frozenset()
    ) -> None:
        """Look at a network and its loss.

        Args:
            network: whose trained parameters are those that require a gradient.
            losses: the loss, which may hold something as well.
            counters: attributes that count forward passes: integers that may change.
        """
        self._network, self._losses, self._counters = network, losses, counters
        self._quickly, self._exactly = self._held(exactly=False), self._held(exactly=True)

    def require_unchanged(self, *, exactly: bool) -> None:
        """Refuse a network that has changed.

        Args:
            exactly: whether every value is compared; otherwise objects and how often they were
                written to, which takes microseconds, but misses writes that PyTorch does not see.

        Raises:
            UserError: names what has changed.
        """
        before = self._exactly if exactly else self._quickly
        changed = difference(before, self._held(exactly=exactly), self._counters)
        if changed is not None:
            raise UserError(
                f"model: {changed} changed while the network was trained, and it is no trained "
                "parameter: it would release private data without noise. Nothing of this run may "
                f"be published. {WITHOUT}"
            )

    def _held(self, *, exactly: bool) -> Held:
        seen: set[int] = set()
        walk = partial(_walk, trained=_trained(self._network), seen=seen, exactly=exactly)
        return dict(walk(self._network, "")) | dict(walk(self._losses, "loss"))


WITHOUT = "Let the forward pass write to nothing that outlives it."


def look(network: nn.Module) -> Held:
    """Return what a network holds besides its trained parameters, by path, to be compared."""
    return dict(_walk(network, "", trained=_trained(network), seen=set(), exactly=True))


def difference(before: Held, after: Held, counters: frozenset[str] = frozenset()) -> str | None:
    """Return the path of something that differs, or None."""
    for path in sorted(before.keys() | after.keys()):
        if path not in counters and before.get(path, path) != after.get(path, path):
            return path
    return None


def counters(before: Held, after_one: Held, after_two: Held) -> frozenset[str]:
    """Return the paths of integers that grow by the same number in each of two forward passes."""

    def counts(path: str) -> bool:
        first, second, third = (held.get(path) for held in (before, after_one, after_two))
        if not (isinstance(first, int) and isinstance(second, int) and isinstance(third, int)):
            return False
        return second - first == third - second

    return frozenset(path for path in before if counts(path))


def _trained(network: nn.Module) -> frozenset[int]:
    return frozenset(id(one) for one in network.parameters() if one.requires_grad)


def _walk(
    value: Any, path: str, *, trained: frozenset[int], seen: set[int], exactly: bool
) -> Iterator[tuple[str, object]]:
    """Yield what is reached from a value, each object once, but not the values of what is trained.

    Objects that have neither attributes nor parts are compared by what they print.
    """
    if isinstance(value, (*PLAIN, np.generic)):
        yield path, repr(value) if isinstance(value, (float, np.generic)) else value
        return
    if isinstance(value, OPAQUE) or id(value) in seen:
        return
    seen.add(id(value))
    walk = partial(_walk, trained=trained, seen=seen, exactly=exactly)
    if isinstance(value, torch.Tensor):
        if id(value) not in trained:
            yield path, _digest(value) if exactly else (id(value), _writes(value))
        # A tensor of another class may hold its values as attributes.
        plain = type(value) in (torch.Tensor, nn.Parameter)
        for name, part in vars(value).items() if plain else ():
            yield from walk(part, f"{path}.{name}")
    elif isinstance(value, np.ndarray):
        yield path, value.tobytes() if exactly else id(value)
    elif isinstance(value, CONTAINERS):
        parts = value.values() if isinstance(value, dict) else value
        if all(isinstance(part, PLAIN) for part in parts):
            yield path, repr(value)
            return
        yield f"the length of {path}", len(value)
        for place, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from walk(part, f"{path}[{place!r}]")
    elif hasattr(value, "__dict__") or hasattr(value, "__slots__"):
        for name, part in _attributes(value):
            yield from walk(part, f"{path}.{name}" if path else name)
    else:
        yield path, repr(value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object; of a module, those that are not PyTorch's own."""
    held, kinds = getattr(value, "__dict__", {}), type(value).__mro__
    for kind in kinds:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name) and name != "__dict__":
                yield name, getattr(value, name)
    if not isinstance(value, nn.Module):
        yield from held.items()
        return
    for kind in kinds[: kinds.index(nn.Module)]:
        if not kind.__module__.startswith("torch."):
            yield from ((f"{kind.__name__}.{name}", part) for name, part in _of_class(kind))
    for store in (value._parameters, value._buffers, value._modules):
        yield from store.items()
    usual = vars(nn.Module())
    yield from ((name, part) for name, part in held.items() if name not in usual)


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the numbers, texts, containers and tensors that a class holds for all its objects."""
    held = (*PLAIN, *CONTAINERS, np.generic, np.ndarray, torch.Tensor)
    for name, part in vars(kind).items():
        if isinstance(part, held) and not name.startswith("__"):
            yield name, part


def _digest(tensor: torch.Tensor) -> object:
    """Return what tells the values of a tensor apart; a tensor without values is itself."""
    try:
        values = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        return tuple(tensor.shape), hashlib.blake2b(values.numpy(), digest_size=16).hexdigest()
    except (RuntimeError, TypeError):  # left over from a transform of torch.func, or lazy
        return id(tensor)


def _writes(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written to in place; an inference tensor does not count."""
    return 0 if tensor.is_inference() else tensor._version
