"""A physical batch in groups that are clipped as one, cut into pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Clipping

CACHED = 2**19  # elements of a piece: two megabytes in float32, within a processor's cache


@dataclass(frozen=True)
class Piece:
    """Successive examples that make up whole groups of equal size.

    Attributes:
        examples: which rows of the batch.
        count: how many groups they are.
        size: examples in each group.
    """

    examples: slice
    count: int
    size: int

    def rows(self, tensor: Tensor) -> Tensor:
        """Return the piece of a batch, shape (b, …) → (groups, examples a group, …)."""
        return self.grouped(tensor[self.examples])

    def grouped(self, part: Tensor) -> Tensor:
        """Return the piece itself by group: (examples, …) → (groups, examples a group, …)."""
        return part.reshape(self.count, self.size, *part.shape[1:])


@dataclass(frozen=True)
class Groups:
    """How the examples of a batch are grouped.

    Attributes:
        runs: (size, count) for each run of successive groups of equal size.
    """

    runs: tuple[tuple[int, int], ...]

    @classmethod
    def single(cls, examples: int) -> Groups:
        """Let each example be a group."""
        return cls(((1, examples),))

    @classmethod
    def of(cls, clipping: Clipping, examples: int) -> tuple[Groups, Tensor | None]:
        """Group a batch as a clipping asks, in an order in which groups of equal size are together.

        Args:
            clipping: whose groups are taken.
            examples: b, at least 1.

        Returns:
            The groups, and the order of the examples, shape (b,); None where it stays as it is.

        Raises:
            ValueError: a group size without groups.
        """
        if clipping.groups is None:
            if clipping.group_size > 1:
                raise ValueError("micro-batches need the group of each example")
            return cls.single(examples), None
        _, sizes = torch.unique_consecutive(clipping.groups, return_counts=True)
        order = sizes.repeat_interleave(sizes).argsort(stable=True)
        found, counts = sizes.sort().values.unique_consecutive(return_counts=True)
        return cls(tuple(zip(found.tolist(), counts.tolist(), strict=True))), order

    @property
    def count(self) -> int:
        """How many groups there are, n."""
        return sum(count for _, count in self.runs)

    @property
    def examples(self) -> int:
        """How many examples there are, b."""
        return sum(size * count for size, count in self.runs)

    @property
    def largest(self) -> int:
        """Examples in the largest group."""
        return max(size for size, _ in self.runs)

    def pieces(self, elements: int) -> Iterator[Piece]:
        """Cut the batch into pieces that stay in cache and hold groups of one size each.

        Args:
            elements: what is held in memory for one example.
        """
        start = 0
        for size, count in self.runs:
            fitting = max(1, CACHED // max(1, elements * size))
            for first in range(0, count, fitting):
                taken = min(fitting, count - first)
                yield Piece(slice(start, start + taken * size), taken, size)
                start += taken * size

    def to_examples(self, values: Tensor) -> Tensor:
        """Repeat a value per group for its examples: shape (n,) → (b,)."""
        if self.largest == 1:
            return values
        sizes = torch.cat([torch.full((count,), size) for size, count in self.runs])
        return values.repeat_interleave(sizes.to(values.device))
