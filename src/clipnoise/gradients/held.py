"""How many bytes the tensors of a computation take at its peak: counted, whatever the load."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the most bytes that the tensors of a computation take at the same time.

    What an operation needs within itself, such as the workspace of a library, is not counted.
    """
    counting = _Counting()
    with counting:
        work()
    return counting.peak


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages of the tensors that operations return, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        address, size = storage._cdata, storage.nbytes()  # views share a storage
        if address in self._known:
            return
        self._known.add(address)
        self.held += size
        self.peak = max(self.peak, self.held)
        weakref.finalize(storage, self._free, address, size).atexit = False

    def _free(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.held -= size
