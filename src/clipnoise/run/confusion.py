"""Which classes a network predicts, by the true class and the group of an example."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from clipnoise.data.base import ExampleGroups

MOST_CLASSES = 100  # a result file has a number for each pair of classes


class Confusion:
    """Counts predictions on a split whose batches come in order.

    Of a network with more outputs than there are classes nothing is counted: what it predicts may
    be no class.
    """

    def __init__(self, classes: int, groups: ExampleGroups | None) -> None:
        """Start at 0; without groups, all examples are in one without a name."""
        self._names = ("",) if groups is None else groups.names
        self._of = None if groups is None else groups.of
        self._counts = torch.zeros(len(self._names), classes, classes, dtype=torch.int64)
        self._seen = 0
        self._apart = False  # whether an output stands for no class

    def add(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Count a batch: logits of shape (b, classes), and classes of shape (b,)."""
        classes, end = self._counts.shape[-1], self._seen + len(targets)
        self._apart |= outputs.shape[-1] > classes
        if self._apart:
            return
        pairs = targets.cpu() * classes + outputs.argmax(dim=-1).cpu()
        groups = 0 if self._of is None else self._of[self._seen : end]
        places = groups * classes**2 + pairs
        self._counts += places.bincount(minlength=self._counts.numel()).view_as(self._counts)
        self._seen = end

    def counts(self) -> dict[str, list[list[int]]]:
        """Return, by group, how often each class (row) was predicted as each (column).

        It is empty where nothing was counted.
        """
        return {} if self._apart else dict(zip(self._names, self._counts.tolist(), strict=True))
