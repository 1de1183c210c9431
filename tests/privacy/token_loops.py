"""Training loops of an embedding on token ids: one honest, some with one mistake each."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from loops import BATCH, CLASSES, EXAMPLES, Plain
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import TensorDataset

TOKENS, LENGTH, WIDTH = 12, 5, 4


def sentences() -> TensorDataset:
    """Return sequences of token ids, whose class is that of their first token."""
    draw = torch.Generator().manual_seed(6)
    tokens = torch.randint(TOKENS, (EXAMPLES, LENGTH), generator=draw)
    return TensorDataset(tokens, tokens[:, 0] % CLASSES)


class Network(nn.Module):
    """The mean of embedded tokens, and a layer on it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        return self.head((self.features(tokens) - mean) / deviation)

    def features(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens).mean(-2)


class Tokens(Plain):
    """Trains embedding and head."""

    scale: ClassVar[float] = 1.0

    def model(self) -> Network:
        return Network()

    def gradients(self, model: Any, data: Any, places: list[int]) -> Tensor:
        if not places:
            return torch.zeros(0, sum(part.numel() for part in model.parameters()))
        tokens, targets = self.taken(data, places)
        mean, deviation = self.statistics(model, tokens)

        def loss(parameters: dict[str, Tensor], tokens: Tensor, target: Tensor) -> Tensor:
            output = functional_call(model, parameters, (tokens, mean, deviation))
            return nn.functional.cross_entropy(self.scale * output, target)

        parameters = {name: part.detach() for name, part in model.named_parameters()}
        found = vmap(grad(loss), (None, 0, 0))(parameters, tokens, targets)
        return torch.cat([part.flatten(1) for part in found.values()], dim=1)

    def statistics(self, model: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return what features are standardised by."""
        return torch.zeros(WIDTH), torch.ones(WIDTH)

    def update(self, model: Any, released: Tensor) -> None:
        parts = list(model.parameters())
        steps = released.split([part.numel() for part in parts])
        with torch.no_grad():
            for part, step in zip(parts, steps, strict=True):
                part -= self.learning_rate * step.view_as(part)


LABELS = ("a", "b", "c")[:CLASSES]


def texts() -> list[tuple[dict[str, Tensor], str]]:
    """Return sequences of several lengths in mappings, with the names of their classes."""
    return [
        ({"ids": tokens[: 2 + index % 3]}, LABELS[int(target)])
        for index, (tokens, target) in enumerate(sentences())
    ]


class Texts(Tokens):
    """Pads the sequences, and numbers the classes, as it takes a batch."""

    def taken(self, data: Any, places: list[int]) -> tuple[Tensor, Tensor]:
        items = [data[place] for place in places]
        padded = nn.utils.rnn.pad_sequence([x["ids"] for x, _ in items], batch_first=True)
        return padded, torch.tensor([LABELS.index(y) for _, y in items])


class SmallGradients(Tokens):
    """Releases sums of gradients that are far smaller than the clip norm."""

    scale: ClassVar[float] = 0.05
    claimed: ClassVar = {"expected_batch_size": EXAMPLES // 2}

    def shown(self, released: Tensor) -> Any:
        return BATCH * released


class BatchNorm(Tokens):
    """Features are standardised by those of the batch."""

    def statistics(self, model: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            features = model.features(tokens)
        return features.mean(0), features.std(0, correction=0) + 1e-3


class ClippedAfterSum(Tokens):
    def summed(self, model: Any, data: Any, places: list[int]) -> Tensor:
        total = self.gradients(model, data, places).sum(0, keepdim=True)
        return BATCH * self.clipped(total / 5)[0]


class RareTokensLeftOut(Tokens):
    """Tokens that few examples of all hold become token 0."""

    def __call__(self, data: Any, record: Any) -> nn.Module:
        held = torch.stack([torch.bincount(x, minlength=TOKENS) for x, _ in data]).sum(0)
        kept = held >= held.median()
        return super().__call__([(x * kept[x], y) for x, y in data], record)


MISTAKES: dict[type[Tokens], str] = {
    BatchNorm: "apart",
    ClippedAfterSum: "apart",
    RareTokensLeftOut: "apart",
}
