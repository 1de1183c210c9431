"""Private units, and how a batch of them becomes a clipped sum in the memory that there is."""

from __future__ import annotations

import ctypes
import gc
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from clipnoise.data.several import mapped
from clipnoise.errors import out_of_memory, reason
from clipnoise.gradients.engine import parts
from clipnoise.seeds import derive

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.core.clipping import Clipping
    from clipnoise.data.base import Examples
    from clipnoise.data.several import Inputs
    from clipnoise.gradients.engine import GradientEngine

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PrivateUnits:
    """The private units of a run, and how a batch of them becomes a clipped sum.

    Attributes:
        engine: forms the sum of each physical batch.
        examples: what indices refer to: examples, or the numbers of users.
        physical: how many of them are in memory at once, each view counted.
        views: K, the views of each example whose mean vector is clipped.
    """

    engine: GradientEngine
    examples: Examples
    physical: PhysicalBatch
    views: int = 1

    def clipped_sum(self, indices: Tensor, clipping: Clipping) -> Tensor:
        """Return Σ clip(v_i) over a logical batch, computed in physical batches.

        Args:
            indices: of the units in the batch, shape (b,); b may be 0.
            clipping: where gradients are taken, and how the vectors are formed and bounded.

        Returns:
            Shape (d,); the same, up to rounding, for every size. Depends on private data.
        """
        if clipping.examples is not indices:
            clipping = replace(clipping, examples=indices)
        if self.views > 1:
            clipping = _in_views(clipping, indices, self.views)
            indices = indices.repeat_interleave(self.views)
        count = len(indices)
        for attempt in self.physical.attempts():
            with attempt as size:
                total = None
                for chosen, part in parts(clipping, count, size):
                    some = indices if part is clipping else indices[chosen]
                    summed = self.engine.clipped_sum(*self._seen(some, part.key), part)
                    total = summed if total is None else total.add_(summed)
        return clipping.of.zeros(self.engine.flat.theta) if total is None else total

    def _seen(self, indices: Tensor, key: int) -> tuple[Inputs, Tensor]:
        """Return the inputs and targets of examples that stand K times in a row, in K views."""
        if self.views == 1:
            return self.examples.seen(indices, key)
        keys = [key, *(derive("views", key, view) for view in range(1, self.views))]
        seen = [self.examples.seen(indices[:: self.views], one) for one in keys]
        inputs, targets = zip(*seen, strict=True)
        return mapped(_in_turn, *inputs), _in_turn(*targets)


def _in_views(clipping: Clipping, indices: Tensor, views: int) -> Clipping:
    """Return the clipping of a batch in which each example stands K times in a row.

    The K views of an example form a group, whose mean is clipped once: the example still moves the
    sum by at most C. Each view has an index of its own, and by it dropout masks of its own.
    """
    groups = torch.arange(len(indices)) if clipping.groups is None else clipping.groups
    own = indices.unsqueeze(1) * views + torch.arange(views, device=indices.device)
    return replace(
        clipping,
        group_size=views * clipping.group_size,
        groups=groups.repeat_interleave(views),
        examples=own.flatten(),
    )


def _in_turn(*views: Tensor) -> Tensor:
    """Return the K views of each example next to each other, shape (K·b, …)."""
    return torch.stack(views, dim=1).flatten(0, 1)


class PhysicalBatch:
    """How many examples are in memory at once; halved permanently when that many do not fit.

    Work on a batch is tried until it fits, with pieces of at most `size` examples:

        for attempt in physical.attempts():
            with attempt as size:
                total = work(size)
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._lacking: str | None = None

    def attempts(self) -> Iterator[AbstractContextManager[int, bool | None]]:
        """Yield an attempt until one fits; each starts from the beginning.

        What is done in it must change nothing before its end.

        Yields:
            A context that gives the largest size of a piece, and ends quietly where memory runs
            out. It raises where the error is not about memory, or not even one example fits.
        """
        while True:
            self._lacking = None
            yield self._attempt()
            if self._lacking is None:
                return
            self._halve(self._lacking)  # here, where no error keeps the step's tensors any more

    @contextmanager
    def _attempt(self) -> Iterator[int]:
        try:
            yield self.size
        except (MemoryError, RuntimeError) as error:
            if self.size == 1 or not out_of_memory(error):
                raise
            self._lacking = reason(error, otherwise="no memory left")

    def _halve(self, why: str) -> None:
        self.size //= 2
        logger.warning("out of memory (%s): physical batches of %d from now on", why, self.size)
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)  # return free heap pages, which libraries that call mmap themselves cannot use
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
