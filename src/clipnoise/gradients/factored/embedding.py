"""Embeddings: an example's gradient is non-zero only in the rows of its own tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding

from clipnoise.gradients.apart import UnsupportedError
from clipnoise.gradients.factored.linear import Outer
from clipnoise.gradients.factored.recording import Recording
from clipnoise.gradients.factored.uses import (
    Constant,
    InProducts,
    Piece,
    Squares,
    Use,
    add_pairs,
    gram,
    slack_of,
)


def record_embedding(
    recording: Recording,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Run an embedding and record its factors."""
    if max_norm is not None or scale_grad_by_freq:
        raise UnsupportedError("an embedding with max_norm or scale_grad_by_freq")
    recording.examples_of(input)
    output = embedding(input, recording.plain(weight, input))
    if not recording.trains(weight):
        return output
    tap = recording.tap(output)
    inputs = recording.hold(input)

    def build(grad: Tensor) -> Use:
        ids = inputs.reshape(recording.count, -1)
        rows = grad.reshape(*ids.shape, -1)
        if padding_idx is not None:
            rows = rows * (ids != padding_idx % len(weight)).unsqueeze(2)
        return Lookup(ids, rows, len(weight))

    recording.use(weight, tap, build)
    return output


class Lookup(InProducts):
    """G_i = Σ_t e(id_t) ⊗ r_t with ids of shape (b, T) and r of shape (b, T, p)."""

    def __init__(self, ids: Tensor, right: Tensor, tokens: int) -> None:
        self.ids, self.right = ids, right
        self.shape = torch.Size((tokens, right.shape[2]))
        self.elements = right[0].numel()

    @property
    def rows(self) -> int:
        return self.ids.shape[1]

    def pays(self, total: int, *, scaled: bool, keeps: bool) -> bool:
        return total**2 < 4 * self.shape[0]

    def takes(self, other: InProducts) -> bool:
        return isinstance(other, Lookup | Outer | Constant)

    def instantiate(self, piece: Piece) -> Tensor:
        ids, right = self._grouped(piece)
        gradients = right.new_zeros(len(ids), *self.shape)
        return gradients.scatter_add_(1, ids.unsqueeze(2).expand_as(right), right)

    def add(self, factors: Tensor, into: Tensor) -> None:
        rows = self.right * factors.view(-1, 1, 1)
        into.index_add_(0, self.ids.flatten(), rows.flatten(0, 1))

    def products(self, other: Use, piece: Piece, square: Tensor | None) -> Squares:
        ids, right = self._grouped(piece)
        if other is self:
            return _squared_norms(ids, right, square)
        if square is not None:
            right = right * square[ids]
        if isinstance(other, Constant):
            terms = right * other.value[ids]
            return Squares(piece.size * terms.sum(dim=(1, 2), dtype=torch.float64))
        if isinstance(other, Lookup):
            ids_, right_ = other._grouped(piece)
            left = (ids.unsqueeze(2) == ids_.unsqueeze(1)).to(right.dtype)
        else:
            assert isinstance(other, Outer)
            left_, right_ = other.grouped(piece)
            left = left_.mT.gather(1, ids.unsqueeze(2).expand(-1, -1, left_.shape[1]))
        return add_pairs(left, gram(right, right_), sum(self.shape), same=False)

    def _grouped(self, piece: Piece) -> tuple[Tensor, Tensor]:
        return piece.joined(self.ids), piece.joined(self.right)


def _squared_norms(ids: Tensor, right: Tensor, square: Tensor | None) -> Squares:
    """Return ‖s ⊙ G_i‖² by forming the rows of G_i that are not zero: those of its tokens.

    It has slack, because other uses may cancel what this one adds.

    Args:
        ids: shape (n, T).
        right: shape (n, T, p).
        square: s², shape of the parameter, or None for ones.
    """
    ids, order = ids.sort(dim=1)
    right = right.gather(1, order.unsqueeze(2).expand_as(right))
    starts = ids.diff(dim=1, prepend=ids[:, :1]) != 0  # where the next token begins
    slots = starts.cumsum(dim=1).unsqueeze(2).expand_as(right)
    terms = right.double().square()
    rows = torch.zeros_like(right).scatter_add_(1, slots, right).double().square()
    if square is None:
        return Squares(rows.sum(dim=(1, 2)), slack_of(terms.sum(dim=(1, 2)), right.dtype))
    lost = terms.sum(dim=(1, 2)) * torch.finfo(square.dtype).tiny  # where s² is 0 and s is not
    terms *= square[ids]  # a slot without a token holds zeros, whatever they are multiplied by
    rows *= square[torch.zeros_like(ids).scatter_(1, slots[:, :, 0], ids)]
    return Squares(rows.sum(dim=(1, 2)), slack_of(terms.sum(dim=(1, 2)), right.dtype) + lost)
