"""Networks for tables: an embedding of the categories beside the numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from clipnoise.data.signature import CATEGORIES, NUMBERS, Signature
from clipnoise.fields import Count
from clipnoise.lazy import Tensor, nn, torch
from clipnoise.models.base import Part, PartlyTrained, network_of


@dataclass(frozen=True, kw_only=True)
class EmbeddedTable(PartlyTrained):
    """A vector for each category, joined with the numbers, and a multilayer perceptron with tanh.

    Source: Guo and Berkhahn 2016, Entity Embeddings of Categorical Variables.

    Attributes:
        widths: of the hidden layers.
        width: length of a category's vector.
    """

    id = "table"
    work = 400.0
    title = "Embedded categories and numbers"
    accepts = "numbers beside categories (your own data of kind table)"

    widths: tuple[Count, ...] = (64,)
    width: Count = 4
    train: Part = "all"

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        tasks = ("classification", "multi-label", "regression")
        named = tuple(part.name for part in signature.parts)
        return named == (NUMBERS, CATEGORIES) and signature.task_name in tasks

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        self.require(signature)
        numbers, categories = signature.parts
        assert categories.vocabulary is not None
        joined = numbers.shape[0] + categories.shape[0] * self.width
        layers: list[nn.Module] = []
        for before, after in pairwise((joined, *self.widths)):
            layers += [nn.Linear(before, after), nn.Tanh()]
        last = self.widths[-1] if self.widths else joined
        network = network_of(
            _joined,
            by_rows=True,
            vectors=nn.Embedding(categories.vocabulary, self.width),
            body=nn.Sequential(*layers),
            head=nn.Linear(last, signature.outputs),
        )
        below = [p for name, p in network.named_parameters() if not name.startswith("head.")]
        return self.partly_trained(network, below)


def _joined(network: Any, *, numbers: Tensor, categories: Tensor) -> Any:
    vectors = network.vectors(categories).flatten(1)
    return network.head(network.body(torch.cat([numbers, vectors], dim=1)))
