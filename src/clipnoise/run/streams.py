"""The global random streams, from which no network may draw as it trains."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from clipnoise.errors import UserError


class GlobalStreams:
    """Where the streams of Python, NumPy and torch are, to be compared with where they were.

    A network that draws from them draws once for all examples that are computed together, and
    which these are depends on who else is in the batch. Dropout and `torch.rand` do not move
    torch's stream in training: they draw for each example by itself.
    """

    def __init__(self) -> None:
        """Note where the streams are now."""
        self._places = (_place_of_python(), _place_of_numpy(), *_places_of_torch())
        self._modules = len(sys.modules)

    def require_unchanged(self) -> None:
        """Refuse to go on if anything has been drawn since.

        Some libraries draw as they are imported, so draws pass if a module was imported since. That
        happens once; what draws in each step is refused in the next one.

        Raises:
            UserError: says what to draw from instead.
        """
        now = GlobalStreams()
        if now._places != self._places and now._modules == self._modules:
            raise UserError(
                "model: it, its loss or the method drew random numbers from the global stream of "
                "Python, NumPy or torch during training, so what one example adds would depend on "
                "the others in its batch. Nothing of this run may be published. In a network, use "
                "torch.rand, torch.bernoulli or torch.nn.functional.dropout, whose numbers are "
                "drawn for each example by itself here; with models of transformers, set layerdrop "
                "to 0."
            )


def _place_of_python() -> tuple[object, ...]:
    """Return the index, which moves with each draw, and what changes when it begins again."""
    _, numbers, second = random.getstate()  # the second of a pair of normal numbers
    return numbers[-1], numbers[0], second


def _place_of_numpy() -> bytes | str:
    """Return what changes with each draw.

    `get_state` copies 624 numbers one by one, which takes a tenth of a step of a small network.
    """
    generator = np.random.mtrand.get_bit_generator()
    if isinstance(generator, np.random.MT19937):
        return ctypes.string_at(generator.ctypes.state_address, 4 * 625)
    return str(generator.state)


def _places_of_torch() -> Iterator[bytes]:
    """Yield the state of the CPU's stream, and of the current GPU's if there is one in use."""
    yield torch.get_rng_state().numpy().tobytes()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield torch.cuda.get_rng_state().numpy().tobytes()


@contextmanager
def networks_watched(only: nn.Module | None = None) -> Iterator[None]:
    """Compare the streams before and after each forward pass of a network.

    Args:
        only: the network; None watches any. The transforms of a dataset may be modules, too, and
            draw what they like.

    Raises:
        UserError: in the forward pass that drew from one of them.
    """
    before: list[GlobalStreams | None] = []  # of the modules inside one another, the outermost

    def enter(module: nn.Module, _: object) -> None:
        if before or only is None or module is only:
            before.append(None if before else GlobalStreams())

    def leave(*_: object) -> None:
        streams = before.pop() if before else None
        if streams is not None:
            streams.require_unchanged()

    hooks = (
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
