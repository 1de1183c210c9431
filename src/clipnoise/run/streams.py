"""The global random streams of Python and NumPy, from which no network may draw as it trains."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from clipnoise.errors import UserError


class GlobalStreams:
    """Where both streams are, to be compared with where they were.

    A network that draws from them draws once for all examples that are computed together, and
    which these are depends on who else is in the batch. torch's own stream is checked before
    training, and its dropout draws for each example by itself.
    """

    def __init__(self) -> None:
        """Note where both streams are now."""
        kind, numbers, *rest = np.random.get_state(legacy=True)
        self._places = (random.getstate(), kind, np.asarray(numbers).tobytes(), *rest)
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
                "Python or NumPy during training, so what one example adds would depend on the "
                "others in its batch. Nothing of this run may be published. In a network, use "
                "torch.rand or torch.nn.functional.dropout, whose numbers are drawn for each "
                "example by itself here; with models of transformers, set layerdrop to 0."
            )


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
