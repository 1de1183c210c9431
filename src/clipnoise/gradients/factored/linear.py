"""Linear layers: an example's gradient is a sum of outer products, one for each of its rows."""

from __future__ import annotations

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
    add_pairs,
    gram,
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

    def added_up(rows: Tensor) -> Tensor:
        one = rows.ndim == 2 and len(rows) == recording.count
        return rows if one else by_example(rows).sum(dim=1)

    if inputs is not None:
        recording.use(weight, tap, lambda grad: Outer(by_example(grad), by_example(inputs)))
    recording.use(bias, tap, lambda grad: ExplicitGradients(added_up(grad)))
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
        self.left, self.right = left, right
        self.shape = torch.Size((left.shape[2], right.shape[2]))
        self.elements = left.shape[1:].numel() + right.shape[1:].numel()

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
        left, right = self.grouped(piece)
        return left.mT @ right

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
        if other is self and left.shape[1] == 1 and square is None:
            norms = row_norms(left.squeeze(1)) * row_norms(right.squeeze(1))
            values = norms.double().square()
            return Squares(values, slack_of(values, left.dtype))
        if isinstance(other, Constant):
            direction = other.value if square is None else other.value * square
            terms = (left @ direction) * right
            return Squares(piece.size * terms.sum(dim=(1, 2), dtype=torch.float64))
        assert isinstance(other, Outer)
        left_, right_ = (left, right) if other is self else other.grouped(piece)
        if square is None:
            return add_pairs(gram(left, left_), gram(right, right_), same=other is self)
        return scaled_pairs((left, right), (left_, right_), square, same=other is self)
