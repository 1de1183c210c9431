"""The contract of a layer family: what one use of a parameter says about per-example gradients."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.gradients.factored.groups import Piece


SLACK = 8  # roundings by which a norm is raised
LONG = 2048  # products of longer float32 rows are added in float64


class Use(ABC):
    """One use of one parameter in one pass: each example's gradient G_i, in factors.

    Attributes:
        shape: the parameter's shape.
        elements: how many numbers the factors hold for one example.
        workspace: how many numbers more are formed on the way to one example's gradient.
    """

    shape: torch.Size
    elements: int
    workspace: int = 0

    @abstractmethod
    def instantiate(self, piece: Piece) -> Tensor:
        """Return Σ G_i over each group of a piece, shape (groups, *shape)."""

    @abstractmethod
    def add(self, factors: Tensor, into: Tensor) -> None:
        """Add Σ f_i G_i, in place.

        Args:
            factors: f, shape (b,).
            into: shape of the parameter.
        """

    @property
    def gradient_elements(self) -> int:
        """How many numbers one example's gradient holds."""
        return math.prod(self.shape)

    @abstractmethod
    def sample(self) -> Tensor:
        """Return a tensor of the gradients' dtype and device."""


class InProducts(Use):
    """A use whose gradients have inner products that need no gradients."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """How many rows an example has, T: each adds an outer product to its gradient."""

    @abstractmethod
    def pays(self, total: int, *, scaled: bool, keeps: bool) -> bool:
        """Return whether inner products cost less than instantiating.

        Args:
            total: rows that meet each other: those of all uses, times the examples in a group.
            scaled: whether an elementwise scale is wanted.
            keeps: whether instantiated gradients would be kept, and their sum cost no more.
        """

    @abstractmethod
    def takes(self, other: InProducts) -> bool:
        """Return whether `products` takes another use of the same parameter."""

    @abstractmethod
    def products(self, other: Use, piece: Piece, square: Tensor | None) -> Tensor:
        """Return ⟨s ⊙ G, s ⊙ G′⟩ for the groups of a piece; of G and itself never too low.

        Args:
            other: the use that G′ belongs to; one that is taken.
            piece: which groups.
            square: s², shape of the parameter; None for ones.

        Returns:
            Shape (groups,), float64.
        """


class ExplicitGradients(Use):
    """Per-example gradients held as they are: those of biases and embeddings."""

    def __init__(self, gradients: Tensor) -> None:
        """Take gradients of shape (b, *shape)."""
        self.gradients = gradients
        self.shape = gradients.shape[1:]
        self.elements = self.gradient_elements

    def sample(self) -> Tensor:
        return self.gradients

    def instantiate(self, piece: Piece) -> Tensor:
        return add_up(piece.rows(self.gradients))

    def add(self, factors: Tensor, into: Tensor) -> None:
        into.view(-1).addmv_(self.gradients.reshape(len(self.gradients), -1).T, factors)


class Constant(InProducts):
    """The same gradient for each example: a public offset."""

    rows = 0
    elements = 0

    def __init__(self, value: Tensor) -> None:
        """Take the gradient, shape of the parameter."""
        self.value, self.shape = value, value.shape

    def sample(self) -> Tensor:
        return self.value

    def instantiate(self, piece: Piece) -> Tensor:
        return (piece.size * self.value).expand(piece.count, *self.shape)

    def add(self, factors: Tensor, into: Tensor) -> None:
        into += factors.sum() * self.value

    def pays(self, total: int, *, scaled: bool, keeps: bool) -> bool:
        return True

    def takes(self, other: InProducts) -> bool:
        return isinstance(other, Constant)

    def products(self, other: Use, piece: Piece, square: Tensor | None) -> Tensor:
        value = self.value.double()
        terms = value.square() if square is None else value.square() * square
        return (piece.size**2 * terms.sum()).expand(piece.count)


def add_up(grouped: Tensor) -> Tensor:
    """Add up over the second axis, without a copy where it has a single entry."""
    return grouped.squeeze(1) if grouped.shape[1] == 1 else grouped.sum(dim=1)


def gram(left: Tensor, right: Tensor) -> Tensor:
    """Return all inner products of rows, accurate for long rows.

    Args:
        left: shape (n, T, p).
        right: shape (n, T′, p).

    Returns:
        Shape (n, T, T′).
    """
    if left.shape[2] <= LONG:
        return left @ right.mT
    parts = zip(torch.split(left, LONG, dim=2), torch.split(right, LONG, dim=2), strict=True)
    return torch.stack([(a @ b.mT).double() for a, b in parts]).sum(dim=0)


def add_pairs(lefts: Tensor, rights: Tensor, *, same: bool) -> Tensor:
    """Add up the products of all pairs of rows.

    Pairs may cancel: of a use with itself, their rounding must not lower the norm, so that a few
    roundings of what does not cancel are added.

    Args:
        lefts, rights: inner products on either side, shape (n, T, T′).
        same: whether a use meets itself.

    Returns:
        Shape (n,), float64.
    """
    total = (lefts.double() * rights).sum(dim=(1, 2))
    if same:
        alone = (lefts.diagonal(dim1=1, dim2=2).double() * rights.diagonal(dim1=1, dim2=2)).sum(1)
        total = total + SLACK * torch.finfo(lefts.dtype).eps * alone
    return total
