"""Linear layers: an example's gradient is a sum of outer products, one for each of its rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear

from clipnoise.gradients.clipping import row_norms
from clipnoise.gradients.factored.recording import Recording
from clipnoise.gradients.factored.uses import (
    ELEMENT,
    OVERHEAD,
    Constant,
    ExplicitGradients,
    InProducts,
    Piece,
    Squares,
    Use,
    Vectors,
    add_pairs,
    gram,
    rounding_of,
    scaled_pairs,
    scaled_pairs_pay,
    slack_of,
)


def record_linear(
    recording: Recording, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Run a linear layer and record its factors."""
    recording.examples_of(input)
    output = linear(input, recording.plain(weight, input), recording.plain(bias, input))
    tap = recording.tap(output)
    inputs = recording.hold(input) if recording.trains(weight) else None

    def by_example(rows: Tensor) -> Tensor:
        return rows.reshape(recording.count, -1, rows.shape[-1])

    single = output.ndim == 2 and output.shape[0] == recording.count  # one row per example
    added_up: list[Vectors] = []  # the norms of output gradients serve the weight and the bias

    def rows_of(grad: Tensor) -> Vectors:
        if not added_up:
            added_up.append(Vectors(grad if single else by_example(grad).sum(dim=1)))
        return added_up[0]

    def outer(grad: Tensor) -> Use:
        assert inputs is not None
        if single:
            return SingleOuter(rows_of(grad), inputs)
        return Outer(by_example(grad), by_example(inputs))

    recording.use(weight, tap, outer)
    recording.use(bias, tap, lambda grad: ExplicitGradients(rows_of(grad)))
    return output


def linear_in_products(total: int, outputs: int, inputs: int, *, keeps: bool) -> bool:
    """Return whether the norms of a linear layer cost less by inner products of its rows.

    Args:
        total: rows that are compared with each other.
        outputs: o.
        inputs: p, of a weight of shape (o, p).
        keeps: whether instantiated gradients would be kept.
    """
    products = total**2 * (inputs + outputs + OVERHEAD)
    summing = total * inputs * outputs
    return products + summing * keeps < summing + ELEMENT * inputs * outputs


class Outer(InProducts):
    """G_i = Σ_t l_t ⊗ r_t with l of shape (b, T, o) and r of shape (b, T, p)."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self._left, self._right = left, right
        self.shape = torch.Size((left.shape[2], right.shape[2]))
        self.elements = left.shape[1:].numel() + right.shape[1:].numel()

    @property
    def left(self) -> Tensor:
        """The left factors as rows, (b, T, o)."""
        return self._left

    @property
    def right(self) -> Tensor:
        """The right factors as rows, (b, T, p)."""
        return self._right

    @property
    def rows(self) -> int:
        return self.left.shape[1]

    def pays(self, total: int, *, scaled: bool, keeps: bool) -> bool:
        if scaled:
            return scaled_pairs_pay(total, keeps=keeps)
        if total == 1:
            return True
        return linear_in_products(total, *self.shape, keeps=keeps)

    def takes(self, other: InProducts) -> bool:
        return isinstance(other, Outer | Constant)

    def instantiate(self, piece: Piece) -> Tensor:
        return self.by_rows(piece)(slice(None))

    def by_rows(self, piece: Piece) -> Callable[[slice], Tensor]:
        left, right = self.grouped(piece)
        return lambda rows: left[:, :, rows].mT @ right

    def grouped(self, piece: Piece) -> tuple[Tensor, Tensor]:
        """Return the rows of each group in a piece."""
        return piece.joined(self.left), piece.joined(self.right)

    def add(self, factors: Tensor, into: Tensor) -> None:
        left, right = self.left, self.right
        if left.shape[2] <= right.shape[2]:
            left = left * factors.view(-1, 1, 1)
        else:
            right = right * factors.view(-1, 1, 1)
        into.addmm_(left.flatten(0, 1).T, right.flatten(0, 1))

    def products(self, other: Use, piece: Piece, square: Tensor | None) -> Squares:
        left, right = self.grouped(piece)
        if isinstance(other, Constant):
            direction = other.value if square is None else other.value * square
            terms = (left @ direction) * right
            return Squares(piece.size * terms.sum(dim=(1, 2), dtype=torch.float64))
        assert isinstance(other, Outer)
        left_, right_ = (left, right) if other is self else other.grouped(piece)
        if square is None:
            return add_pairs(
                gram(left, left_), gram(right, right_), sum(self.shape), same=other is self
            )
        return scaled_pairs((left, right), (left_, right_), square, same=other is self)


class SingleOuter(Outer):
    """G_i = l_i ⊗ r_i with l of shape (b, o) and r of shape (b, p)."""

    def __init__(self, left: Tensor | Vectors, right: Tensor) -> None:
        self._rows = left if isinstance(left, Vectors) else Vectors(left)
        self._left, self._right = self._rows.values, right
        self.shape = torch.Size((self._left.shape[1], right.shape[1]))
        self.elements = self._left.shape[1] + right.shape[1]

    @property
    def left(self) -> Tensor:
        return self._left.unsqueeze(1)

    @property
    def right(self) -> Tensor:
        return self._right.unsqueeze(1)

    @property
    def rows(self) -> int:
        return 1

    def add(self, factors: Tensor, into: Tensor) -> None:
        left, right, column = self._left, self._right, factors.unsqueeze(1)
        if left.shape[1] <= right.shape[1]:
            left = left * column
        else:
            right = right * column
        into.addmm_(left.T, right)

    def squared_norms(self) -> Tensor:
        return self._squares().mul_(1 + rounding_of(self._left.dtype))

    def _squares(self) -> Tensor:
        left, right = self._rows.norms, row_norms(self._right)
        squares = (left * right).double().square_()
        # A norm misses entries whose squares are 0, and the other norm may be large.
        lost = 2 * torch.finfo(left.dtype).tiny
        left, right, (outputs, inputs) = left.double(), right.double(), self.shape
        squares.addcmul_(left, left, value=lost * inputs)
        return squares.addcmul_(right, right, value=lost * outputs)

    def products(self, other: Use, piece: Piece, square: Tensor | None) -> Squares:
        if other is not self or square is not None or piece.size > 1:
            return super().products(other, piece, square)
        squares = piece.cut(self._squares())
        return Squares(squares, slack_of(squares, self._left.dtype))
