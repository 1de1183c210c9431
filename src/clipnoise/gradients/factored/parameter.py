"""All uses of one parameter together: squared norms and the weighted sum of its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import cast

import torch
from torch import Tensor

from clipnoise.gradients.factored.uses import Groups, InProducts, Piece, Use
from clipnoise.gradients.per_example import row_norms


@dataclass
class ParameterGradient:
    """The gradients v = Σ_u G_u of one parameter, by group; not all held at once.

    Attributes:
        uses: G_u, over layers and iterates.
        groups: how examples are grouped; a group's gradient is the sum over its examples.
        kept: s ⊙ v for all groups, if that takes no more memory than the factors do.
    """

    uses: list[Use]
    groups: Groups
    kept: Tensor | None = None

    def squared_norms(self, scale: Tensor | None) -> Tensor:
        """Return ‖s ⊙ v‖² for each group.

        Args:
            scale: s, shape of the parameter, or None for ones.

        Returns:
            Shape (n,), float64.
        """
        if not self.uses:
            return torch.zeros((), dtype=torch.float64)
        uses = self._in_products(scaled=scale is not None)
        if uses is None:
            return self._by_instantiating(scale)
        return self._by_products(uses, None if scale is None else scale.square())

    def add_weighted(self, factors: Tensor, scale: Tensor | None, into: Tensor) -> None:
        """Add Σ f (s ⊙ v) over the groups, in place.

        Args:
            factors: f, shape (n,).
            scale: s, the same as for the norms.
            into: zeros, shape of the parameter.
        """
        if self.kept is not None:
            into.view(-1).addmv_(self.kept.view(len(self.kept), -1).T, factors)
            return
        by_example = self.groups.to_examples(factors)
        for use in self.uses:
            use.add(by_example, into)
        if scale is not None:
            into *= scale

    def instantiate(self, piece: Piece) -> Tensor:
        """Return v for the groups of a piece, shape (groups, *shape)."""
        first, *others = (use.instantiate(piece) for use in self.uses)
        return sum(others, start=first)

    def _in_products(self, *, scaled: bool) -> list[InProducts] | None:
        """Return the uses, each accepting all later ones, if inner products cost less."""
        if not all(isinstance(use, InProducts) for use in self.uses):
            return None
        uses = cast("list[InProducts]", self.uses)
        uses = sorted(uses, key=lambda use: sum(not use.takes(other) for other in uses))
        if not all(use.takes(other) for use, other in combinations_with_replacement(uses, 2)):
            return None
        total = sum(use.rows for use in uses) * self.groups.largest
        keeps = _worth_keeping(uses, self.groups)
        pays = all(use.pays(total, scaled=scaled, keeps=keeps) for use in uses)
        return uses if pays else None

    def _by_products(self, uses: list[InProducts], square: Tensor | None) -> Tensor:
        rows = sum(use.rows for use in uses)
        parts = []
        for piece in self.groups.pieces(rows * rows * self.groups.largest):
            total = torch.zeros((), dtype=torch.float64)
            for use, other in combinations_with_replacement(uses, 2):
                product = use.products(other, piece, square)
                total = total + (product if use is other else 2 * product)
            parts.append(total)
        return torch.cat(parts)

    def _by_instantiating(self, scale: Tensor | None) -> Tensor:
        keeps = _worth_keeping(self.uses, self.groups)
        elements = sum(use.gradient_elements + use.workspace for use in self.uses)
        done, parts = 0, []
        for piece in self.groups.pieces(elements):
            gradients = self.instantiate(piece)
            if keeps:
                if self.kept is None:
                    self.kept = gradients.new_empty(self.groups.count, *gradients.shape[1:])
                gradients = self.kept[done : done + piece.count].copy_(gradients)
            if scale is not None:
                gradients.mul_(scale)
            parts.append(row_norms(gradients.view(piece.count, -1)).double().square())
            done += piece.count
        if keeps:
            self.uses = []
        return torch.cat(parts)


def _worth_keeping(uses: Sequence[Use], groups: Groups) -> bool:
    """Return whether instantiated gradients take no more memory than the factors they replace."""
    gradients = uses[0].gradient_elements * groups.count
    return gradients <= groups.examples * sum(use.elements for use in uses)
